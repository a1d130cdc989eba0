"""Parameters of a drift report over stored inferences."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from quadriga.monitor.drift.significance.kernels import Kernel
from quadriga.monitor.spans import moment_us
from quadriga.store.jobs.jobs import EndWebhook
from quadriga.store.query.filters.forms import parse
from quadriga.store.query.filters.syntax import (
    Compare,
    Leaf,
    PlaceCondition,
    PredictionCondition,
    Range,
    ReportCells,
    conjuncts,
    leaves,
)
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import decode_body
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import timestamp_text

MAX_SLICE_KEYS = 20
SOURCE_KEYS = ["camera_id", "stream", "recording"]
DEFAULT_BASELINE = "default"
"""Name of the baseline that is used if none is named."""

_SIGNALS_BY_FIELD = {"answer": ("answer_length",)}
"""Signals that a condition on a field restricts; of other fields the one of the same name."""

_SIGNALS_BY_PROPERTY = {
    "score": ("score", "margin", "entropy"),
    "area": ("area", "mask_share"),
    "cx": ("x",),
    "cy": ("y",),
    "width": ("area", "aspect"),
    "height": ("area", "aspect"),
}
"""Signals that a condition on a property of predictions restricts."""


class StoredWindow(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}
):
    """Inferences of a model within a span of time."""

    start: str | None = None
    """Start of the window, included: RFC 3339 or relative as `-24h`; None: no limit."""
    end: str | None = None
    """End of the window, excluded; None: no limit."""
    version: str | None = None
    """Version of the model; None: all versions together."""
    where: Any = None
    """Filter that inferences must match, as in a query."""


class DriftParameters(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}
):
    """Parameters of a drift report: which window to compare with what, and how."""

    model: str
    version: str | None = None
    where: Any = None
    start: str | None = None
    end: str | None = None
    baseline: str | StoredWindow = DEFAULT_BASELINE
    """Name of a saved baseline of the model, or a window of the same model."""
    signals: list[str] = []
    """Names of the signals to compare; empty: all."""
    ignore: list[str] = []
    """Names of signals to leave out."""
    source_keys: list[str] = msgspec.field(default_factory=SOURCE_KEYS.copy)
    """Metadata keys; the first that any inference has is the source."""
    by: Annotated[list[str], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = []
    """Metadata keys to slice by where there is an alarm; empty: those with the fewest values."""
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    windows: Annotated[int, msgspec.Meta(ge=1, le=1440)] = 1
    """Number of windows per day, which share alpha."""
    kernel: Kernel = "energy"
    seed: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    schedule: str | None = None
    """Interval of the schedule that submitted this report, such as `1h`; its windows form the model's history."""
    webhook: EndWebhook = msgspec.UNSET
    """URL that is called when the job has ended."""

    @property
    def current(self) -> StoredWindow:
        """The window that is compared with the baseline."""
        return StoredWindow(self.start, self.end, self.version, self.where)


def decode_parameters(body: bytes) -> DriftParameters:
    """Decode the parameters of a drift report from JSON; `resolve_times` checks filters and times.

    Raises:
        QueryError: The body cannot be decoded.
    """
    parameters = decode_body(body, DriftParameters)
    if parameters.schedule is not None:
        raise QueryError("expected no schedule: PUT it on the model's /drift-schedule instead")
    return parameters


def with_model_name(parameters: DriftParameters, inferences: InferenceReader) -> DriftParameters:
    """Return parameters with the model under the name that its inferences are stored with.

    Raises:
        NotFoundError: The model, or a model or report of a filter, is not known.
    """
    inferences.check_where(parameters.where)
    if isinstance(parameters.baseline, StoredWindow):
        inferences.check_where(parameters.baseline.where)
    return replace(parameters, model=inferences.names.resolve(parameters.model))


def resolve_times(parameters: DriftParameters, now_us: int) -> DriftParameters:
    """Replace relative times by moments; without an end, the current window ends now.

    Raises:
        QueryError: A filter or a time is invalid, or a window does not start before its end.
    """
    current = replace(parameters.current, end=parameters.end or "now")
    current = fixed_window(parameters.model, current, now_us)
    baseline = parameters.baseline
    if isinstance(baseline, StoredWindow):
        try:
            baseline = fixed_window(parameters.model, baseline, now_us)
        except QueryError as error:
            raise QueryError(f"baseline: {error}") from error
    return replace(parameters, start=current.start, end=current.end, baseline=baseline)


def fixed_window(model: str, window: StoredWindow, now_us: int) -> StoredWindow:
    """Replace the relative times of a window by moments, in milliseconds as in ids.

    Raises:
        QueryError: The filter or a time is invalid, or the window does not start before its end.
    """
    parse(window.where, 0)
    limits = {"from": window.start, "to": window.end}
    moments_us = (moment_us(text, now_us, name) for name, text in limits.items())
    try:
        start, end = (
            None if limit_us is None else timestamp_text(-(-limit_us // 1000))
            for limit_us in moments_us
        )
    except OverflowError as error:
        got = f"{window.start} and {window.end}"
        raise QueryError(f"expected from and to in UTC's years 1 to 9999, got {got}") from error
    resolved = replace(window, start=start, end=end)
    parse(window_filter(model, resolved), 0)
    if start is not None and end is not None and start >= end:
        raise QueryError(f"expected from to be before to, got {start} and {end}")
    return resolved


def window_filter(model: str, window: StoredWindow) -> dict[str, Any]:
    """Return the filter that finds a window of a model."""
    limits = {"ge": window.start, "lt": window.end}
    conditions = [
        {"model": {"eq": model}},
        None if window.version is None else {"version": {"eq": window.version}},
        {"ts": {op: moment for op, moment in limits.items() if moment is not None}}
        if any(limits.values())
        else None,
        window.where,
    ]
    return {"and": [condition for condition in conditions if condition is not None]}


def filter_reasons(names: Iterable[str], baseline: Any, current: Any) -> dict[str, str]:
    """Return why signals say nothing of two windows: a filter, not the world, made their distribution.

    A key with one value says nothing. What both filters restrict alike can be compared, so it is left out only where
    the filters differ in it.

    Args:
        names: Names of signals.
        baseline: Filter of the baseline, in the form of a query's; None for none.
        current: Filter of the current window.
    """
    sides = [{*conjuncts(parse(where, 0))} for where in (baseline, current)]
    differing = sides[0] ^ sides[1]
    restricted = {name for condition in differing for name in _signals_of(leaves(condition))}
    fixed = {
        name
        for condition in sides[0] | sides[1]
        if isinstance(condition, Compare) and condition.operator == "eq"
        for name in _signals_of([condition])
    }
    reasons = dict.fromkeys(restricted, "restricted by the filter, and not alike on both sides")
    reasons |= dict.fromkeys(fixed, "fixed by the filter")
    return {
        name: reasons[field]
        for name in sorted(names)
        for field in (name, *_objects_around(name))
        if field in reasons
    }


def _objects_around(name: str) -> Iterator[str]:
    """Yield the fields that a filter may name in place of a nested key: `meta.place` for `meta.place.floor`."""
    while (name := name.rpartition(".")[0]).count("."):
        yield name


def _signals_of(conditions: Iterable[Leaf]) -> Iterator[str]:
    """Yield the signals whose values conditions restrict."""
    for leaf in conditions:
        if isinstance(leaf, Compare | Range):
            yield from _SIGNALS_BY_FIELD.get(leaf.field, (leaf.field.removeprefix("sig."),))
        elif isinstance(leaf, PlaceCondition):
            yield from ("meta.latitude", "meta.longitude")
        elif isinstance(leaf, ReportCells):
            yield "label"
        elif isinstance(leaf, PredictionCondition):
            yield from ("predictions", *(["label"] if leaf.labels is not None else []))
            for property_, *_ in leaf.bounds:
                yield from _SIGNALS_BY_PROPERTY[property_]
