"""What is asked of a drift report over stored inferences."""

from typing import Annotated, Any

import msgspec

from monitor.drift.kernels import Kernel
from store.errors import QueryError
from store.query.json_form import parse
from store.query.moments import microseconds
from store.query.request import decode_body
from store.query.wrong import unexpected
from store.records import timestamp_text

MOST_BY = 20
SOURCE_KEYS = ["camera_id", "stream", "recording"]
DEFAULT = "default"
"""Name of the baseline that is meant where none is named."""


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
    baseline: str | StoredWindow = DEFAULT
    """The name of one that was made of the model, or a window of the same model."""
    signals: list[str] = []
    """Names; none for all that there are."""
    ignore: list[str] = []
    """Names of those that are left out."""
    source_keys: list[str] = msgspec.field(default_factory=lambda: list(SOURCE_KEYS))
    """Keys of the metadata; the first that any inference has tells sources apart."""
    by: Annotated[list[str], msgspec.Meta(max_length=MOST_BY)] = []
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


_decoder = msgspec.json.Decoder(DriftParameters)


def decode_parameters(body: bytes) -> DriftParameters:
    """Read the parameters of a drift report from JSON.

    Raises:
        QueryError: They are none, or name a filter or a time that means nothing.
    """
    parameters = decode_body(body, _decoder)
    if parameters.schedule is not None:
        raise QueryError("expected no schedule, which the model has, got one")
    check(parameters)
    return parameters


def check(parameters: DriftParameters) -> None:
    """See that this means something.

    Raises:
        QueryError: It does not.
    """
    windows = {"": parameters.current}
    if isinstance(parameters.baseline, StoredWindow):
        windows["baseline: "] = parameters.baseline
    for name, window in windows.items():
        try:
            check_window(parameters.model, window)
        except QueryError as error:
            raise QueryError(f"{name}{error}") from error


def check_window(model: str, window: StoredWindow) -> None:
    """See that a window of a model means something.

    Raises:
        QueryError: It does not.
    """
    parse(window.where, 0)
    for name, text in (("from", window.start), ("to", window.end)):
        try:
            _moment(text, 0)
        except ValueError as error:
            raise unexpected(
                name, "a moment such as 2026-01-31T12:00:00Z, -24h or now", text
            ) from error
    parse(where_of(model, window), 0)


def absolute(parameters: DriftParameters, now_us: int) -> DriftParameters:
    """Say at which moments windows begin and end; the current one ends now at the latest.

    Args:
        parameters: Checked.
        now_us: What `now` means, in microseconds since 1970.

    Raises:
        QueryError: A window begins after its end.
    """
    current = msgspec.structs.replace(parameters.current, end=parameters.end or "now")
    current = fixed(current, now_us)
    baseline = parameters.baseline
    if isinstance(baseline, StoredWindow):
        try:
            baseline = fixed(baseline, now_us)
        except QueryError as error:
            raise QueryError(f"baseline: {error}") from error
    return msgspec.structs.replace(
        parameters, start=current.start, end=current.end, baseline=baseline
    )


def fixed(window: StoredWindow, now_us: int) -> StoredWindow:
    """Say at which moments a window begins and ends.

    Raises:
        QueryError: It begins after its end.
    """
    start, end = _moment(window.start, now_us), _moment(window.end, now_us)
    if start is not None and end is not None and start >= end:
        raise QueryError(f"expected from to be before to, got {start} and {end}")
    return msgspec.structs.replace(window, start=start, end=end)


def _moment(text: str | None, now_us: int) -> str | None:
    """Return a moment to the millisecond, as ids are: what comes at it or later is the same."""
    return None if text is None else timestamp_text(-(-microseconds(text, now_us) // 1000))


def where_of(model: str, window: StoredWindow) -> dict[str, Any]:
    """Return the filter that finds a window of a model."""
    time = {"ge": window.start, "lt": window.end}
    asked = [
        {"model": {"eq": model}},
        None if window.version is None else {"version": {"eq": window.version}},
        {"ts": {op: at for op, at in time.items() if at is not None}}
        if any(time.values())
        else None,
        window.where,
    ]
    return {"and": [one for one in asked if one is not None]}
