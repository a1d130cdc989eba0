"""What became of a model's windows: each as a line of a file, with detectors of change, and alerts.

`<directory>/<model>.jsonl` has them, oldest first; `<model>.watch.json` is a `Watch`.
"""

import logging
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from quadriga.monitor.drift.parameters import DriftParameters
from quadriga.monitor.drift.watch.alerts import Outbox
from quadriga.monitor.drift.watch.change_detectors import WARM_UP, Series
from quadriga.monitor.model_files import model_file_path, read_model_file, write_model_file
from quadriga.monitor.report.schema import (
    PastSignal,
    PastWindow,
    Report,
    Signal,
    effect_ratio,
    sorted_by_effect,
)
from quadriga.store.disk import write_atomically
from quadriga.store.query.moments import parse_moment_us

HISTORY = "jsonl"
WATCH = "watch.json"

MOST_SHOWN = 100
"""Windows that a report shows."""
MOST_BYTES = 32 << 20
"""Of a history; of a larger one the older half is dropped."""
MOST_CHANGES = 20
"""Of a signal and detector, the last ones that are kept."""
LOGGED = 3
LEAST_UNIT = 0.25
"""Of the least effect that matters: what varies by less is followed as if it varied by this."""
EPOCH = "1970-01-01T00:00:00Z"
_TAIL_BYTES = 1 << 20
_log = logging.getLogger(__name__)


class Noted(PastWindow, frozen=True):
    """A window as a line of the history keeps it."""

    baseline: str = ""
    """Differs where the baseline was made anew; empty where it moves with the window."""


class Followed(msgspec.Struct):
    """The effect of a signal, in units of the least that matters, window by window."""

    series: Series
    changes: dict[str, list[str]] = {}
    """Ends of windows at which a detector said that the level changed, by its name; oldest first."""


class Watch(msgspec.Struct):
    """What is to be known when the next window comes."""

    last: str = ""
    """The report that was noted last."""
    baseline: str = ""
    alarmed: list[str] = []
    """Signals that were in alarm when they were last judged."""
    followed: dict[str, Followed] = {}


class Detectors(msgspec.Struct, frozen=True):
    """What the detectors of a signal say."""

    windows: int
    """Since the baseline was made."""
    is_learning: bool
    """Whether there are too few to say anything."""
    changes: dict[str, list[str]]
    """Ends of windows at which `adwin` and `page_hinkley` said that the level changed."""


class History(msgspec.Struct, frozen=True):
    """Windows of a model, oldest first, and what the detectors say by now."""

    windows: list[PastWindow]
    detectors: dict[str, Detectors] = {}


_decoder = msgspec.json.Decoder(Noted)


def with_history(directory: Path, report: Report, parameters: DriftParameters) -> Report:
    """Return a report with its window, and the last before it that had the same baseline, or failed."""
    own = _noted(report, parameters)
    before = [
        one
        for one in _lines(model_file_path(directory, parameters.model, HISTORY), _TAIL_BYTES)
        if (one.baseline == own.baseline or one.status == "error") and one.report != own.report
    ]
    return replace(report, history=[_plain(one) for one in [*before, own][-MOST_SHOWN:]])


def note(directory: Path, report: Report, parameters: DriftParameters) -> None:
    """Keep a report's window, let the detectors see it, and queue alerts; the same report again is nothing new.

    Raises:
        OSError: That could not be kept.
    """
    own, model = _noted(report, parameters), parameters.model
    path = model_file_path(directory, model, WATCH)
    watch = read_model_file(path, Watch) or Watch()
    if watch.last == own.report:
        return
    _append(directory, model, own)
    if watch.baseline != own.baseline:
        watch.baseline, watch.followed = own.baseline, {}
    for one in report.signals:
        if one.status != "insufficient" and one.effect.value is not None:
            followed = watch.followed.setdefault(one.name, Followed(Series(least=LEAST_UNIT)))
            for name in followed.series.update(effect_ratio(one)):
                ends = [*followed.changes.get(name, []), own.end or ""]
                followed.changes[name] = ends[-MOST_CHANGES:]
    alarms = [one for one in sorted_by_effect(report.signals) if one.alarm]
    if alarms:
        _log_alarms(model, own, alarms)
    event, told = _event(watch, report.signals, alarms)
    if event:
        Outbox(directory).queue(model, event, _about(own, told))
    watch.last = own.report
    write_model_file(path, watch)


def note_failure(directory: Path, report_id: str, parameters: DriftParameters, error: str) -> None:
    """Keep that a window could not be compared.

    Raises:
        OSError: That could not be kept.
    """
    failed = Noted(parameters.start, parameters.end, 0, "error", report_id)
    _log.warning("drift of %s from %s: %s", parameters.model, parameters.start, error)
    _append(directory, parameters.model, failed)


def history(
    directory: Path,
    model: str,
    start_us: int | None = None,
    end_us: int | None = None,
    signal: str | None = None,
) -> History:
    """Return the windows of a model that start within a time, and what the detectors say.

    Args:
        directory: Of schedules.
        model: Its name.
        start_us: The first moment that counts, in microseconds since 1970.
        end_us: The first moment that does not.
        signal: The only one to be told of.

    Raises:
        QueryError: That cannot be the name of a model.
    """
    first, after = start_us or 0, math.inf if end_us is None else end_us
    windows = [
        _plain(one, signal)
        for one in _lines(model_file_path(directory, model, HISTORY))
        if first <= parse_moment_us(one.start or EPOCH, 0) < after
    ]
    watch = read_model_file(model_file_path(directory, model, WATCH), Watch) or Watch()
    detectors = {
        name: Detectors(each.series.n, each.series.n < WARM_UP, each.changes)
        for name, each in watch.followed.items()
        if signal in {None, name}
    }
    return History(windows, detectors)


def _noted(report: Report, parameters: DriftParameters) -> Noted:
    before, baseline = report.data.baseline, ""
    if before is not None and isinstance(parameters.baseline, str):
        baseline = f"{before.start}/{before.end}/{before.n}"
    signals = {
        one.name: PastSignal(one.p_adjusted, one.effect.value, one.alarm, one.status)
        for one in report.signals
    }
    n, status = report.data.current.n, report.status
    return Noted(parameters.start, parameters.end, n, status, report.id, signals, baseline)


def _plain(window: Noted, signal: str | None = None) -> PastWindow:
    signals = window.signals
    if signal is not None:
        signals = {name: one for name, one in signals.items() if name == signal}
    return PastWindow(window.start, window.end, window.n, window.status, window.report, signals)


def _log_alarms(model: str, own: Noted, alarms: Sequence[Signal]) -> None:
    first = ", ".join(
        f"{one.name} ({one.effect.name} {one.effect.value:.3g})" for one in alarms[:LOGGED]
    )
    more = f" and {len(alarms) - LOGGED} more" if len(alarms) > LOGGED else ""
    text = "drift of %s from %s to %s: %s%s, report %s"
    _log.warning(text, model, own.start, own.end, first, more, own.report)


def _event(
    watch: Watch, signals: Sequence[Signal], alarms: Sequence[Signal]
) -> tuple[str, Sequence[Signal]]:
    """Say what there is to tell: signals that had no alarm in the window before, and when all are over."""
    names, before = [one.name for one in alarms], watch.alarmed
    silent = {one.name for one in signals if one.status == "insufficient"}
    still = [name for name in before if name in silent]
    watch.alarmed = [*names, *still]
    if set(names) - set(before):
        return "drift", alarms
    if before and not watch.alarmed:
        return "recovered", [one for one in signals if one.name in before]
    return "", []


def _about(own: Noted, told: Sequence[Signal]) -> dict[str, Any]:
    signals = [
        {
            "name": one.name,
            "effect": one.effect.value,
            "least_effect": one.effect.minimum,
            "p_adjusted": one.p_adjusted,
        }
        for one in told
    ]
    window = {"from": own.start, "to": own.end, "n": own.n}
    return {"window": window, "signals": signals, "report": f"/api/reports/{own.report}"}


def _lines(path: Path, last_bytes: int | None = None) -> Iterator[Noted]:
    """Yield what a history has, oldest first; a line that was not written to its end is passed over."""
    try:
        with path.open("rb") as file:
            if last_bytes is not None:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - last_bytes, 0))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines:
        try:
            yield _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue


def _append(directory: Path, model: str, noted: Noted) -> None:
    """Add a line, unless it is among the last ones already."""
    directory.mkdir(parents=True, exist_ok=True)
    path = model_file_path(directory, model, HISTORY)
    if any(one.report == noted.report for one in _lines(path, _TAIL_BYTES)):
        return
    with path.open("ab") as file:
        begun = file.tell()
        file.write((b"\n" if begun else b"") + msgspec.json.encode(noted))
    if begun > MOST_BYTES:
        lines = path.read_bytes().split(b"\n")
        write_atomically(path, b"\n".join(lines[len(lines) // 2 :]))
