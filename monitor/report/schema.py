"""What an evaluation or a drift report says: one shape for both, as JSON."""

import secrets
import time
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Literal

import msgspec


class ReportedModel(msgspec.Struct, frozen=True):
    """The model whose answers were looked at."""

    name: str = ""
    version: str = ""
    sha256: str = ""


class Window(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """What was looked at."""

    start: str | None = None
    """RFC 3339, UTC, of the oldest; None where nothing says when."""
    end: str | None = None
    n: int = 0
    """Images that count."""
    n_eff: float | None = None
    """How many independent ones they are worth; None where that does not matter."""
    filter: Any = None
    """As of a query."""


class Data(msgspec.Struct, frozen=True):
    """What was looked at, and what was left out."""

    current: Window
    baseline: Window | None = None
    excluded: dict[str, int] = {}
    """Images or predictions that do not count, by reason, such as `no_truth`."""


class Metric(msgspec.Struct, frozen=True):
    """One number, in Valor's form: what it is, its value, and what it is taken over."""

    type: str
    value: float | None
    """None where it is undefined: there is nothing to find, or nothing was found."""
    parameters: dict[str, Any] = {}
    ci95: tuple[float | None, float | None] | None = None
    """Of a bootstrap over images; None where none was asked for."""
    n: int | None = None
    """Images, objects or pixels that it is taken over; `parameters` say which if it is not images."""


class Example(msgspec.Struct, frozen=True):
    """A pair of truth and prediction behind a cell of the confusion matrix; None is the background."""

    truth: str | None
    predicted: str | None
    inference_id: str
    ground_truth_id: str | None = None
    prediction_id: str | None = None
    """Both ids: positions in what the image has."""


class Confusion(msgspec.Struct, frozen=True):
    """What was taken for what."""

    labels: list[str] = []
    matrix: list[list[int]] = []
    """Truth by row, prediction by column."""
    hallucinations: dict[str, int] = {}
    """Predictions by label where nothing is."""
    misses: dict[str, int] = {}
    """Objects by label that nothing found."""
    examples: list[Example] = []
    parameters: dict[str, Any] = {}


TIME_SLICES = {"hour": slice(11, 13), "day": slice(0, 10), "month": slice(0, 7)}
"""What is sliced by beside metadata: parts of an RFC 3339 time in UTC."""


class Slice(msgspec.Struct, frozen=True):
    """The headlines over a part of the images."""

    by: str
    value: str | None
    n: int
    metrics: list[Metric]


class Worst(msgspec.Struct, frozen=True):
    """An image to look at."""

    inference_id: str
    reason: str
    score: float
    """How bad it is, larger is worse; comparable within one reason."""
    image: str | None = None
    """Hash of the image, or its place."""
    width: int | None = None
    height: int | None = None
    predictions: Any = []
    """In the form of the wire, to be drawn."""
    ground_truth: Any = []


class Comparison(msgspec.Struct, frozen=True):
    """Another model on the same images: its headlines there, and the model's less its."""

    model: ReportedModel
    n: int
    """Images that both answered."""
    metrics: list[Metric]
    differences: list[Metric]
    """The model's less this one's; `ci95` pairs the images."""
    excluded: dict[str, int] = {}
    """Images and answers of either that do not count here, by reason, such as `not_answered`."""


class Effect(msgspec.Struct, frozen=True):
    """How large a change is, in a unit that does not grow with the number of images."""

    name: str
    value: float | None
    minimum: float
    """Smaller ones raise no alarm."""


class Histogram(msgspec.Struct, frozen=True):
    """How often each value was seen."""

    edges: list[float | str] = []
    """Of the bins, one more than there are; the outer bins hold all beyond. Of a category: its labels."""
    baseline: list[int] = []
    current: list[int] = []


class Divergence(msgspec.Struct, frozen=True):
    """A distance that never raises an alarm, and what it would be on average if nothing had changed."""

    value: float
    expected: float


class Signal(msgspec.Struct, frozen=True):
    """One column, compared."""

    name: str
    kind: Literal["numeric", "count", "categorical", "embedding"]
    test: str
    """`ks`, `chi_square`, `energy` or `mmd`."""
    effect: Effect
    n: tuple[int, int]
    """Values of baseline and current that were compared."""
    statistic: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    """For all signals of the window and all windows of a day; None where the values say too little."""
    alarm: bool = False
    status: Literal["ok", "low_power", "insufficient"] = "ok"
    """`low_power`: only large changes can be seen. `insufficient`: none can."""
    reason: str = ""
    """Why it is insufficient."""
    n_eff: tuple[float, float] = (0.0, 0.0)
    """How many independent values each side is worth."""
    units: Literal["rows", "blocks", "groups"] = "rows"
    """What was taken as independent: values, blocks of a source, or sources."""
    histogram: Histogram = msgspec.field(default_factory=Histogram)
    new_labels: list[str] = []
    """That the baseline has not."""
    psi: Divergence | None = None
    js: Divergence | None = None


def sorted_by_effect(signals: Iterable[Signal]) -> list[Signal]:
    """Return alarms first, then by how many times the least effect that matters they moved."""
    return sorted(signals, key=lambda one: (one.alarm, effect_ratio(one)), reverse=True)


def effect_ratio(signal: Signal) -> float:
    """Return how many times the least effect that matters a signal moved."""
    return (signal.effect.value or 0.0) / (signal.effect.minimum or 1.0)


class Neighbour(msgspec.Struct, frozen=True):
    """An image of the baseline that is like one of the window."""

    inference_id: str
    distance: float
    image: str | None = None
    width: int | None = None
    height: int | None = None
    predictions: Any = []


class Unlike(msgspec.Struct, frozen=True):
    """An image of the window that is least like the baseline, beside what is nearest to it there."""

    inference_id: str
    score: float
    """Its semantic score: the share of the baseline that is as far from the rest, or farther."""
    image: str | None = None
    width: int | None = None
    height: int | None = None
    predictions: Any = []
    nearest: list[Neighbour] = []
    """Nearest first."""


class PastSignal(msgspec.Struct, frozen=True):
    """What a signal was in a window."""

    p_adjusted: float | None
    effect: float | None
    alarm: bool
    status: Literal["ok", "low_power", "insufficient"]


class PastWindow(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """A window that was compared with the same baseline."""

    start: str | None
    """RFC 3339, UTC."""
    end: str | None
    n: int
    status: Literal["ok", "drift", "insufficient", "error"]
    report: str
    """Id of its report."""
    signals: dict[str, PastSignal] = {}


class Picture(msgspec.Struct, frozen=True):
    """A drawing that belongs to a report."""

    name: str
    path: str


class Report(msgspec.Struct, frozen=True):
    """One report."""

    kind: Literal["evaluation", "drift"]
    task: str
    data: Data
    schema: str = "report/1"
    id: str = msgspec.field(default_factory=lambda: f"{time.time_ns():019d}-{secrets.token_hex(2)}")
    created: str = ""
    """RFC 3339, UTC."""
    status: Literal["ok", "drift", "insufficient", "error"] = "ok"
    model: ReportedModel = ReportedModel()
    parameters: dict[str, Any] = {}
    metrics: list[Metric] = []
    signals: list[Signal] = []
    curves: dict[str, list[dict[str, Any]]] = {}
    """By kind, such as `pr`, `roc`, `reliability`."""
    confusion: Confusion | None = None
    confusion_pixels: Confusion | None = None
    """Of a segmentation, in pixels instead of objects."""
    errors_tide: dict[str, float | None] = {}
    slices: list[Slice] = []
    worst: list[Worst] = []
    comparisons: list[Comparison] = []
    unlike: list[Unlike] = []
    """The least like first."""
    history: list[PastWindow] = []
    """Windows before this one, oldest first, and this one."""
    pictures: list[Picture] = []
    provenance: dict[str, Any] = {}


def provenance(started: float) -> dict[str, Any]:
    """Return what made a report, begun at a time of `time.monotonic`."""
    return {
        "code": version("quadriga"),
        "libs": {name: version(name) for name in ("numpy", "scipy")},
        "duration_s": round(time.monotonic() - started, 3),
    }
