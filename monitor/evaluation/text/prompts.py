"""Answers to prompts about images: matching them with reference answers, and their metrics."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import ratio
from quadriga.monitor.evaluation.evaluators import EvaluationDetails, Headline, TaskMetrics
from quadriga.monitor.evaluation.metric_settings import DEFAULT_SETTINGS, MetricSettings
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    EvaluationState,
    LabelNumbers,
    Table,
    nonzero_counts,
    read_items,
)
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import Float64Array


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer is one of the references, all normalised, else 0."""
    return float(normalise_text(answer) in map(normalise_text, references))


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Return the best F1 of normalised words with a reference; 1 for two empty texts."""
    words = normalise_text(answer).split()
    return max(_f1(words, normalise_text(reference).split()) for reference in references)


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


def rouge_l(answer: str, references: Sequence[str]) -> float:
    """Return the best F of the longest common subsequence of words; NaN without rouge-score."""
    scorer = _rouge()
    if scorer is None:
        return float("nan")
    return float(scorer.score_multi(references, answer)["rougeL"].fmeasure)


_SCORES = (exact_match, token_f1, vqa_accuracy, anls, rouge_l)
TAU = 0.5
"""Share of differing letters from which ANLS is 0."""
_MEANS: list[tuple[str, dict[str, Any]]] = [
    ("ExactMatch", {"normalisation": "SQuAD"}),
    ("TokenF1", {"normalisation": "SQuAD"}),
    ("VQAAccuracy", {"normalisation": "SQuAD", "rule": "leave one out"}),
    ("ANLS", {"tau": TAU}),
    ("ROUGE-L", {"rule": "F, no stemmer"}),
]
"""Metrics that are means over prompts, in the order of the columns of `scores`."""
_TOKEN_F1, _ANLS, _ROUGE = 1, 3, 4
_TEXT = np.dtypes.StringDType()
_BLEU: dict[str, Any] = {"tokens": "13a", "smoothing": "exp", "most": 100}
_CIDER: dict[str, Any] = {"rule": "CIDEr-D", "frequencies": "all images", "most": 10}


class _PromptAnswer(msgspec.Struct):
    answer: str
    prompt: str = ""


class _ReferenceAnswers(msgspec.Struct):
    prompt: str = ""
    answer: str | None = None
    answers: list[str] | None = None
    label: str | None = None


class TextEvaluator:
    """Evaluates `IMAGE_TEXT_TO_TEXT`.

    The table `questions` has a row for each prompt of the ground truth, with the model's answer, its
    `scores` (N, 5), the counts of BLEU, and the number of `references`; these are in the table of that
    name. `unasked` has a row for each answer of the model to a prompt without ground truth.
    """

    settings: ClassVar = ()

    def tables(self, images: Sequence[EvaluatedImage], _labels: LabelNumbers) -> dict[str, Table]:
        """Read and score answers; see `Evaluator.tables`."""
        prompt_images: list[int] = []
        is_answered: list[bool] = []
        pairs: list[tuple[str, list[str]]] = []
        unasked_images: list[int] = []
        for index, image in enumerate(images):
            predictions = read_items(list[_PromptAnswer], image, "predictions")
            annotations = read_items(list[_ReferenceAnswers], image, "ground_truth")
            matches = match_prompts(
                [item.prompt for item in predictions], [item.prompt for item in annotations]
            )
            for number, (annotation, match) in enumerate(zip(annotations, matches, strict=True)):
                texts = _references(annotation, f"image {image.id!r}: ground_truth[{number}]")
                prompt_images.append(index)
                is_answered.append(match is not None)
                pairs.append(("" if match is None else predictions[match].answer, texts))
            unasked_images += [index] * (len(predictions) - len(matches) + matches.count(None))
        image_index = np.array(prompt_images, np.int64)
        references = np.array([len(texts) for _, texts in pairs], np.int64)
        scores = [[score(*pair) for score in _SCORES] for pair in pairs]
        bleu = [bleu_counts(*pair) for pair in pairs]
        return {
            "questions": {
                "image": image_index,
                "answer": np.array([answer for answer, _ in pairs], _TEXT),
                "answered": np.array(is_answered, bool),
                "references": references,
                "scores": np.array(scores, np.float64).reshape(-1, len(_SCORES)),
                "bleu": np.array(bleu, np.float64).reshape(-1, BLEU_COUNTS),
            },
            "references": {
                "image": np.repeat(image_index, references),
                "text": np.array([text for _, texts in pairs for text in texts], _TEXT),
            },
            "unasked": {"image": np.array(unasked_images, np.int64)},
        }

    def evaluate(
        self, state: EvaluationState, _settings: MetricSettings = DEFAULT_SETTINGS
    ) -> TaskMetrics:
        """Compute metrics of a merged state."""
        return _TextMetrics(state)


class _TextMetrics:
    """Metrics of the answers of a merged state."""

    def __init__(self, state: EvaluationState) -> None:
        self._state = state
        self._questions = state.tables["questions"]
        self._image = self._questions["image"]
        self._scores = self._questions["scores"].copy()
        if np.isnan(self._scores[:, _ROUGE]).any():  # rouge-score was missing for some shards
            self._scores[:, _ROUGE] = np.nan

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute means over prompts, and BLEU, for each weighting (B, I) of the images."""
        means = [
            Headline(kind, parameters, self._mean(self._scores[:, column], weights))
            for column, (kind, parameters) in enumerate(_MEANS)
        ]
        counts = weights @ self._sum_by_image(self._questions["bleu"])
        bleu = np.array([bleu_score(row) for row in counts], np.float64)
        prompt_counts = np.bincount(self._image, minlength=weights.shape[1])
        bleu[weights @ prompt_counts == 0] = np.nan
        cider_headline = Headline(
            "CIDEr", _CIDER, self._mean(self._cider, weights), upper=_CIDER["most"]
        )
        return [
            *means[:-1],
            Headline("BLEU", _BLEU, bleu, upper=_BLEU["most"]),
            means[-1],
            cider_headline,
        ]

    def details(self) -> EvaluationDetails:
        """Compute the badness of each image, that of its worst answer, and count unanswered prompts."""
        scores, answered = self._scores, self._questions["answered"]
        badness = np.zeros(len(self._state.ids))
        best = np.maximum(scores[:, _TOKEN_F1], scores[:, _ANLS])
        np.maximum.at(badness, self._image, 1 - best)
        unasked = len(self._state.tables["unasked"]["image"])
        parameters: dict[str, Any] = {"unanswered": "counts as an empty answer"}
        optional_metrics = ("BLEU", self._questions["bleu"]), ("ROUGE-L", scores[:, _ROUGE])
        if missing := [name for name, columns in optional_metrics if np.isnan(columns).any()]:
            parameters["missing"] = f"{' and '.join(missing)}: pip install 'quadriga[text]'"
        return EvaluationDetails(
            metrics=[
                Metric("Prompts", float(len(answered))),
                Metric("Unanswered", float((~answered).sum())),
            ],
            badness={"wrong_answer": badness},
            parameters=parameters,
            excluded=nonzero_counts(unasked_prompt=unasked),
        )

    def _mean(self, scores: Float64Array, weights: Float64Array) -> Float64Array:
        """Return the means (B,) of scores (N,) of prompts; NaN does not count."""
        is_defined = ~np.isnan(scores)
        sums = np.stack([np.where(is_defined, scores, 0), is_defined], axis=1)
        total, count = (weights @ self._sum_by_image(sums)).T
        return ratio(total, count)

    def _sum_by_image(self, columns: Float64Array) -> Float64Array:
        """Sum the columns (N, C) of prompts by image, (I, C)."""
        images = len(self._state.ids)
        return np.stack([np.bincount(self._image, column, images) for column in columns.T], axis=1)

    @cached_property
    def _cider(self) -> Float64Array:
        split_points = np.cumsum(self._questions["references"])[:-1]
        texts = np.split(self._state.tables["references"]["text"], split_points)
        answers = self._questions["answer"].tolist()
        return cider(
            answers, [texts_of_prompt.tolist() for texts_of_prompt in texts][: len(answers)]
        )


def match_prompts(
    predicted_prompts: Sequence[str], annotated_prompts: Sequence[str]
) -> list[int | None]:
    """Match each prompt of the ground truth with an answer of the model: its position, or None.

    First with the first unused answer to the same prompt; then, in order, with unused answers where the prompt
    is empty on one of the two sides.
    """
    unused = dict.fromkeys(range(len(predicted_prompts)))
    matches: list[int | None] = [None] * len(annotated_prompts)

    def choose(fits: Callable[[str, str], object]) -> None:
        for index, prompt in enumerate(annotated_prompts):
            if matches[index] is not None:
                continue
            match = next(
                (candidate for candidate in unused if fits(prompt, predicted_prompts[candidate])),
                None,
            )
            if match is not None:
                matches[index] = match
                del unused[match]

    choose(lambda prompt, predicted_prompt: prompt and prompt == predicted_prompt)
    choose(lambda prompt, predicted_prompt: not (prompt and predicted_prompt))
    return matches


def _references(annotation: _ReferenceAnswers, location: str) -> list[str]:
    answer = annotation.label if annotation.answer is None else annotation.answer
    references = annotation.answers or ([] if answer is None else [answer])
    if not references:
        raise EvaluationError(f"{location}: answer, answers or label is required")
    return references


BLEU_COUNTS = 10
"""Number of BLEU's counts: lengths of answer and reference, matching and total n-grams of 1 to 4 words."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_text(text: str) -> str:
    """Convert to lower case, and remove ASCII punctuation, English articles and repeated spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _f1(words: list[str], reference: list[str]) -> float:
    if not words or not reference:
        return float(words == reference)
    same = sum((Counter(words) & Counter(reference)).values())
    if not same:
        return 0.0
    precision, recall = same / len(words), same / len(reference)
    return 2 * precision * recall / (precision + recall)


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
