"""CIDEr: how much of what people say of an image an answer says, rare words counting more.

It is CIDEr-D, with clipped counts and a penalty for another length. Words are runs of letters and digits in
lower case; the reference program has a tokenizer in Java in their place.

Source: Vedantam et al., "CIDEr"; pycocoevalcap, `cider_scorer.py`.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from monitor.evaluation.arrays import Doubles

_LONGEST = 4
"""Words in a row that are looked at."""

_SIGMA = 6.0
"""Of the penalty, in pairs of words."""

_WORD = re.compile(r"\w+")

_Counts = Counter[tuple[str, ...]]


class _Vector(NamedTuple):
    weights: dict[tuple[str, ...], float]
    norms: list[float]
    """Of the weights of 1 to 4 words."""
    length: int
    """In pairs of words, as the reference program counts."""


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return _WORD.findall(text.lower())


def cider(answers: Sequence[str], references: Sequence[Sequence[str]]) -> Doubles:
    """Score answers.

    Args:
        answers: (N,) texts.
        references: (N,) what people said, one each at least. How rare words are is counted here: in how
            many of the N they stand.

    Returns:
        (N,) 0 to 10, of which CIDEr is the mean.
    """
    counts = [[_counts(one) for one in some] for some in references]
    frequency = Counter(run for some in counts for run in set().union(*some))
    whole = math.log(max(len(answers), 1))
    rarity = {run: whole - math.log(count) for run, count in frequency.items()}
    scores = np.zeros(len(answers))
    for at, (answer, some) in enumerate(zip(answers, counts, strict=True)):
        said = _vector(_counts(answer), rarity, whole)
        likeness = sum(_likeness(said, _vector(one, rarity, whole)) for one in some)
        scores[at] = 10 * likeness / _LONGEST / len(some)
    return scores


def _counts(text: str) -> _Counts:
    row = words(text)
    return Counter(
        tuple(row[at : at + count])
        for count in range(1, _LONGEST + 1)
        for at in range(len(row) - count + 1)
    )


def _vector(counts: _Counts, rarity: dict[tuple[str, ...], float], unseen: float) -> _Vector:
    weights = {run: count * rarity.get(run, unseen) for run, count in counts.items()}
    squares = [0.0] * _LONGEST
    for run, weight in weights.items():
        squares[len(run) - 1] += weight**2
    length = sum(count for run, count in counts.items() if len(run) == 2)
    return _Vector(weights, [math.sqrt(one) for one in squares], length)


def _likeness(said: _Vector, reference: _Vector) -> float:
    """Return the sum over 1 to 4 words of the clipped cosine."""
    common = [0.0] * _LONGEST
    for run, weight in said.weights.items():
        other = reference.weights.get(run, 0.0)
        common[len(run) - 1] += min(weight, other) * other
    cosine = sum(
        one / (norm * other)
        for one, norm, other in zip(common, said.norms, reference.norms, strict=True)
        if norm and other
    )
    return cosine * math.exp(-((said.length - reference.length) ** 2) / (2 * _SIGMA**2))
