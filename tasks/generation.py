"""Text generation: greedy, sampled and beam search of tokens for a batch of prompts.

A `Step` runs the model. The answers equal those of transformers' `generate`; drawn tokens follow its
probabilities, but not its random numbers.

Source: transformers 4.57, `generation/utils.py` (`_sample`, `_beam_search`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from quadriga.tasks import parameters as read
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import OutputError

Tokens = npt.NDArray[np.int64]


Scores = npt.NDArray[np.float32]


Step = Callable[[Tokens, Tokens], Scores]
"""Takes a token for each row, and the row of the call before that it continues: int64 (rows,) both.

Rows may be dropped, repeated and reordered. Gives the logits of the next token, float32
(rows, vocabulary).
"""


_NEVER = np.float32(-1e9)


_MIN_TEMPERATURE = 1e-3
"""Lowest temperature: below it only the best token is ever drawn, and the quotient would overflow float32."""


MAX_BEAMS = 16


class GenerationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen and when an answer ends; names and meanings are those of `generation_config.json`."""

    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_length: Annotated[int, Meta(ge=1)] | None = None
    """Maximum tokens of the prompt and the answer together, used if `max_new_tokens` is not set."""
    do_sample: bool = False
    temperature: Annotated[float, Meta(ge=0)] = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 50
    """Number of best tokens to draw from; 0 for all tokens."""
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    num_beams: Annotated[int, Meta(ge=1, le=MAX_BEAMS)] = 1
    seed: int | None = None
    """Seed of the drawn tokens. An answer does not depend on the other prompts of the batch."""
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end an answer."""
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    repetition_penalty: Annotated[float, Meta(gt=0)] = 1.0
    no_repeat_ngram_size: Annotated[int, Meta(ge=0)] = 0
    min_length: int = 0
    min_new_tokens: int = 0
    forced_bos_token_id: Annotated[int, Meta(ge=0)] | None = None
    forced_eos_token_ids: tuple[int, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()

    def limit(self, prompt_length: int) -> int:
        """Return the maximum number of tokens that may follow a prompt, at least one."""
        if self.max_new_tokens is not None:
            return max(1, self.max_new_tokens)
        if self.max_length is not None:
            return max(1, self.max_length - prompt_length)
        raise ValueError("max_new_tokens or max_length is required")


def generate(
    prompts: Sequence[Sequence[int]],
    logits: Scores,
    step: Step,
    config: GenerationConfig,
    limits: Sequence[int],
) -> list[list[int]]:
    """Generate one answer for each prompt: token ids, including the token that ended it, if any.

    Args:
        prompts: Token ids that the model has read.
        logits: Logits of the token after each prompt, finite float32 (prompts, vocabulary).
        step: Runs the model on the next tokens.
        config: How to choose tokens, for all prompts.
        limits: Maximum tokens of each answer, at least one; see `GenerationConfig.limit`.

    Raises:
        OutputError: The logits have another shape, or contain NaN or infinity.
    """
    *_, answers = generate_stepwise(prompts, logits, step, config=config, limits=limits)
    return answers


def generate_stepwise(
    prompts: Sequence[Sequence[int]],
    logits: Scores,
    step: Step,
    config: GenerationConfig,
    limits: Sequence[int],
) -> Iterator[list[list[int]]]:
    """Generate as `generate` does, and yield the answers so far after each step.

    In a beam search an answer is the best one that has ended, and a later step may replace it.
    """
    search_type = _Beams if config.num_beams > 1 else _Single
    searches = [
        search_type(*prompt_and_limit, config)
        for prompt_and_limit in zip(prompts, limits, strict=True)
    ]
    running = [(state, np.full(config.num_beams, row)) for row, state in enumerate(searches)]
    _check(logits, len(prompts))
    while True:
        chosen: list[Tokens] = []
        origins: list[Tokens] = []
        continuing: list[tuple[_Single | _Beams, Tokens]] = []
        count = 0
        for state, rows in running:
            continued = state.advance(logits[rows])
            if continued is None:
                continue
            tokens, parents = continued
            chosen.append(tokens)
            origins.append(rows[parents])
            continuing.append((state, np.arange(count, count + len(tokens))))
            count += len(tokens)
        yield [state.answer for state in searches]
        if not continuing:
            return
        running = continuing
        logits = step(np.concatenate(chosen), np.concatenate(origins))
        _check(logits, count)


def _check(logits: Scores, rows: int) -> None:
    if logits.ndim != 2 or len(logits) != rows:
        raise OutputError(f"expected logits of {rows} rows, got the shape {logits.shape}")
    if not (logits < np.inf).all():
        raise OutputError("expected logits below infinity, got infinity or NaN")


class _Single:
    """Greedy search or sampling: one answer that grows by the best token, or by a drawn one."""

    def __init__(self, prompt: Sequence[int], limit: int, config: GenerationConfig) -> None:
        self._prompt = list(prompt)
        self._config = config
        self._limit = limit
        self._generator = np.random.default_rng(config.seed)
        self.answer: list[int] = []

    def advance(self, logits: Scores) -> tuple[Tokens, Tokens] | None:
        """Choose a token from logits (1, vocabulary); return it with its row, or None at the end of the answer."""
        scores = _ruled(
            logits[0], self._prompt, self.answer, limit=self._limit, config=self._config
        )
        if self._config.do_sample:
            token = int(draw(scores, 1, self._generator)[0])
        else:
            token = int(scores.argmax())
        self.answer.append(token)
        if token in self._config.eos_token_ids or len(self.answer) >= self._limit:
            return None
        return np.array([token]), np.array([0])


class _Finished(msgspec.Struct, frozen=True):
    score: np.float32
    tokens: list[int]
    complete: bool = True
    """Whether an answer has ended; False for the places that are still free."""


class _Beams:
    """Beam search of one prompt: the running beams, and the best answers that have ended."""

    def __init__(self, prompt: Sequence[int], limit: int, config: GenerationConfig) -> None:
        self._prompt = list(prompt)
        self._config = config
        self._limit = limit
        self._generator = np.random.default_rng(config.seed)
        self._running: list[list[int]] = [[] for _ in range(config.num_beams)]
        # all beams start equal: with one scored beam, the first step makes them differ
        self._scores = np.full(config.num_beams, _NEVER)
        self._scores[0] = 0
        self._finished = [_Finished(_NEVER, [], complete=False)] * config.num_beams

    @property
    def answer(self) -> list[int]:
        """Tokens of the best answer that has ended."""
        return self._finished[0].tokens

    def advance(self, logits: Scores) -> tuple[Tokens, Tokens] | None:
        """Choose tokens from logits (beams, vocabulary); return them with the beams they continue, or None at the end."""
        config = self._config
        scores = np.stack(
            [
                _ruled(log_softmax(row), self._prompt, tokens, limit=self._limit, config=config)
                + score
                for row, tokens, score in zip(logits, self._running, self._scores, strict=True)
            ]
        )
        flat = scores.ravel()
        candidate_count = max(2, 1 + len(config.eos_token_ids)) * config.num_beams
        if config.do_sample:
            indices = draw(flat, candidate_count, self._generator)
        else:
            indices = best(flat, candidate_count)
        parents, tokens = np.divmod(indices, scores.shape[1])
        scores = flat[indices]
        grown = [[*self._running[p], int(t)] for p, t in zip(parents, tokens, strict=True)]
        length = len(grown[0])
        ended = np.isin(tokens, config.eos_token_ids) | (length >= self._limit)
        self._finish(grown, scores, ended)
        running = best(np.where(ended, scores + _NEVER, scores), config.num_beams)
        self._running = [grown[index] for index in running]
        self._scores = np.where(ended, scores + _NEVER, scores)[running]
        if ended.all() or not self._may_improve(length):
            return None
        return tokens[running], parents[running]

    def _finish(
        self, sequences: list[list[int]], scores: Scores, ended: npt.NDArray[np.bool_]
    ) -> None:
        """Keep the best answers that have ended; an answer counts only if it is among the best `num_beams` sequences."""
        beam_count = self._config.num_beams
        penalty = np.float32(len(sequences[0]) ** self._config.length_penalty)
        completed = [
            _Finished(scores[index] / penalty, sequences[index])
            for index in range(min(beam_count, len(sequences)))
            if ended[index]
        ]
        merged = sorted([*self._finished, *completed], key=lambda answer: -answer.score)
        self._finished = merged[:beam_count]

    def _may_improve(self, length: int) -> bool:
        """Tell whether a running beam may still overtake the worst answer that has ended."""
        config = self._config
        complete = all(answer.complete for answer in self._finished)
        if complete and config.early_stopping is True:
            return False
        if config.early_stopping == "never" and config.length_penalty > 0:
            length = self._limit
        worst = self._finished[-1].score if complete else _NEVER
        return bool(self._scores[0] / np.float32(length**config.length_penalty) > worst)


def _ruled(
    scores: Scores,
    prompt: Sequence[int],
    answer: Sequence[int],
    limit: int,
    config: GenerationConfig,
) -> Scores:
    """Apply the rules of the configuration to the scores, in the order of transformers."""
    history = [*prompt, *answer]
    if config.repetition_penalty != 1:
        scores = penalise_repetition(scores, history, config.repetition_penalty)
    if config.no_repeat_ngram_size > 0:
        scores = forbid_repeated_ngrams(scores, history, config.no_repeat_ngram_size)
    if len(history) < config.min_length or len(answer) < config.min_new_tokens:
        scores = forbid(scores, config.eos_token_ids)
    forced_first = config.forced_bos_token_id is not None and len(prompt) == 1
    if forced_first and not answer and config.forced_bos_token_id is not None:
        scores = force(scores, [config.forced_bos_token_id])
    if config.forced_eos_token_ids and len(answer) == limit - 1:
        scores = force(scores, config.forced_eos_token_ids)
    scores = forbid(scores, config.suppress_tokens)
    if len(answer) == int(forced_first):
        scores = forbid(scores, config.begin_suppress_tokens)
    return _warped(scores, config) if config.do_sample else scores


def _warped(scores: Scores, config: GenerationConfig) -> Scores:
    """Apply the rules that hold only for drawn tokens: temperature, top-k and top-p."""
    min_count = 1 + len(config.eos_token_ids) if config.num_beams > 1 else 1
    if config.temperature != 1:
        temperature = max(config.temperature, _MIN_TEMPERATURE)
        scores = np.asarray(scores / np.float32(temperature), np.float32)
    if config.top_k > 0:
        scores = keep_top_k(scores, max(config.top_k, min_count))
    if config.top_p < 1:
        scores = keep_top_p(scores, config.top_p, min_count)
    return scores


MAX_PROMPTS = 64


MAX_CHARACTERS = 32_768
"""Maximum characters of one prompt."""


MAX_NEW_TOKENS = 4096


MAX_SEQUENCES = 256
"""Maximum prompts times beams. All run at once, each with a cache of its own: some megabytes for a small
captioner, hundreds for a language model."""


PROMPTS = ("prompts", "prompt")
"""Two names of one parameter: an input that has either overrides both of the request."""


FLAGS = ("do_sample",)
"""Parameters that are true or false."""


_MAX_SEED = 2**63 - 1


class ImageTextOptions(msgspec.Struct, frozen=True):
    """Options of one image: the prompts and how to generate answers."""

    action: str
    prompts: tuple[str, ...]
    search: GenerationConfig


class ImageTextToText:
    """Reads the parameters of a request; the configuration of the model supplies the defaults."""

    actions: tuple[str, ...] = ("predict", "generate")

    def __init__(self, config: GenerationConfig) -> None:
        self._config = config

    def options(self, parameters: Mapping[str, Any]) -> ImageTextOptions:
        """Read the prompts and the generation parameters; `temperature` 0 turns sampling off."""
        action = read.action(parameters, self.actions)
        prompts = _prompts(parameters)
        defaults = self._config
        temperature = read.number(
            parameters, "temperature", low=0, high=100, default=defaults.temperature
        )
        seed = read.whole_number(parameters, "seed", low=0, high=_MAX_SEED, default=-1)
        new_tokens = read.whole_number(
            parameters, "max_new_tokens", low=1, high=MAX_NEW_TOKENS, default=0
        )
        config = msgspec.structs.replace(
            defaults,
            max_new_tokens=new_tokens or defaults.max_new_tokens,
            do_sample=read.flag(parameters, "do_sample", default=defaults.do_sample)
            and temperature > 0,
            temperature=temperature,
            top_k=read.whole_number(
                parameters, "top_k", low=0, high=1_000_000, default=defaults.top_k
            ),
            top_p=read.share(parameters, "top_p", defaults.top_p),
            num_beams=read.whole_number(
                parameters, "num_beams", low=1, high=MAX_BEAMS, default=defaults.num_beams
            ),
            seed=defaults.seed if seed < 0 else seed,
        )
        if len(prompts) * config.num_beams > MAX_SEQUENCES:
            raise ParameterError(
                f"expected parameters.prompts times num_beams to be at most {MAX_SEQUENCES}, got "
                f"{len(prompts)} x {config.num_beams}"
            )
        return ImageTextOptions(action, prompts, config)


def _prompts(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    prompts = read.texts(parameters, "prompts", MAX_PROMPTS, MAX_CHARACTERS)
    prompt = parameters.get("prompt")
    if prompt is not None:
        if prompts:
            raise ParameterError("parameters.prompts and parameters.prompt cannot be used together")
        return read.texts({"prompt": [prompt]}, "prompt", 1, MAX_CHARACTERS)
    if not prompts:
        raise ParameterError(
            f"parameters.prompts is required: a list of 1 to {MAX_PROMPTS} texts; or an input named question "
            "beside that of the image"
        )
    return prompts


FORBIDDEN = np.float32(-np.inf)


def log_softmax(scores: Scores) -> Scores:
    """Turn logits into log-probabilities."""
    shifted = scores - scores.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float32)


def penalise_repetition(scores: Scores, history: Sequence[int], penalty: float) -> Scores:
    """Make every token of the history less likely by a factor above 1, or more likely by one below 1."""
    seen = np.unique(np.asarray(history, np.int64))
    penalised = scores.copy()
    seen_scores = scores[seen]
    penalised[seen] = np.where(seen_scores < 0, seen_scores * penalty, seen_scores / penalty)
    return penalised


def forbid_repeated_ngrams(scores: Scores, history: Sequence[int], size: int) -> Scores:
    """Forbid tokens that would complete an n-gram of `size` tokens that the history already has."""
    start = len(history) - size + 1
    if start < 0:
        return scores
    ending = list(history[start:])
    completing = [
        history[index + size - 1]
        for index in range(start)
        if list(history[index:][: size - 1]) == ending
    ]
    return forbid(scores, completing)


def forbid(scores: Scores, tokens: Sequence[int]) -> Scores:
    """Set the scores of tokens to -inf."""
    if not tokens:
        return scores
    forbidden = scores.copy()
    forbidden[list(tokens)] = FORBIDDEN
    return forbidden


def force(scores: Scores, tokens: Sequence[int]) -> Scores:
    """Forbid every token except the given ones."""
    forced = np.full_like(scores, FORBIDDEN)
    forced[list(tokens)] = 0
    return forced


def keep_top_k(scores: Scores, count: int) -> Scores:
    """Forbid all but the best `count` tokens, and those of equal score."""
    if count >= len(scores):
        return scores
    threshold = np.partition(scores, -count)[-count]
    return np.where(scores < threshold, FORBIDDEN, scores)


def keep_top_p(scores: Scores, mass: float, min_count: int = 1) -> Scores:
    """Forbid all but the likeliest tokens that together have the probability `mass`, at least `min_count` tokens."""
    order = np.argsort(scores, kind="stable")
    cumulated = np.exp(log_softmax(scores[order])).cumsum()
    is_excess = cumulated <= 1 - mass
    is_excess[-min_count:] = False
    return forbid(scores, order[is_excess].tolist())


def best(scores: Scores, count: int) -> npt.NDArray[np.int64]:
    """Return the indices of the best `count` scores, the best first, then the lower index."""
    count = min(count, len(scores))
    chosen = np.sort(np.argpartition(-scores, count - 1)[:count])
    return np.asarray(chosen[np.argsort(-scores[chosen], kind="stable")], np.int64)


def draw(scores: Scores, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw different indices, with the probabilities of the scores.

    Source: Gumbel noise; Kool, van Hoof, Welling, "Stochastic Beams and Where to Find Them", 2019.
    """
    return best(np.asarray(scores + generator.gumbel(size=len(scores)), np.float32), count)
