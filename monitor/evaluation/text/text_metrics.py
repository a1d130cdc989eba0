"""How well answers agree with what people answered: plain functions of texts.

Sources: SQuAD 2.0, `evaluate-v2.0.py` (normalisation, exact match, F1); Antol et al., "VQA" (accuracy);
Biten et al., "Scene Text Visual Question Answering" (ANLS); sacrebleu; rouge-score; Vedantam et al.,
"CIDEr", and pycocoevalcap, `cider_scorer.py`.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from quadriga.tasks.arrays import Float64Array

TAU = 0.5
"""Answers that differ in this part of their letters, or more, get nothing by ANLS."""

BLEU_COUNTS = 10
"""Lengths of answer and reference, matches of 1 to 4 words, and runs of 1 to 4 words in the answer."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_text(text: str) -> str:
    """Lower the case, drop ASCII punctuation and English articles, and leave single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer is one of the references, both normalised, or 0."""
    return float(normalise_text(answer) in map(normalise_text, references))


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Return the best F1 of normalised words with a reference; two empty texts agree."""
    words = normalise_text(answer).split()
    return max(_f1(words, normalise_text(one).split()) for one in references)


def _f1(words: list[str], reference: list[str]) -> float:
    if not words or not reference:
        return float(words == reference)
    same = sum((Counter(words) & Counter(reference)).values())
    if not same:
        return 0.0
    precision, recall = same / len(words), same / len(reference)
    return 2 * precision * recall / (precision + recall)


def vqa_accuracy(answer: str, references: Sequence[str]) -> float:
    """Return how far people agree: of all people but one, three that say the same make 1.

    It is the mean over who is left out, after normalisation; NaN where one person alone answered.
    """
    if len(references) < 2:
        return float("nan")
    said = normalise_text(answer)
    same = [normalise_text(one) == said for one in references]
    agreeing = sum(same)
    return sum(min((agreeing - one) / 3, 1) for one in same) / len(same)


def anls(answer: str, references: Sequence[str]) -> float:
    """Return the best likeness in letters, in lower case and single spaces: 1 less the share that differs."""
    said = " ".join(answer.lower().split())
    return max(_likeness(said, " ".join(one.lower().split())) for one in references)


def _likeness(one: str, other: str) -> float:
    longest = max(len(one), len(other))
    if not longest:
        return 1.0
    if abs(len(one) - len(other)) / longest >= TAU:
        return 0.0
    differs = levenshtein(one, other) / longest
    return 1 - differs if differs < TAU else 0.0


def levenshtein(one: str, other: str) -> int:
    """Count the letters to put in, to drop and to change that make one text of another.

    A column of the table of distances is two whole numbers: where it rises and where it falls.

    Source: Myers, "A Fast Bit-Vector Algorithm for Approximate String Matching", as Hyyrö has it.
    """
    if not one:
        return len(other)
    places: dict[str, int] = {}
    for at, letter in enumerate(one):
        places[letter] = places.get(letter, 0) | 1 << at
    every, last = (1 << len(one)) - 1, 1 << (len(one) - 1)
    rises, falls, distance = every, 0, len(one)
    for letter in other:
        same = places.get(letter, 0)
        diagonal = (((same & rises) + rises) ^ rises) | same | falls
        right, left = falls | ~(diagonal | rises), rises & diagonal
        distance += bool(right & last) - bool(left & last)
        right = right << 1 | 1
        rises = (left << 1 | ~(diagonal | right)) & every
        falls = right & diagonal & every
    return distance


def bleu_counts(answer: str, references: Sequence[str]) -> list[float]:
    """Return what BLEU counts, `BLEU_COUNTS` numbers that add up over answers; NaN without sacrebleu."""
    bleu = _bleu()
    if bleu is None:
        return [float("nan")] * BLEU_COUNTS
    score = bleu.sentence_score(answer, references)
    return [score.sys_len, score.ref_len, *score.counts, *score.totals]


def bleu(counts: Sequence[float]) -> float:
    """Return BLEU, 0 to 100, of added counts; NaN without sacrebleu."""
    bleu = _bleu()
    if bleu is None or any(map(math.isnan, counts)):
        return float("nan")
    length, reference, *rest = map(int, counts)
    score = bleu.compute_bleu(rest[:4], rest[4:], length, reference, smooth_method="exp")
    return float(score.score)


@cache
def _bleu() -> Any:
    with suppress(ImportError):
        return import_module("sacrebleu.metrics").BLEU(effective_order=True)  # else it warns
    return None


def rouge_l(answer: str, references: Sequence[str]) -> float:
    """Return the best F of the longest words in common order; NaN without rouge-score."""
    scorer = _rouge()
    if scorer is None:
        return float("nan")
    return float(scorer.score_multi(references, answer)["rougeL"].fmeasure)


@cache
def _rouge() -> Any:
    with suppress(ImportError):
        return import_module("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=False)
    return None


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


def cider(answers: Sequence[str], references: Sequence[Sequence[str]]) -> Float64Array:
    """Score answers (N,): 0 to 10 each, of which CIDEr is the mean.

    There is one reference at least to each. How rare words are is counted here: in how many of the N
    references they stand.
    """
    counts = [[_counts(one) for one in some] for some in references]
    frequency = Counter(run for some in counts for run in set().union(*some))
    whole = math.log(max(len(answers), 1))
    rarity = {run: whole - math.log(count) for run, count in frequency.items()}
    scores = np.zeros(len(answers))
    for at, (answer, some) in enumerate(zip(answers, counts, strict=True)):
        said = _vector(_counts(answer), rarity, whole)
        likeness = sum(_cosine(said, _vector(one, rarity, whole)) for one in some)
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


def _cosine(said: _Vector, reference: _Vector) -> float:
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
