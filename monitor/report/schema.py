"""Contents of evaluation and drift reports: one JSON form for both."""

import secrets
import time
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Literal

import msgspec

from quadriga.store.records.records import ModelReference


class ReportedModel(msgspec.Struct, frozen=True):
    """The model whose predictions a report is about."""

    name: str = ""
    version: str = ""
    sha256: str = ""
    is_pooled: bool = False
    """Whether an evaluation counts predictions of several versions, or of several files of one, together."""


class Window(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """The images that one side of a report covers."""

    start: str | None = None
    """Time of the oldest image, RFC 3339, UTC; None if no image has a time."""
    end: str | None = None
    n: int = 0
    """Number of images that count."""
    n_eff: float | None = None
    """Effective sample size; None where it does not matter."""
    filter: Any = None
    """Filter that selected the images, in the form of a query's."""


class Data(msgspec.Struct, frozen=True):
    """The images that a report covers, and what was excluded."""

    current: Window
    baseline: Window | None = None
    excluded: dict[str, int] = {}
    """Number of images or predictions that do not count, by reason, such as `no_truth`."""


class Metric(msgspec.Struct, frozen=True):
    """One number in Valor's form: its type, value and parameters."""

    type: str
    value: float | None
    """None if undefined: there are no objects to find, or no predictions."""
    parameters: dict[str, Any] = {}
    ci95: tuple[float | None, float | None] | None = None
    """95 % interval; None where there is none, for `ci_reason`, or without resamples."""
    n: int | None = None
    """Number of images, objects or pixels it is computed from; `parameters` name the unit if it is not images."""
    ci_method: str | None = None
    """`exact`, of a share of images; `bootstrap`, of resampled images; `conservative`, which holds more than 95 %."""
    ci_reason: str = ""
    """Reason why there is no interval, such as `fewer than 30 images`."""
    reason: str = ""
    """Reason why a metric that these images could have has no value, such as scores that are not stored."""


class Example(msgspec.Struct, frozen=True):
    """A pair of annotation and prediction behind a cell of the confusion matrix; None is the background."""

    truth: str | None
    predicted: str | None
    inference_id: str
    ground_truth_id: str | None = None
    prediction_id: str | None = None
    """Both ids are positions in the image's lists of annotations and predictions."""


class Confusion(msgspec.Struct, frozen=True):
    """Confusion matrix."""

    labels: list[str] = []
    matrix: list[list[int]] = []
    """Counts, with the true label by row and the predicted label by column."""
    hallucinations: dict[str, int] = {}
    """Number of predictions without an object, by label."""
    misses: dict[str, int] = {}
    """Number of objects without a prediction, by label."""
    examples: list[Example] = []
    parameters: dict[str, Any] = {}


TIME_SLICES = {"hour": slice(11, 13), "day": slice(0, 10), "month": slice(0, 7)}
"""Slices by time: the characters of an RFC 3339 time, in UTC, that name each hour, day or month."""


class Slice(msgspec.Struct, frozen=True):
    """The headlines over the images that share one value."""

    by: str
    value: str | None
    n: int
    metrics: list[Metric]


class Worst(msgspec.Struct, frozen=True):
    """An image to look at."""

    inference_id: str
    reason: str
    score: float
    """Badness of the image, larger is worse; comparable within one reason."""
    image: str | None = None
    """Hash of the image, or its path."""
    width: int | None = None
    height: int | None = None
    predictions: Any = []
    """Predictions in the form of the wire, to be drawn."""
    ground_truth: Any = []
    created_at: str | None = None
    """Time of the inference, RFC 3339, UTC; None in a report before 0.2."""


class ComparedSlice(msgspec.Struct, frozen=True):
    """How far two models differ over the images that share one value."""

    by: str
    value: str | None
    n: int
    """Number of these images that both models have predictions for."""
    differences: list[Metric]
    metrics: list[Metric] = []
    """Headlines of the other model on these images."""


class Comparison(msgspec.Struct, frozen=True):
    """Another model on the same images: its headlines, and how far the report's model differs."""

    model: ReportedModel
    n: int
    """Number of images that both models have predictions for."""
    metrics: list[Metric]
    differences: list[Metric]
    """Headlines of the report's model minus those of this one; `ci95` pairs the images."""
    excluded: dict[str, int] = {}
    """Number of images and predictions of either model that do not count here, by reason, such as `not_answered`."""
    slices: list[ComparedSlice] = []
    """The differences by slice; those of a report before 0.2 have none."""


class Effect(msgspec.Struct, frozen=True):
    """How large a change is, in a unit that does not grow with the number of images."""

    name: str
    value: float | None
    minimum: float
    """Smallest effect that matters: smaller ones raise no alarm."""


class Histogram(msgspec.Struct, frozen=True):
    """Frequencies of a signal's values on both sides."""

    edges: list[float | str] = []
    """Edges of the bins, one more than bins; the outer bins hold all values beyond. For categories: the labels."""
    baseline: list[int] = []
    current: list[int] = []


class Divergence(msgspec.Struct, frozen=True):
    """A distance between the sides that never raises an alarm, beside its mean if nothing had changed."""

    value: float
    expected: float


class Level(msgspec.Struct, frozen=True):
    """Mean and range of a numeric signal on one side, in its unit."""

    mean: float
    low: float
    """10th percentile."""
    high: float
    """90th percentile."""


class Begin(msgspec.Struct, frozen=True):
    """Place within the window where a signal changed, about."""

    row: int
    """Number of rows of the window before the change; 0 if it begins with the window."""
    end: int | None
    """Number of rows up to the end of the change; None if it lasts until the window ends."""
    n: int
    """Number of rows of the window."""
    effect: float
    """Effect in the changed part alone."""
    before: float | None = None
    """Mean of the window's other values, or the share of `label` among them; None for embeddings, and for a spread."""
    after: float | None = None
    """Mean of the values of the changed part, or the share of `label` among them."""
    label: str | None = None
    """Label whose share changed most."""
    at: str | None = None
    """Time of the first changed row, RFC 3339, UTC; None where rows have none."""
    until: str | None = None
    """Time of the last changed row, if the change ends within the window."""


class Signal(msgspec.Struct, frozen=True):
    """A column of values, compared between baseline and current window."""

    name: str
    kind: Literal["numeric", "count", "categorical", "embedding"]
    test: str
    """`ks`, `chi_square`, `energy` or `mmd`."""
    effect: Effect
    n: tuple[int, int]
    """Number of values compared: baseline, current."""
    statistic: float | None = None
    p: float | None = None
    p_part: float | None = None
    """P-value of the part of the window that changed most, corrected for all parts; None in too short a window."""
    p_adjusted: float | None = None
    """P-value corrected for the parts, all signals of the window and all windows of a day; None with too few values."""
    alarm: bool = False
    status: Literal["ok", "low_power", "insufficient"] = "ok"
    """`low_power`: only large changes can be detected. `insufficient`: none can."""
    reason: str = ""
    """Reason for the status `insufficient`."""
    n_eff: tuple[float, float] = (0.0, 0.0)
    """Effective sample size: baseline, current."""
    units: Literal["rows", "blocks", "groups"] = "rows"
    """Exchangeable unit of the test: values, blocks of a source, or sources."""
    histogram: Histogram = msgspec.field(default_factory=Histogram)
    new_labels: list[str] = []
    """Labels of the current window that the baseline lacks."""
    psi: Divergence | None = None
    js: Divergence | None = None
    before: Level | None = None
    """Level in the baseline; None for labels and embeddings."""
    after: Level | None = None
    """Level in the current window."""
    shift: float | None = None
    """Mean distance that values moved, in the unit of the signal; None for labels and embeddings."""
    min_shift: float | None = None
    """Smallest `shift` that raises an alarm."""
    began: Begin | None = None
    """Place within the window where it changed; None if the window is all alike, or nothing moved."""
    moved: bool | None = None
    """Whether a signal with too few independent values would have an alarm if its values were independent; None in a
    report before 0.3, and where there are enough."""


def sorted_by_effect(signals: Iterable[Signal]) -> list[Signal]:
    """Sort signals: alarms first, then by `effect_ratio`, falling."""
    return sorted(signals, key=lambda signal: (signal.alarm, effect_ratio(signal)), reverse=True)


def effect_ratio(signal: Signal) -> float:
    """Return the effect of a signal as a multiple of its minimum."""
    return (signal.effect.value or 0.0) / (signal.effect.minimum or 1.0)


class Neighbour(msgspec.Struct, frozen=True):
    """A baseline image that resembles an image of the window."""

    inference_id: str
    distance: float
    image: str | None = None
    width: int | None = None
    height: int | None = None
    predictions: Any = []
    created_at: str | None = None
    """Time of the inference, RFC 3339, UTC; None in a report before 0.2."""


class Unlike(msgspec.Struct, frozen=True):
    """An image of the window that is least like the baseline, with its nearest baseline images."""

    inference_id: str
    score: float
    """Semantic score: the share of references that are at least as far from the others."""
    image: str | None = None
    width: int | None = None
    height: int | None = None
    predictions: Any = []
    nearest: list[Neighbour] = []
    """Nearest baseline images, nearest first."""
    created_at: str | None = None
    """Time of the inference, RFC 3339, UTC; None in a report before 0.2."""


class ChangedImage(msgspec.Struct, frozen=True):
    """An image that shows what changed, or how it used to be."""

    inference_id: str
    value: float | str | None = None
    """Value of the signal; None for embeddings."""
    image: str | None = None
    width: int | None = None
    height: int | None = None
    predictions: Any = []
    created_at: str | None = None
    """Time of the inference, RFC 3339, UTC; None in a report before 0.2."""


class ChangedImages(msgspec.Struct, frozen=True):
    """Images of a signal with an alarm."""

    signal: str
    current: list[ChangedImage]
    """Images of the window that show the change, the clearest first."""
    baseline: list[ChangedImage]
    """Usual images of the baseline."""


class PastSignal(msgspec.Struct, frozen=True):
    """Result of one signal in an earlier window."""

    p_adjusted: float | None
    effect: float | None
    alarm: bool
    status: Literal["ok", "low_power", "insufficient"]


class PastWindow(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """An earlier window that was compared with the same baseline."""

    start: str | None
    """Time of the oldest image, RFC 3339, UTC."""
    end: str | None
    n: int
    status: Literal["ok", "drift", "insufficient", "error"]
    report: str
    """Id of the window's report."""
    signals: dict[str, PastSignal] = {}


class Picture(msgspec.Struct, frozen=True):
    """A picture file that belongs to a report."""

    name: str
    path: str


class Report(msgspec.Struct, frozen=True):
    """Report of an evaluation or of a drift comparison."""

    kind: Literal["evaluation", "drift"]
    task: str
    data: Data
    schema: str = "report/1"
    id: str = msgspec.field(default_factory=lambda: f"{time.time_ns():019d}-{secrets.token_hex(2)}")
    created: str = ""
    """RFC 3339, UTC."""
    status: Literal["ok", "drift", "insufficient", "error"] = "ok"
    model: ReportedModel = ReportedModel()
    warnings: list[str] = []
    """Caveats of the numbers, a sentence each."""
    parameters: dict[str, Any] = {}
    metrics: list[Metric] = []
    signals: list[Signal] = []
    curves: dict[str, list[dict[str, Any]]] = {}
    """Curves by kind, such as `pr`, `roc`, `reliability`."""
    confusion: Confusion | None = None
    confusion_pixels: Confusion | None = None
    """Confusion matrix of a segmentation, in pixels instead of objects."""
    errors_tide: dict[str, float | None] = {}
    slices: list[Slice] = []
    worst: list[Worst] = []
    comparisons: list[Comparison] = []
    unlike: list[Unlike] = []
    """Images least like the baseline, the most unlike first."""
    unlike_share: float | None = None
    """Share of the window's images with a semantic score of 0.05 or less; None without embeddings."""
    changed: list[ChangedImages] = []
    """Images of the signals with an alarm, in the order of their effects."""
    history: list[PastWindow] = []
    """Earlier windows, oldest first, and this one."""
    pictures: list[Picture] = []
    provenance: dict[str, Any] = {}


def reported_model(
    name: str, chosen_version: str | None, models: Iterable[ModelReference] = ()
) -> ReportedModel:
    """Return a model with all of its versions that answered, and the hash of its file if there was only one.

    Args:
        name: Name of the model.
        chosen_version: Version that is reported if none answered.
        models: Models that answered.
    """
    models = set(models)
    versions = sorted({model.version for model in models}) or [chosen_version or ""]
    digests = {model.sha256 for model in models}
    digest = digests.pop() if len(digests) == 1 else ""
    return ReportedModel(name, ", ".join(versions), digest)


def provenance(started_s: float) -> dict[str, Any]:
    """Return versions and duration for a report whose work began at this time of `time.monotonic`."""
    return {
        "code": version("quadriga"),
        "libs": {name: version(name) for name in ("numpy", "scipy")},
        "duration_s": round(time.monotonic() - started_s, 3),
    }
