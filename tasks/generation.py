"""From logits to tokens: greedy, sampled and beam search for a batch of prompts.

A `Step` runs the model. Answers are those of transformers' `generate`; drawn tokens follow its
probabilities, but not its random numbers.

Source: transformers 4.57, `generation/utils.py` (`_sample`, `_beam_search`).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks import logits as rule
from quadriga.tasks.logits import Scores
from quadriga.tasks.predictions import OutputError

Tokens = npt.NDArray[np.int64]

Step = Callable[[Tokens, Tokens], Scores]
"""Takes a token for each row, and the row of the call before that it continues: int64 (rows,) both.

Rows may be dropped, repeated and reordered. Gives the logits of the next token, float32
(rows, vocabulary).
"""

_NEVER = np.float32(-1e9)
_MIN_TEMPERATURE = 1e-3
"""Below it nothing but the best is ever drawn, and the quotient would leave float32."""


class GenerationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen, and when it ends; names and meanings of `generation_config.json`."""

    max_new_tokens: int | None = None
    max_length: int | None = None
    """Of the prompt and the answer together; holds where `max_new_tokens` says nothing."""
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    """When drawing; 0 for all."""
    top_p: float = 1.0
    num_beams: int = 1
    seed: int | None = None
    """What is drawn depends on it and on the prompt, not on the prompts beside it."""
    eos_token_ids: tuple[int, ...] = ()
    """Each of them ends an answer."""
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    min_length: int = 0
    min_new_tokens: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_ids: tuple[int, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()

    def limit(self, prompt_length: int) -> int:
        """Most tokens that may follow a prompt; at least one."""
        if self.max_new_tokens is not None:
            return max(1, self.max_new_tokens)
        if self.max_length is not None:
            return max(1, self.max_length - prompt_length)
        raise ValueError("expected max_new_tokens or max_length, got neither")


def generate(
    prompts: Sequence[Sequence[int]],
    logits: Scores,
    step: Step,
    search: GenerationConfig,
    limits: Sequence[int],
) -> list[list[int]]:
    """Generate one answer for each prompt: token ids, with the one that ended it, where one did.

    Args:
        prompts: Token ids that the model has read.
        logits: Of the token after each prompt, finite float32 (prompts, vocabulary).
        step: Runs the model on.
        search: The same for all prompts.
        limits: Most tokens of each answer, at least one; `GenerationConfig.limit` says what the search allows.

    Raises:
        OutputError: Logits are of another shape, or NaN.
    """
    return deque(generate_stepwise(prompts, logits, step, search, limits), maxlen=1).pop()


def generate_stepwise(
    prompts: Sequence[Sequence[int]],
    logits: Scores,
    step: Step,
    search: GenerationConfig,
    limits: Sequence[int],
) -> Iterator[list[list[int]]]:
    """Generate as `generate` does, and give all answers so far after each step.

    With beams an answer is the best that has ended, which may yet become another.
    """
    kind = _Beams if search.num_beams > 1 else _Single
    searching = [kind(*each, search) for each in zip(prompts, limits, strict=True)]
    live = [(state, np.full(search.num_beams, row)) for row, state in enumerate(searching)]
    _check(logits, len(prompts))
    while True:
        chosen: list[Tokens] = []
        origins: list[Tokens] = []
        going: list[tuple[_Single | _Beams, Tokens]] = []
        count = 0
        for state, rows in live:
            continued = state.advance(logits[rows])
            if continued is None:
                continue
            tokens, parents = continued
            chosen.append(tokens)
            origins.append(rows[parents])
            going.append((state, np.arange(count, count + len(tokens))))
            count += len(tokens)
        yield [state.answer for state in searching]
        if not going:
            return
        live = going
        logits = step(np.concatenate(chosen), np.concatenate(origins))
        _check(logits, count)


def _check(logits: Scores, rows: int) -> None:
    if logits.ndim != 2 or len(logits) != rows:
        raise OutputError(f"expected logits of {rows} rows, got the shape {logits.shape}")
    if not (logits < np.inf).all():
        raise OutputError("expected logits below infinity, got infinity or NaN")


class _Single:
    """One answer that grows by the best token, or by one that is drawn."""

    def __init__(self, prompt: Sequence[int], limit: int, search: GenerationConfig) -> None:
        self._prompt = list(prompt)
        self._search = search
        self._limit = limit
        self._generator = np.random.default_rng(search.seed)
        self.answer: list[int] = []

    def advance(self, logits: Scores) -> tuple[Tokens, Tokens] | None:
        """Take logits (1, vocabulary); give the token to go on with, None at the end."""
        scores = _ruled(logits[0], self._prompt, self.answer, self._limit, self._search)
        if self._search.do_sample:
            token = int(rule.draw(scores, 1, self._generator)[0])
        else:
            token = int(scores.argmax())
        self.answer.append(token)
        if token in self._search.eos_token_ids or len(self.answer) >= self._limit:
            return None
        return np.array([token]), np.array([0])


class _Finished(msgspec.Struct, frozen=True):
    score: np.float32
    tokens: list[int]
    complete: bool = True
    """False for the places that no answer has taken yet."""


class _Beams:
    """The beams of one prompt: those that run, and the best of those that have ended."""

    def __init__(self, prompt: Sequence[int], limit: int, search: GenerationConfig) -> None:
        self._prompt = list(prompt)
        self._search = search
        self._limit = limit
        self._generator = np.random.default_rng(search.seed)
        self._running: list[list[int]] = [[] for _ in range(search.num_beams)]
        # all beams start equal: only the first may go on, so that no two of them stay so
        self._scores = np.full(search.num_beams, _NEVER)
        self._scores[0] = 0
        self._finished = [_Finished(_NEVER, [], complete=False)] * search.num_beams

    @property
    def answer(self) -> list[int]:
        """The best that has ended."""
        return self._finished[0].tokens

    def advance(self, logits: Scores) -> tuple[Tokens, Tokens] | None:
        """Take logits (beams, vocabulary); give tokens and the beams they continue, None at the end."""
        search = self._search
        scores = np.stack(
            [
                _ruled(rule.log_softmax(row), self._prompt, tokens, self._limit, search) + score
                for row, tokens, score in zip(logits, self._running, self._scores, strict=True)
            ]
        )
        flat = scores.ravel()
        wanted = max(2, 1 + len(search.eos_token_ids)) * search.num_beams
        if search.do_sample:
            indices = rule.draw(flat, wanted, self._generator)
        else:
            indices = rule.best(flat, wanted)
        parents, tokens = np.divmod(indices, scores.shape[1])
        scores = flat[indices]
        grown = [[*self._running[p], int(t)] for p, t in zip(parents, tokens, strict=True)]
        length = len(grown[0])
        ended = np.isin(tokens, search.eos_token_ids) | (length >= self._limit)
        self._finish(grown, scores, ended)
        running = rule.best(np.where(ended, scores + _NEVER, scores), search.num_beams)
        self._running = [grown[index] for index in running]
        self._scores = np.where(ended, scores + _NEVER, scores)[running]
        if ended.all() or not self._may_improve(length):
            return None
        return tokens[running], parents[running]

    def _finish(self, grown: list[list[int]], scores: Scores, ended: npt.NDArray[np.bool_]) -> None:
        """Keep the best answers that have ended; a candidate must be among the best of all."""
        places = self._search.num_beams
        penalty = np.float32(len(grown[0]) ** self._search.length_penalty)
        found = [
            _Finished(scores[index] / penalty, grown[index])
            for index in range(min(places, len(grown)))
            if ended[index]
        ]
        merged = sorted([*self._finished, *found], key=lambda item: -item.score)
        self._finished = merged[:places]

    def _may_improve(self, length: int) -> bool:
        """Say whether a running beam may still pass the worst that has ended."""
        search = self._search
        complete = all(item.complete for item in self._finished)
        if complete and search.early_stopping is True:
            return False
        if search.early_stopping == "never" and search.length_penalty > 0:
            length = self._limit
        worst = self._finished[-1].score if complete else _NEVER
        return bool(self._scores[0] / np.float32(length**search.length_penalty) > worst)


def _ruled(
    scores: Scores,
    prompt: Sequence[int],
    answer: Sequence[int],
    limit: int,
    search: GenerationConfig,
) -> Scores:
    """Apply what the search asks, in the order of transformers."""
    history = [*prompt, *answer]
    if search.repetition_penalty != 1:
        scores = rule.penalise_repetition(scores, history, search.repetition_penalty)
    if search.no_repeat_ngram_size > 0:
        scores = rule.forbid_repeated_ngrams(scores, history, search.no_repeat_ngram_size)
    if len(history) < search.min_length or len(answer) < search.min_new_tokens:
        scores = rule.forbid(scores, search.eos_token_ids)
    forced_first = search.forced_bos_token_id is not None and len(prompt) == 1
    if forced_first and not answer and search.forced_bos_token_id is not None:
        scores = rule.force(scores, [search.forced_bos_token_id])
    if search.forced_eos_token_ids and len(answer) == limit - 1:
        scores = rule.force(scores, search.forced_eos_token_ids)
    scores = rule.forbid(scores, search.suppress_tokens)
    if len(answer) == int(forced_first):
        scores = rule.forbid(scores, search.begin_suppress_tokens)
    return _warped(scores, search) if search.do_sample else scores


def _warped(scores: Scores, search: GenerationConfig) -> Scores:
    """Apply what holds only where tokens are drawn."""
    at_least = 1 + len(search.eos_token_ids) if search.num_beams > 1 else 1
    if search.temperature != 1:
        temperature = max(search.temperature, _MIN_TEMPERATURE)
        scores = np.asarray(scores / np.float32(temperature), np.float32)
    if search.top_k > 0:
        scores = rule.keep_top_k(scores, max(search.top_k, at_least))
    if search.top_p < 1:
        scores = rule.keep_top_p(scores, search.top_p, at_least)
    return scores
