"""Filters of the images behind a drift report: those of its windows, and those that show how a signal changed."""

import msgspec

from quadriga.engine.console.filter_line import as_part, check, comparison_text, joined
from quadriga.monitor.report.schema import ReportedModel, Window


class WindowFilter(msgspec.Struct, frozen=True):
    """The inferences of a window as a filter."""

    line: str
    """Filter of the page of inferences; empty where the window has no times, as of files."""
    is_whole: bool = True
    """Whether the filter of the report is part of it, which is not where it was sent as JSON."""


def window_filter(model: ReportedModel, window: Window | None) -> WindowFilter:
    """Return the filter that finds the inferences of a model in the time of a window, and by its filter."""
    if window is None or window.start is None or window.end is None or not model.name:
        return WindowFilter("")
    times = [f"ts=ge:{window.start}", f"ts=le:{window.end}"]
    comparisons = [comparison_text("model", model.name), *times]
    where = window.filter
    if not where:
        return WindowFilter(joined(comparisons))
    if not isinstance(where, str) or check(where) is not None:
        return WindowFilter(joined(comparisons), is_whole=False)
    return WindowFilter(joined([*comparisons, as_part(where)]))
