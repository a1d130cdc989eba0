"""What every task's evaluation offers, and where it stands.

Work is done in three steps: `state_of` turns a shard of images into a state, `merge` puts states together,
`Evaluator.evaluate` looks into the whole.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from quadriga.monitor.evaluation.slicing import slice_values
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    EvaluationState,
    LabelNumbers,
    Table,
    nonzero_counts,
)
from quadriga.monitor.report.schema import Confusion, Metric
from quadriga.store.errors import JSON_ERRORS
from quadriga.tasks import SHORT_NAMES, full_name
from quadriga.tasks.arrays import Float64Array
from quadriga.tasks.references import load

EVALUATORS = {
    "IMAGE_CLASSIFICATION": "quadriga.monitor.evaluation.labels.classification:ClassificationEvaluator",
    "OBJECT_DETECTION": "quadriga.monitor.evaluation.objects.detection:DetectionEvaluator",
    "ORIENTED_OBJECT_DETECTION": "quadriga.monitor.evaluation.objects.oriented:OrientedDetectionEvaluator",
    "IMAGE_SEGMENTATION": "quadriga.monitor.evaluation.pixels.segmentation:SegmentationEvaluator",
    "IMAGE_TEXT_TO_TEXT": "quadriga.monitor.evaluation.text.prompts:TextEvaluator",
}
"""What evaluates a task: a class without arguments that is an `Evaluator`."""

_LONGEST_PX = 1 << 31


class Headline(NamedTuple):
    """One of the numbers that stand above, over several weightings of the images.

    One of a single label lends its interval to the metric of the findings with its type and parameters.
    """

    type: str
    parameters: dict[str, Any]
    values: Float64Array
    """(B,) one for each weighting, NaN where undefined."""


class EvaluationDetails(msgspec.Struct, frozen=True):
    """All that is to be said about a whole state, beside its headlines."""

    metrics: list[Metric] = []
    curves: dict[str, list[dict[str, Any]]] = {}
    confusion: Confusion | None = None
    confusion_pixels: Confusion | None = None
    """Where regions are compared pixel by pixel, too."""
    errors_tide: dict[str, float | None] = {}
    badness: dict[str, Float64Array] = {}
    """(I,) how bad each image is, by reason; 0 is not bad."""
    parameters: dict[str, Any] = {}
    """Thresholds and rules, as the report names them."""
    excluded: dict[str, int] = {}
    """Predictions that do not count, by reason, such as `unseen_label`."""


class TaskMetrics(Protocol):
    """A whole state, looked into once."""

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the headlines as if each image were there so many times.

        The weights (B, I) are whole numbers, 0 or more: all ones for the whole, ones and zeros for a slice,
        counts for a resample of the bootstrap.
        """

    def details(self) -> EvaluationDetails:
        """Compute everything else, over all images."""


class CombinedMetrics:
    """Evaluations of the same images as one `Evaluated`; what is first stands first."""

    def __init__(self, parts: Sequence[TaskMetrics]) -> None:
        self._parts = parts

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the headlines of all parts."""
        return [headline for metrics in self._parts for headline in metrics.headlines(weights)]

    def details(self) -> EvaluationDetails:
        """Put the findings of all parts together; of each kind of confusion there is the first."""
        combined = EvaluationDetails()
        for metrics in self._parts:
            details = metrics.details()
            combined = EvaluationDetails(
                combined.metrics + details.metrics,
                combined.curves | details.curves,
                combined.confusion or details.confusion,
                combined.confusion_pixels or details.confusion_pixels,
                combined.errors_tide | details.errors_tide,
                combined.badness | details.badness,
                combined.parameters | details.parameters,
                combined.excluded | details.excluded,
            )
        return combined


class Evaluator(Protocol):
    """The evaluation of a task."""

    def tables(self, images: Sequence[EvaluatedImage], labels: LabelNumbers) -> dict[str, Table]:
        """Read the predictions and truths of images, all of which have a truth.

        The tables and their columns, with their types, are the same for any images, none included.

        Raises:
            EvaluationError: They are not of this task.
        """

    def evaluate(self, state: EvaluationState) -> TaskMetrics:
        """Look into a whole state, as `merge` returns it."""


def load_evaluator(task: str) -> Evaluator:
    """Return the evaluation of a task, given as `OBJECT_DETECTION`, in lower case, or as `detection`.

    Raises:
        EvaluationError: There is none.
    """
    location = EVALUATORS.get(full_name(task))
    if location is None:
        short_names = (name for name, long in SHORT_NAMES.items() if long in EVALUATORS)
        raise EvaluationError(
            f"expected one of {', '.join([*EVALUATORS, *short_names])} as task, got {task!r:.80}"
        )
    evaluator: Evaluator = load(location)()
    return evaluator


def build_state(
    evaluator: Evaluator, images: Iterable[EvaluatedImage], by: Sequence[str]
) -> EvaluationState:
    """Turn a shard of images into a state; those without a truth are counted as excluded.

    `by` says what is to be sliced by; see `quadriga.monitor.evaluation.slicing`.

    Raises:
        EvaluationError: They are not of this task, or of no size that an image can have.
    """
    images = list(images)
    annotated = [image for image in images if bytes(image.ground_truth) != b"null"]
    labels = LabelNumbers()
    tables = evaluator.tables(annotated, labels)
    return EvaluationState(
        [image.id for image in annotated],
        [image.id if image.image is None else image.image for image in annotated],
        np.array([_size(image) for image in annotated], np.int64).reshape(-1, 2),
        {name: slice_values(annotated, name) for name in by},
        list(labels),
        tables,
        nonzero_counts(no_truth=len(images) - len(annotated)),
    )


def find_unreadable(
    evaluator: Evaluator, images: Sequence[EvaluatedImage], by: Sequence[str]
) -> dict[int, EvaluationError]:
    """Return, by their positions, what is wrong with the images that are no state alone."""
    errors = {}
    for index, image in enumerate(images):
        try:
            build_state(evaluator, [image], by)
        except EvaluationError as error:
            errors[index] = error
    return errors


def _size(image: EvaluatedImage) -> tuple[int, int]:
    width, height = image.width or 0, image.height or 0
    if not (0 <= width < _LONGEST_PX and 0 <= height < _LONGEST_PX):
        raise EvaluationError(
            f"image {image.id!r}: expected width and height of 0 to {_LONGEST_PX} pixels,"
            f" got {width} and {height}"
        )
    return width, height


_decoder = cache(msgspec.json.Decoder)


def decode_json(type_: Any, text: bytes, location: str) -> Any:
    """Read JSON as something of a type; the message of an `EvaluationError` begins with `where`."""
    try:
        return _decoder(type_).decode(text)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        description = message.replace("Object missing required field ", "expected a field ")
        description = f"{description[:1].lower()}{description[1:]}"
        raise EvaluationError(f"{location}{path.rstrip('`')}: {description}") from error
    except JSON_ERRORS as error:
        raise EvaluationError(f"{location}: expected JSON, got: {error}") from error
