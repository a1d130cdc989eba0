"""Answers to prompts about images: how they meet what people answered, and the numbers over them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import ratio
from quadriga.monitor.evaluation.evaluators import EvaluationDetails, Headline, TaskMetrics
from quadriga.monitor.evaluation.item_tables import read_items
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
    bleu,
    bleu_counts,
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
"""What is a mean over prompts, in the order of the columns of `scores`."""

_TOKEN_F1, _ANLS, _ROUGE = 1, 3, 4
_TEXT = np.dtypes.StringDType()
_BLEU = {"tokens": "13a", "smoothing": "exp", "most": 100}
_CIDER = {"rule": "CIDEr-D", "frequencies": "all images", "most": 10}


class _PromptAnswer(msgspec.Struct):
    answer: str
    prompt: str = ""


class _ReferenceAnswers(msgspec.Struct):
    prompt: str = ""
    answer: str | None = None
    answers: list[str] | None = None
    label: str | None = None


class TextEvaluator:
    """The evaluation of `IMAGE_TEXT_TO_TEXT`.

    The table `questions` has a row for each prompt that people answered, with the model's answer, its
    `scores` (N, 5), what BLEU counts, and how many `references` it has; these follow in the table of that
    name. `unasked` has a row for each answer of the model to a prompt that nobody asked.
    """

    def tables(self, images: Sequence[EvaluatedImage], _labels: LabelNumbers) -> dict[str, Table]:
        """Read answers; see `Evaluator.tables`."""
        asked_at: list[int] = []
        answered: list[bool] = []
        pairs: list[tuple[str, list[str]]] = []
        unasked: list[int] = []
        for at, image in enumerate(images):
            found = read_items(list[_PromptAnswer], image, "predictions")
            there = read_items(list[_ReferenceAnswers], image, "ground_truth")
            chosen = match_prompts([one.prompt for one in found], [one.prompt for one in there])
            asked_at += [at] * len(there)
            answered += [which is not None for which in chosen]
            for number, (truth, which) in enumerate(zip(there, chosen, strict=True)):
                known = _references(truth, f"image {image.id!r}: ground_truth[{number}]")
                pairs.append(("" if which is None else found[which].answer, known))
            unasked += [at] * (len(found) - len(chosen) + chosen.count(None))
        image_at = np.array(asked_at, np.int64)
        references = np.array([len(known) for _, known in pairs], np.int64)
        scores = [[score(*one) for score in _SCORES] for one in pairs]
        bleu = [bleu_counts(*one) for one in pairs]
        return {
            "questions": {
                "image": image_at,
                "answer": np.array([said for said, _ in pairs], _TEXT),
                "answered": np.array(answered, bool),
                "references": references,
                "scores": np.array(scores, np.float64).reshape(-1, len(_SCORES)),
                "bleu": np.array(bleu, np.float64).reshape(-1, BLEU_COUNTS),
            },
            "references": {
                "image": np.repeat(image_at, references),
                "text": np.array([one for _, known in pairs for one in known], _TEXT),
            },
            "unasked": {"image": np.array(unasked, np.int64)},
        }

    def evaluate(self, state: EvaluationState) -> TaskMetrics:
        """Look into a whole state."""
        return _TextMetrics(state)


class _TextMetrics:
    """The answers of a whole state."""

    def __init__(self, state: EvaluationState) -> None:
        self._state = state
        self._questions = state.tables["questions"]
        self._image = self._questions["image"]
        self._scores = self._questions["scores"].copy()
        if np.isnan(self._scores[:, _ROUGE]).any():  # not all shards could
            self._scores[:, _ROUGE] = np.nan

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute means over prompts, and BLEU, for each weighting (B, I) of their images."""
        means = [
            Headline(kind, parameters, self._mean(self._scores[:, at], weights))
            for at, (kind, parameters) in enumerate(_MEANS)
        ]
        counts = weights @ self._added(self._questions["bleu"])
        bleu = np.array([bleu(one) for one in counts], np.float64)
        asked = np.bincount(self._image, minlength=weights.shape[1])
        bleu[weights @ asked == 0] = np.nan
        described = Headline("CIDEr", _CIDER, self._mean(self._cider, weights))
        return [*means[:-1], Headline("BLEU", _BLEU, bleu), means[-1], described]

    def details(self) -> EvaluationDetails:
        """Compute how bad the worst answer to each image is, and count what was left open."""
        scores, answered = self._scores, self._questions["answered"]
        bad = np.zeros(len(self._state.ids))
        best = np.maximum(scores[:, _TOKEN_F1], scores[:, _ANLS])
        np.maximum.at(bad, self._image, 1 - best)
        unasked = len(self._state.tables["unasked"]["image"])
        parameters: dict[str, Any] = {"unanswered": "counts as an empty answer"}
        extra = ("BLEU", self._questions["bleu"]), ("ROUGE-L", scores[:, _ROUGE])
        if missing := [name for name, columns in extra if np.isnan(columns).any()]:
            parameters["missing"] = f"{' and '.join(missing)}: pip install quadriga[text]"
        return EvaluationDetails(
            metrics=[
                Metric("Prompts", float(len(answered))),
                Metric("Unanswered", float((~answered).sum())),
            ],
            badness={"wrong_answer": bad},
            parameters=parameters,
            excluded=nonzero_counts(unasked_prompt=unasked),
        )

    def _mean(self, scores: Float64Array, weights: Float64Array) -> Float64Array:
        """Return the means (B,) of scores (N,) of prompts; those that have none do not count."""
        known = ~np.isnan(scores)
        sums = np.stack([np.where(known, scores, 0), known], axis=1)
        total, count = (weights @ self._added(sums)).T
        return ratio(total, count)

    def _added(self, columns: Float64Array) -> Float64Array:
        """Add up the columns (N, C) of prompts by image: (I, C)."""
        images = len(self._state.ids)
        return np.stack([np.bincount(self._image, one, images) for one in columns.T], axis=1)

    @cached_property
    def _cider(self) -> Float64Array:
        ends = np.cumsum(self._questions["references"])[:-1]
        texts = np.split(self._state.tables["references"]["text"], ends)
        answers = self._questions["answer"].tolist()
        return cider(answers, [one.tolist() for one in texts][: len(answers)])


def match_prompts(found: Sequence[str], asked: Sequence[str]) -> list[int | None]:
    """Tell which answer of a model belongs to each prompt that people answered: positions, or None.

    One with the same prompt, the first that is free; then, in their order, free ones for those prompts
    where one of the two sides names none (is empty).
    """
    free = dict.fromkeys(range(len(found)))
    chosen: list[int | None] = [None] * len(asked)

    def choose(fits: Callable[[str, str], object]) -> None:
        for at, prompt in enumerate(asked):
            if chosen[at] is not None:
                continue
            which = next((one for one in free if fits(prompt, found[one])), None)
            if which is not None:
                chosen[at] = which
                del free[which]

    choose(lambda prompt, other: prompt and prompt == other)
    choose(lambda prompt, other: not (prompt and other))
    return chosen


def _references(truth: _ReferenceAnswers, place: str) -> list[str]:
    one = truth.label if truth.answer is None else truth.answer
    references = truth.answers or ([] if one is None else [one])
    if not references:
        raise EvaluationError(f"{place}: expected answer, answers or label, got none")
    return references
