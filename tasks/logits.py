"""Rules on the scores of the next token, each a pure function of one row: float32 (vocabulary,).

Scores are logits, or log-probabilities in a beam search; a token that is forbidden has -inf.

Source: transformers 4.57, `generation/logits_process.py`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]

FORBIDDEN = np.float32(-np.inf)


def log_softmax(scores: Scores) -> Scores:
    """Turn logits into log-probabilities."""
    shifted = scores - scores.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float32)


def penalise_repetition(scores: Scores, history: Sequence[int], penalty: float) -> Scores:
    """Make every token of the history less likely by a factor above 1; more likely below 1."""
    seen = np.unique(np.asarray(history, np.int64))
    penalised = scores.copy()
    had = scores[seen]
    penalised[seen] = np.where(had < 0, had * penalty, had / penalty)
    return penalised


def forbid_repeated_ngrams(scores: Scores, history: Sequence[int], size: int) -> Scores:
    """Forbid each token that would complete `size` tokens that the history already holds in a row."""
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
    """Forbid these tokens."""
    if not tokens:
        return scores
    forbidden = scores.copy()
    forbidden[list(tokens)] = FORBIDDEN
    return forbidden


def force(scores: Scores, tokens: Sequence[int]) -> Scores:
    """Forbid every token but these."""
    forced = np.full_like(scores, FORBIDDEN)
    forced[list(tokens)] = 0
    return forced


def keep_top_k(scores: Scores, count: int) -> Scores:
    """Forbid what scores below the best `count` tokens."""
    if count >= len(scores):
        return scores
    least = np.partition(scores, -count)[-count]
    return np.where(scores < least, FORBIDDEN, scores)


def keep_top_p(scores: Scores, mass: float, at_least: int = 1) -> Scores:
    """Forbid what the likeliest tokens of this much probability, `at_least` so many, leave over."""
    order = np.argsort(scores, kind="stable")
    cumulated = np.exp(log_softmax(scores[order])).cumsum()
    left_over = cumulated <= 1 - mass
    left_over[-at_least:] = False
    return forbid(scores, order[left_over].tolist())


def best(scores: Scores, count: int) -> npt.NDArray[np.int64]:
    """Give the indices of the best `count` scores, the best first, of equal ones the lower index."""
    count = min(count, len(scores))
    chosen = np.sort(np.argpartition(-scores, count - 1)[:count])
    return np.asarray(chosen[np.argsort(-scores[chosen], kind="stable")], np.int64)


def draw(scores: Scores, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw different indices with the probability that the scores give them.

    Source: Gumbel noise; Kool, van Hoof, Welling, "Stochastic Beams and Where to Find Them", 2019.
    """
    return best(np.asarray(scores + generator.gumbel(size=len(scores)), np.float32), count)
