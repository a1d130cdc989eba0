"""What is asked of a drift report over stored inferences."""

import re
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from quadriga.monitor.drift.significance.kernels import Kernel
from quadriga.store.errors import QueryError
from quadriga.store.query.filter_errors import unexpected_value
from quadriga.store.query.json_form import parse
from quadriga.store.query.moments import EXPECTED_MOMENT, parse_moment_us
from quadriga.store.query.request import decode_body
from quadriga.store.records import timestamp_text

MAX_SLICE_KEYS = 20
SOURCE_KEYS = ["camera_id", "stream", "recording"]
DEFAULT_BASELINE = "default"
"""Name of the baseline that is meant where none is named."""

DAY_S = 86_400
_SECONDS_BY_UNIT = {"s": 1, "m": 60, "h": 3600, "d": DAY_S, "w": 7 * DAY_S}
_SPAN_PATTERN = re.compile(r"(\d{1,6})([smhdw])", re.ASCII)


class StoredWindow(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}
):
    """Inferences of a model within a time."""

    start: str | None = None
    """The first moment that counts, RFC 3339 or as `-24h`; None for no limit."""
    end: str | None = None
    """The first moment that does not."""
    version: str | None = None
    """None: all of them together."""
    where: Any = None
    """A filter, as of a query."""


class DriftParameters(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}
):
    """What to compare, and how."""

    model: str
    version: str | None = None
    where: Any = None
    start: str | None = None
    end: str | None = None
    baseline: str | StoredWindow = DEFAULT_BASELINE
    """The name of one that was made of the model, or a window of the same model."""
    signals: list[str] = []
    """Names; none for all that there are."""
    ignore: list[str] = []
    """Names of those that are left out."""
    source_keys: list[str] = msgspec.field(default_factory=SOURCE_KEYS.copy)
    """Keys of the metadata; the first that any inference has tells sources apart."""
    by: Annotated[list[str], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = []
    """Keys of the metadata in whose values an alarm is looked for; none for all with few values."""
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    windows: Annotated[int, msgspec.Meta(ge=1, le=1440)] = 1
    """Windows of a day, which share alpha."""
    kernel: Kernel = "energy"
    seed: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    schedule: str | None = None
    """How often the schedule that asked for this does so, such as `1h`; its windows are the model's history."""

    @property
    def current(self) -> StoredWindow:
        """What is compared with the baseline."""
        return StoredWindow(self.start, self.end, self.version, self.where)


def decode_parameters(body: bytes) -> DriftParameters:
    """Read the parameters of a drift report from JSON; `resolve_times` sees that they mean something.

    Raises:
        QueryError: They are none.
    """
    parameters = decode_body(body, DriftParameters)
    if parameters.schedule is not None:
        raise QueryError("expected no schedule, which the model has, got one")
    return parameters


def resolve_times(parameters: DriftParameters, now_us: int) -> DriftParameters:
    """Say at which moments windows begin and end, by what `now` means; the current one ends then at the latest.

    Raises:
        QueryError: A filter or a time means nothing, or a window begins after its end.
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
    """Say at which moments a window of a model begins and ends, to the millisecond, as ids are.

    Raises:
        QueryError: Its filter or a time means nothing, or it begins after its end.
    """
    parse(window.where, 0)
    limits = {"from": window.start, "to": window.end}
    moments = (moment_us(text, now_us, name) for name, text in limits.items())
    try:
        start, end = (
            None if moment_us_ is None else timestamp_text(-(-moment_us_ // 1000))
            for moment_us_ in moments
        )
    except OverflowError as error:
        got = f"{window.start} and {window.end}"
        raise QueryError(f"expected from and to in UTC's years 1 to 9999, got {got}") from error
    resolved = replace(window, start=start, end=end)
    parse(window_filter(model, resolved), 0)
    if start is not None and end is not None and start >= end:
        raise QueryError(f"expected from to be before to, got {start} and {end}")
    return resolved


def moment_us(text: str | None, now_us: int, name: str) -> int | None:
    """Return a moment, if there is one, in microseconds since 1970.

    Raises:
        QueryError: The text is none; the message names it.
    """
    try:
        return None if text is None else parse_moment_us(text, now_us)
    except ValueError as error:
        raise unexpected_value(name, EXPECTED_MOMENT, text) from error


def parse_span_s(text: str, name: str = "") -> int:
    """Return the seconds of a span such as `15m`.

    Raises:
        QueryError: The text is none.
    """
    match = _SPAN_PATTERN.fullmatch(text)
    if match is None:
        raise QueryError(
            f"expected {name} to be a number and one of s, m, h, d, w, got {text[:80]!r}"
        )
    return int(match[1]) * _SECONDS_BY_UNIT[match[2]]


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
