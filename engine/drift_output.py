"""A drift report for who asked for it on the command line."""

from collections.abc import Iterator
from typing import Literal

from rich import box
from rich.table import Table
from rich.text import Text

from monitor import wording
from monitor.report import Report, Signal, Slice, by_effect

_COLUMNS = ("signal", "status", "test", "p", "effect (min)", "n", "n_eff")
_LEAST_WIDTHS = {"status": 12}
_MOST_LABELS = 10
_MOST_MOVED = 5


def drift(report: Report) -> Iterator[Table | Text]:
    """Say whether there is drift, then signal by signal, and what did not count."""
    yield Text(wording.verdict(report))
    signals = by_effect(report.signals)
    if signals:
        yield _table(signals)
    for one in signals:
        if one.new_labels:
            named = ", ".join(map(wording.plain, one.new_labels[:_MOST_LABELS]))
            more = len(one.new_labels) - _MOST_LABELS
            rest = f" and {more:,} more" if more > 0 else ""
            yield Text(f"New labels of {wording.plain(one.name)}: {named}{rest}")
    reasons: dict[str, list[str]] = {}
    for one in signals:
        if one.status == "insufficient" and one.reason:
            reasons.setdefault(one.reason, []).append(wording.plain(one.name))
    for reason, names in reasons.items():
        yield Text(f"Insufficient, {', '.join(names)}: {reason}")
    for name, reason in report.parameters.get("left_out", {}).items():
        yield Text(f"Left out, {wording.plain(name)}: {wording.plain(reason, 200)}")
    for count, reason in wording.left_out(report.data.excluded):
        yield Text(f"Left out: {count} {reason}")
    yield from map(Text, _moved(report.slices))
    yield from map(Text, _estimates(report))
    yield Text(_rows(report))


def _table(signals: list[Signal]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for at, column in enumerate(_COLUMNS):
        justify: Literal["left", "right"] = "left" if at < 3 else "right"
        table.add_column(
            column, justify=justify, overflow="fold", min_width=_LEAST_WIDTHS.get(column)
        )
    for one in signals:
        cells = (
            wording.plain(one.name),
            wording.status(one),
            one.test.replace("_", "-"),
            wording.brief(one.p_adjusted),
            wording.effect(one.effect),
            wording.sides(one.n),
            wording.sides(one.n_eff),
        )
        table.add_row(*map(Text, cells))
    return table


def _moved(slices: list[Slice]) -> Iterator[str]:
    """Say where signals moved most."""
    found = wording.moved(slices)
    for one in found[:_MOST_MOVED]:
        where = f"Moved: {one.signal}, where {one.by} is {one.value} (n = {one.n})"
        yield f"{where}: {one.effect}, elsewhere {one.other}"
    if len(found) > _MOST_MOVED:
        yield f"Moved: {len(found) - _MOST_MOVED:,} more, with smaller effects"


def _estimates(report: Report) -> Iterator[str]:
    """Say what is estimated, and when that holds."""
    found = wording.estimates(report.metrics)
    for one in found:
        between = "" if one.ci95 is None else f" ({wording.interval(one)})"
        yield f"{one.type}, {wording.method(one)}: {wording.number(one.value)}{between}"
    yield from wording.valid(found)


def _rows(report: Report) -> str:
    """Say what was compared."""
    before = report.data.baseline
    said = [f"{report.data.current.n:,} rows against {before.n if before else 0:,}"]
    for name, text in (("time", "sorted by"), ("source_key", "sources")):
        value = report.parameters.get(name)
        if value is not None:
            said.append(f"{text} {wording.plain(value)}")
    return ", ".join(said)
