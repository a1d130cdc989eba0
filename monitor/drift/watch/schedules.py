"""Schedules of drift reports: which window of a model is compared when."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from quadriga.monitor.drift.parameters import (
    DEFAULT_BASELINE,
    MAX_SLICE_KEYS,
    DriftParameters,
    resolve_times,
)
from quadriga.monitor.spans import DAY_S
from quadriga.monitor.watch.schedules import (
    MAX_WEBHOOKS,
    DueWindow,
    SavedSchedule,
    ScheduleKind,
    ScheduleStore,
    check_schedule,
)
from quadriga.monitor.watch.webhooks import Webhook
from quadriga.store.query.request import decode_body
from quadriga.store.records.records import timestamp_text

MIN_EVERY = "5m"
"""Minimum length of a window: with 1,440 windows a day, each report would take 20 s and 2 GB, as its share of alpha
needs so many permutations."""


class DriftSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule of drift reports; fields without docstring are those of `DriftParameters`."""

    every: str
    """Length of a window: a fraction of a day such as `15m` or `6h`, `1d`, or `1w` from Monday; UTC."""
    baseline: str = DEFAULT_BASELINE
    where: Any = None
    signals: list[str] = []
    ignore: list[str] = []
    by: Annotated[list[str], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = []
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    webhooks: Annotated[list[Webhook], msgspec.Meta(max_length=MAX_WEBHOOKS)] = []
    delay: str = "1m"
    """Time from the end of a window to its comparison, so that all of it is stored by then."""


def decode_schedule(model: str, body: bytes) -> DriftSchedule:
    """Decode a schedule from JSON.

    Raises:
        QueryError: The body cannot be decoded, or a value in it is invalid.
    """
    schedule = decode_body(body, DriftSchedule)
    check_schedule(schedule, MIN_EVERY)
    resolve_times(_parameters(model, SavedSchedule(schedule, 0), DueWindow(0, 0)), 0)
    return schedule


def drift_schedules(directory: Path) -> ScheduleStore[DriftSchedule]:
    """Return the schedules of drift reports in a folder."""
    return ScheduleStore(directory, _KIND)


def _parameters(
    model: str, saved: SavedSchedule[DriftSchedule], window: DueWindow
) -> DriftParameters:
    schedule, start_s = saved.schedule, window.start_s
    return DriftParameters(
        model,
        where=schedule.where,
        start=timestamp_text(start_s * 1000),
        end=timestamp_text((start_s + saved.every_s) * 1000),
        baseline=schedule.baseline,
        signals=schedule.signals,
        ignore=schedule.ignore,
        by=schedule.by,
        alpha=schedule.alpha,
        windows=max(DAY_S // saved.every_s, 1),
        schedule=schedule.every,
    )


def _window_key(parameters: dict[str, Any]) -> tuple[str, str | None] | None:
    return (parameters["model"], parameters.get("from")) if parameters.get("schedule") else None


_KIND = ScheduleKind("drift", SavedSchedule[DriftSchedule], _parameters, _window_key)
