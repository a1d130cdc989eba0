"""Agreement of answers with reference answers: metrics of texts.

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
"""Share of differing letters from which ANLS is 0."""

BLEU_COUNTS = 10
"""Number of BLEU's counts: lengths of answer and reference, matching and total n-grams of 1 to 4 words."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_text(text: str) -> str:
    """Convert to lower case, and remove ASCII punctuation, English articles and repeated spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer is one of the references, all normalised, else 0."""
    return float(normalise_text(answer) in map(normalise_text, references))


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Return the best F1 of normalised words with a reference; 1 for two empty texts."""
    words = normalise_text(answer).split()
    return max(_f1(words, normalise_text(reference).split()) for reference in references)


def _f1(words: list[str], reference: list[str]) -> float:
    if not words or not reference:
        return float(words == reference)
    same = sum((Counter(words) & Counter(reference)).values())
    if not same:
        return 0.0
    precision, recall = same / len(words), same / len(reference)
    return 2 * precision * recall / (precision + recall)


def vqa_accuracy(answer: str, references: Sequence[str]) -> float:
    """Return the VQA accuracy: with one person left out, a third per person who gave the same answer, at most 1.

    The result is the mean over the person left out, after normalisation; NaN if only one person answered.
    """
    if len(references) < 2:
        return float("nan")
    normalised = normalise_text(answer)
    same = [normalise_text(reference) == normalised for reference in references]
    agreeing = sum(same)
    return sum(min((agreeing - reference) / 3, 1) for reference in same) / len(same)


def anls(answer: str, references: Sequence[str]) -> float:
    """Return the best normalised Levenshtein similarity, in lower case with single spaces; see `TAU`."""
    lowered = " ".join(answer.lower().split())
    return max(
        _similarity(lowered, " ".join(reference.lower().split())) for reference in references
    )


def _similarity(first: str, second: str) -> float:
    longest = max(len(first), len(second))
    if not longest:
        return 1.0
    if abs(len(first) - len(second)) / longest >= TAU:
        return 0.0
    distance_ratio = levenshtein(first, second) / longest
    return 1 - distance_ratio if distance_ratio < TAU else 0.0


def levenshtein(first: str, second: str) -> int:
    """Count the letters to insert, delete and replace to turn one text into another.

    A column of the distance table is two bit vectors: where the distance rises and where it falls.

    Source: Myers, "A Fast Bit-Vector Algorithm for Approximate String Matching", in Hyyrö's form.
    """
    if not first:
        return len(second)
    position_bits: dict[str, int] = {}
    for index, letter in enumerate(first):
        position_bits[letter] = position_bits.get(letter, 0) | 1 << index
    all_bits, last_bit = (1 << len(first)) - 1, 1 << (len(first) - 1)
    rises, falls, distance = all_bits, 0, len(first)
    for letter in second:
        same = position_bits.get(letter, 0)
        diagonal = (((same & rises) + rises) ^ rises) | same | falls
        horizontal_rises, horizontal_falls = falls | ~(diagonal | rises), rises & diagonal
        distance += bool(horizontal_rises & last_bit) - bool(horizontal_falls & last_bit)
        horizontal_rises = horizontal_rises << 1 | 1
        rises = (horizontal_falls << 1 | ~(diagonal | horizontal_rises)) & all_bits
        falls = horizontal_rises & diagonal & all_bits
    return distance


def bleu_counts(answer: str, references: Sequence[str]) -> list[float]:
    """Return BLEU's counts, `BLEU_COUNTS` numbers that can be summed over answers; NaN without sacrebleu."""
    bleu = _bleu()
    if bleu is None:
        return [float("nan")] * BLEU_COUNTS
    score = bleu.sentence_score(answer, references)
    return [score.sys_len, score.ref_len, *score.counts, *score.totals]


def bleu_score(counts: Sequence[float]) -> float:
    """Return BLEU, 0 to 100, of summed counts; NaN without sacrebleu."""
    bleu = _bleu()
    if bleu is None or any(map(math.isnan, counts)):
        return float("nan")
    length, reference, *rest = map(int, counts)
    score = bleu.compute_bleu(rest[:4], rest[4:], length, reference, smooth_method="exp")
    return float(score.score)


@cache
def _bleu() -> Any:
    with suppress(ImportError):
        return import_module("sacrebleu.metrics").BLEU(
            effective_order=True
        )  # without it sacrebleu warns
    return None


def rouge_l(answer: str, references: Sequence[str]) -> float:
    """Return the best F of the longest common subsequence of words; NaN without rouge-score."""
    scorer = _rouge()
    if scorer is None:
        return float("nan")
    return float(scorer.score_multi(references, answer)["rougeL"].fmeasure)


@cache
def _rouge() -> Any:
    with suppress(ImportError):
        return import_module("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=False)
    return None


_MAX_WORDS = 4
"""Maximum length of n-grams, in words."""

_SIGMA = 6.0
"""Standard deviation of the length penalty, in pairs of words."""

_WORD = re.compile(r"\w+")

_Counts = Counter[tuple[str, ...]]


class _Vector(NamedTuple):
    weights: dict[tuple[str, ...], float]
    norms: list[float]
    """Norms of the weights of n-grams of 1 to 4 words."""
    length: int
    """Length of the text in pairs of words, as the reference program counts it."""


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return _WORD.findall(text.lower())


def cider(answers: Sequence[str], references: Sequence[Sequence[str]]) -> Float64Array:
    """Return scores of answers (N,), 0 to 10; CIDEr is their mean.

    Each answer has at least one reference. Inverse document frequencies are counted here: for how many of the
    N answers the references contain an n-gram.
    """
    counts = [[_counts(text) for text in texts] for texts in references]
    frequency = Counter(
        run for reference_counts in counts for run in set().union(*reference_counts)
    )
    log_count = math.log(max(len(answers), 1))
    rarity = {run: log_count - math.log(count) for run, count in frequency.items()}
    scores = np.zeros(len(answers))
    for index, (answer, reference_counts) in enumerate(zip(answers, counts, strict=True)):
        answer_vector = _vector(_counts(answer), rarity, log_count)
        similarity = sum(
            _cosine(answer_vector, _vector(reference, rarity, log_count))
            for reference in reference_counts
        )
        scores[index] = 10 * similarity / _MAX_WORDS / len(reference_counts)
    return scores


def _counts(text: str) -> _Counts:
    text_words = words(text)
    return Counter(
        tuple(text_words[start : start + count])
        for count in range(1, _MAX_WORDS + 1)
        for start in range(len(text_words) - count + 1)
    )


def _vector(counts: _Counts, rarity: dict[tuple[str, ...], float], unseen: float) -> _Vector:
    weights = {run: count * rarity.get(run, unseen) for run, count in counts.items()}
    squares = [0.0] * _MAX_WORDS
    for run, weight in weights.items():
        squares[len(run) - 1] += weight**2
    length = sum(count for run, count in counts.items() if len(run) == 2)
    return _Vector(weights, [math.sqrt(square) for square in squares], length)


def _cosine(answer: _Vector, reference: _Vector) -> float:
    """Return the sum of the clipped cosines of n-grams of 1 to 4 words."""
    common = [0.0] * _MAX_WORDS
    for run, weight in answer.weights.items():
        reference_weight = reference.weights.get(run, 0.0)
        common[len(run) - 1] += min(weight, reference_weight) * reference_weight
    cosine = sum(
        product / (norm * reference_norm)
        for product, norm, reference_norm in zip(common, answer.norms, reference.norms, strict=True)
        if norm and reference_norm
    )
    return cosine * math.exp(-((answer.length - reference.length) ** 2) / (2 * _SIGMA**2))
