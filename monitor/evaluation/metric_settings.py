"""Settings of metrics: what a request may choose of their thresholds.

They are no part of an evaluation state: it holds every prediction with its score, and every overlap, so that the same
state has the numbers of any settings.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quadriga.monitor.evaluation.state import EvaluationError

MAX_VALUES = 10
"""Maximum number of values of a setting; COCO has ten match thresholds."""

_DECIMALS = 4
"""Maximum number of decimals, so that names of metrics show all of them."""

_Length = Meta(min_length=1, max_length=MAX_VALUES)
TopK = Annotated[tuple[Annotated[int, Meta(ge=1, le=1000)], ...], _Length]
IouThresholds = Annotated[tuple[Annotated[float, Meta(ge=0.1, le=0.99)], ...], _Length]
"""Match thresholds; what overlaps by less than 0.1 is background."""

ScoreThresholds = Annotated[tuple[Annotated[float, Meta(ge=0, le=1)], ...], _Length]
Bins = Annotated[int, Meta(ge=1, le=100)]


class MetricSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Chosen thresholds; None for the defaults of a task, which are those of its reference."""

    top_k: TopK | None = None
    """Ranks `k` of `TopKAccuracy`."""
    iou: IouThresholds | None = None
    """Match thresholds of objects: average precision is the mean over them; the first also decides which predictions
    are right for precision, recall, calibration, the confusion matrix and the kinds of errors."""
    score: ScoreThresholds | None = None
    """Scores from which predictions count for precision, recall and F1; the confusion matrix has the first."""
    bins: Bins | None = None
    """Number of bins of calibration errors."""
    single_label: bool | None = None
    """Whether a classification has one label for each image: those with none or several are left out if so; None: it
    has, if each image does."""

    @property
    def chosen(self) -> dict[str, Any]:
        """Settings that have a value, as a report has them."""
        values = {name: getattr(self, name) for name in MetricSettings.__struct_fields__}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }


DEFAULT_SETTINGS = MetricSettings()


def check_settings(settings: MetricSettings) -> None:
    """Check what the types cannot say: values that occur twice, too many values, or too many decimals.

    Raises:
        EvaluationError: A setting is invalid; the message names it.
    """
    for name, values in settings.chosen.items():
        if not isinstance(values, list):
            continue
        if len(values) > MAX_VALUES:
            raise EvaluationError(
                f"{name}: expected at most {MAX_VALUES} values, got {len(values)}"
            )
        for index, value in enumerate(values):
            if round(value, _DECIMALS) != value:
                raise EvaluationError(f"{name}: expected at most {_DECIMALS} decimals, got {value}")
            if value in values[:index]:
                raise EvaluationError(f"{name}: expected each value once, got {value} twice")


def check_applicable(settings: MetricSettings, task: str, applicable: Sequence[str]) -> None:
    """Check that the metrics of a task have the chosen settings.

    Raises:
        EvaluationError: A setting is of other tasks.
    """
    for name in settings.chosen:
        if name not in applicable:
            raise EvaluationError(
                f"{name} is no setting of {task}, which has {', '.join(applicable) or 'none'}"
            )


def warn_unused(settings: MetricSettings, names: Sequence[str], reason: str) -> list[str]:
    """Return a warning that names those of the chosen settings that change nothing; none if there are none."""
    unused = [name for name in names if name in settings.chosen]
    verb = "has" if len(unused) == 1 else "have"
    return [f"{' and '.join(unused)} {verb} no effect: {reason}"] if unused else []
