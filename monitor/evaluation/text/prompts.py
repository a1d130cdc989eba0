"""Answers to prompts about images: matching them with reference answers, and their metrics."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import ratio
from quadriga.monitor.evaluation.evaluators import EvaluationDetails, Headline, TaskMetrics
from quadriga.monitor.evaluation.item_tables import read_items
from quadriga.monitor.evaluation.metric_settings import DEFAULT_SETTINGS, MetricSettings
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    EvaluationState,
    LabelNumbers,
    Table,
    nonzero_counts,
)
from quadriga.monitor.evaluation.text.text_metrics import (
    BLEU_COUNTS,
    TAU,
    anls,
    bleu_counts,
    bleu_score,
    cider,
    exact_match,
    rouge_l,
    token_f1,
    vqa_accuracy,
)
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import Float64Array

_SCORES = (exact_match, token_f1, vqa_accuracy, anls, rouge_l)
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
