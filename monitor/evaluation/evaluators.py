"""Interface of the tasks' evaluators, and their table.

An evaluation has three steps: `build_state` turns a shard of images into a state, `merge_states` merges states,
`Evaluator.evaluate` computes metrics from the merged state.
"""

import math
from collections.abc import Iterable, Sequence
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec
import numpy as np

from quadriga.monitor.evaluation.metric_settings import (
    DEFAULT_SETTINGS,
    MetricSettings,
    check_applicable,
)
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    EvaluationState,
    LabelNumbers,
    Table,
    nonzero_counts,
    slice_values,
)
from quadriga.monitor.report.cells import PairedLabels
from quadriga.monitor.report.schema import Confusion, Metric
from quadriga.quoting import quoted
from quadriga.tasks import SHORT_NAMES, full_name
from quadriga.tasks.arrays import Float64Array

EVALUATORS = {
    "IMAGE_CLASSIFICATION": "quadriga.monitor.evaluation.labels.classification:ClassificationEvaluator",
    "OBJECT_DETECTION": "quadriga.monitor.evaluation.objects.detection:DetectionEvaluator",
    "ORIENTED_OBJECT_DETECTION": "quadriga.monitor.evaluation.objects.oriented:OrientedDetectionEvaluator",
    "IMAGE_SEGMENTATION": "quadriga.monitor.evaluation.pixels.segmentation:SegmentationEvaluator",
    "IMAGE_TEXT_TO_TEXT": "quadriga.monitor.evaluation.text.prompts:TextEvaluator",
}
"""Evaluator class of each task: an `Evaluator`, created without arguments."""

_LONGEST_PX = 1 << 31


class Headline(NamedTuple):
    """A headline metric over several weightings of the images.

    A per-label headline supplies the confidence interval of the metric in the details with the same type and
    parameters.
    """

    type: str
    parameters: dict[str, Any]
    values: Float64Array
    """Value for each weighting (B,), NaN if undefined."""
    is_share: bool = False
    """Whether the value is a share of the images, each of which counts as a whole or not at all."""
    upper: float = 1.0
    """Largest possible value; the smallest is 0."""
    noise: Float64Array | None = None
    """For each weighting (B,) the sum of the absolute differences between the terms of a sum of absolute values, and
    those of all images; None for other metrics."""
    trials_per_image: float = math.inf
    """Largest number of independent trials that an image may count as, for the interval."""
    optimistic: Float64Array | None = None
    """For each weighting (B,) the value without labels that only predictions have, which count as wholly wrong in a
    mean over labels; the interval reaches up as far as that of this value. None where there are none."""
    objects_of_one_label: float | None = None
    """Number of objects of one label of which a mean varies as this mean over labels does; None where `objects` is."""
    objects: int | None = None
    """Number of annotated objects that the value is computed from; None where it is not computed from objects."""
    reason: str = ""
    """Reason why there are no values, as in `Metric.reason`; all of them are NaN then."""


class EvaluationDetails(msgspec.Struct, frozen=True):
    """Results of an evaluation beside its headlines."""

    metrics: list[Metric] = []
    curves: dict[str, list[dict[str, Any]]] = {}
    confusion: Confusion | None = None
    pairs: PairedLabels | None = None
    """Pairs that `confusion` counts."""
    confusion_pixels: Confusion | None = None
    """Confusion matrix in pixels, of tasks that compare regions pixel by pixel."""
    errors_tide: dict[str, float | None] = {}
    badness: dict[str, Float64Array] = {}
    """Badness of each image (I,), by reason; 0 is not bad."""
    parameters: dict[str, Any] = {}
    """Thresholds and rules, with the names of the report."""
    excluded: dict[str, int] = {}
    """Number of predictions that do not count, by reason, such as `unseen_label`."""
    warnings: list[str] = []
    """Sentences to read before any number."""
    names_all_labels: bool = False
    """Whether the predictions name all labels that the model has."""


class TaskMetrics(Protocol):
    """Metrics of a merged state; matching and sorting are done once, when it is created."""

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the headlines as if each image occurred as often as its weight says.

        The weights (B, I) are whole numbers, 0 or more: all ones for all images, ones and zeros for a slice,
        counts for a resample of the bootstrap.
        """

    def details(self) -> EvaluationDetails:
        """Compute all other results, over all images."""


class CombinedMetrics:
    """Several `TaskMetrics` of the same images as one, in order."""

    def __init__(self, parts: Sequence[TaskMetrics]) -> None:
        self._parts = parts

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute all headlines."""
        return [headline for metrics in self._parts for headline in metrics.headlines(weights)]

    def details(self) -> EvaluationDetails:
        """Merge all details; of each kind of confusion matrix the first is taken."""
        combined: dict[str, Any] = msgspec.structs.asdict(EvaluationDetails())
        for metrics in self._parts:
            for name, value in msgspec.structs.asdict(metrics.details()).items():
                if isinstance(value, list):
                    combined[name] = combined[name] + value
                elif isinstance(value, dict):
                    combined[name] = combined[name] | value
                else:
                    combined[name] = combined[name] or value
        return EvaluationDetails(**combined)


class Evaluator(Protocol):
    """Evaluation of a task."""

    settings: ClassVar[Sequence[str]]
    """Names of the `MetricSettings` that the task's metrics have."""

    def tables(self, images: Sequence[EvaluatedImage], labels: LabelNumbers) -> dict[str, Table]:
        """Read the predictions and annotations of images, all of which have ground truth.

        The tables, their columns and types are the same for any images, and for none.

        Raises:
            EvaluationError: Predictions or annotations do not fit the task.
        """

    def evaluate(
        self, state: EvaluationState, settings: MetricSettings = DEFAULT_SETTINGS
    ) -> TaskMetrics:
        """Compute the metrics of a merged state, as `merge_states` returns it."""


def load_evaluator(task: str, settings: MetricSettings = DEFAULT_SETTINGS) -> Evaluator:
    """Return the evaluator of a task, named as `OBJECT_DETECTION`, in lower case, or as `detection`.

    Raises:
        EvaluationError: The task has no evaluator, or its metrics do not have one of the chosen settings.
    """
    location = EVALUATORS.get(full_name(task))
    if location is None:
        short_names = (name for name, long in SHORT_NAMES.items() if long in EVALUATORS)
        raise EvaluationError(
            f"expected one of {', '.join([*EVALUATORS, *short_names])} as task, got {quoted(task, 80)}"
        )
    evaluator: Evaluator = resolve_name(location)()
    check_applicable(settings, full_name(task), evaluator.settings)
    return evaluator


def build_state(
    evaluator: Evaluator, images: Iterable[EvaluatedImage], by: Sequence[str]
) -> EvaluationState:
    """Turn a shard of images into a state; images without ground truth are counted as excluded.

    `by` lists the keys to slice by; see `quadriga.monitor.evaluation.state.slice_values`.

    Raises:
        EvaluationError: Predictions or annotations do not fit the task, or an image has an impossible size.
    """
    images = list(images)
    annotated = [image for image in images if bytes(image.ground_truth) != b"null"]
    labels = LabelNumbers()
    tables = evaluator.tables(annotated, labels)
    return EvaluationState(
        ids=[image.id for image in annotated],
        images=[image.id if image.image is None else image.image for image in annotated],
        sizes=np.array([_size(image) for image in annotated], np.int64).reshape(-1, 2),
        slices={name: slice_values(annotated, name) for name in by},
        labels=list(labels),
        tables=tables,
        excluded=nonzero_counts(no_truth=len(images) - len(annotated)),
    )


def find_unreadable(
    evaluator: Evaluator, images: Sequence[EvaluatedImage], by: Sequence[str]
) -> dict[int, EvaluationError]:
    """Return the errors of the images that cannot be turned into a state, by position."""
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
