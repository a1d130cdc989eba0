"""The strip of a drift page: the last windows of a model beside one another, a row for each signal."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from quadriga.engine.console.formats import number, seconds_between, time_range
from quadriga.engine.console.texts import text
from quadriga.monitor.report.drift_texts import signal_titles
from quadriga.monitor.report.metric_texts import one_line
from quadriga.monitor.report.saved import ReportStore, ReportSummary
from quadriga.monitor.report.schema import Data, Effect
from quadriga.store.query.names import find_model_name
from quadriga.store.records.errors import JSON_ERRORS, NotFoundError

MAX_WINDOWS = 24
"""Windows of a strip: the newest."""
MAX_ROWS = 40
"""Signals of a strip: those that changed or moved most."""
LONG_S = 24 * 3600
"""Seconds from which a column is headed by days alone."""
_STEPS = (1.0, 2.0, 3.0, 5.0, 10.0)
"""Effects, as multiples of the smallest that matters, from which a cell is a shade darker."""


class StripSignal(msgspec.Struct, frozen=True):
    """What a strip needs of a signal of a report."""

    name: str
    effect: Effect
    alarm: bool
    status: str

    @property
    def ratio(self) -> float:
        """The effect as a multiple of the smallest that matters."""
        return (self.effect.value or 0.0) / (self.effect.minimum or 1.0)


class StripReport(msgspec.Struct, frozen=True):
    """What a strip needs of a drift report; decoding skips the rest."""

    id: str
    created: str
    status: Literal["ok", "drift", "insufficient", "error"]
    data: Data
    signals: list[StripSignal] = []

    @property
    def end(self) -> str:
        """Time of the newest image; of the report, where its images have none. RFC 3339."""
        return self.data.current.end or self.created

    @property
    def start(self) -> str:
        """Time of the oldest image; `end` where that is the only one."""
        return self.data.current.start or self.end

    @property
    def is_long(self) -> bool:
        """Whether it is so long that its days say when it was."""
        return seconds_between(self.start, self.end) > LONG_S

    @property
    def words(self) -> str:
        """When it was, in UTC."""
        return time_range(self.start, self.end)


class StripCell(msgspec.Struct, frozen=True):
    """A signal in a window."""

    report: str
    shade: str
    """Class of the style sheet, `x-h0` to `x-h5`; empty where nothing was compared."""
    has_alarm: bool
    words: str
    """The signal, the window and what came out, for people who do not see the cell."""


class StripRow(msgspec.Struct, frozen=True):
    """A signal over the windows."""

    name: str
    title: str
    cells: list[StripCell]


class Strip(msgspec.Struct, frozen=True):
    """The windows of a model, in the order of the times of their images."""

    windows: list[StripReport]
    rows: list[StripRow]
    more_rows: int
    """Signals that are left out: they changed in no window, and moved least."""


_decoder = msgspec.json.Decoder(StripReport)


def drift_reports_of(summaries: Iterable[ReportSummary], model: str) -> list[ReportSummary]:
    """Return the drift reports of a model among all, in their order."""
    return [
        summary
        for summary in summaries
        if summary.kind == "drift" and find_model_name(summary.model.name, [model]) == model
    ]


def read_windows(reports: ReportStore, summaries: Sequence[ReportSummary]) -> list[StripReport]:
    """Return the reports that were made last, in the order of the times of their images; `summaries` begin with the newest.

    Of windows that end at the same time the longest comes first. Damaged and removed reports are left out.
    """
    windows = []
    for summary in summaries[:MAX_WINDOWS]:
        with suppress(NotFoundError, *JSON_ERRORS):
            windows.append(_decoder.decode(reports.read(summary.id)))
    return sorted(windows, key=lambda window: (window.end, window.start, window.created))


def make_strip(windows: Sequence[StripReport]) -> Strip:
    """Return the strip of some windows: signals that changed often come first, then those that moved most."""
    by_window = [{signal.name: signal for signal in window.signals} for window in windows]
    names = dict.fromkeys(name for signals in reversed(by_window) for name in signals)
    ranked = sorted(names, key=lambda name: _rank(name, by_window), reverse=True)
    titles = signal_titles(ranked)
    rows = [
        StripRow(
            name,
            titles[name],
            [
                _cell(window, titles[name], signals.get(name))
                for window, signals in zip(windows, by_window, strict=True)
            ],
        )
        for name in ranked[:MAX_ROWS]
    ]
    return Strip(list(windows), rows, max(len(ranked) - MAX_ROWS, 0))


def _rank(
    name: str, by_window: Sequence[Mapping[str, StripSignal]]
) -> tuple[bool, int, float, float]:
    """Return the order of a signal: an alarm of the newest window, then the number of alarms, then effects."""
    signals = [signals.get(name) for signals in by_window]
    newest = signals[-1]
    present = [signal for signal in signals if signal is not None]
    return (
        newest is not None and newest.alarm,
        sum(signal.alarm for signal in present),
        newest.ratio if newest is not None else 0.0,
        max(signal.ratio for signal in present),
    )


def _cell(window: StripReport, title: str, signal: StripSignal | None) -> StripCell:
    title = one_line(title, 80)
    if signal is None:
        words = text("cell_absent", signal=title, at=window.words)
        return StripCell(window.id, "", False, words)
    if signal.status == "insufficient" or signal.effect.value is None:
        words = text("cell_few", signal=title, at=window.words)
        return StripCell(window.id, "", False, words)
    shade = sum(signal.ratio >= step for step in _STEPS)
    sentence = "cell_alarm" if signal.alarm else "cell_usual"
    ratio = number(round(signal.ratio, 2))
    words = text(sentence, signal=title, at=window.words, ratio=ratio)
    return StripCell(window.id, f"x-h{shade}", signal.alarm, words)
