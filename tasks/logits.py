"""Rules on the scores of the next token, each a pure function of one row: float32 (vocabulary,).

Scores are logits, or log-probabilities in a beam search; a forbidden token has -inf.

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
