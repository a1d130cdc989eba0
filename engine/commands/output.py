"""What commands say: how far they are, what went wrong, and a report as table, JSON or page."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import rich_click as click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quadriga.monitor.report import drift_texts, metric_texts
from quadriga.monitor.report.schema import (
    TIME_SLICES,
    Metric,
    Report,
    Signal,
    Slice,
    sorted_by_effect,
)
from quadriga.store.blobs.interface import Blobs

_MOST_LABELS = 10
_MOST_MOVED = 5
_MOST_SLICES = 24

Page = Callable[[Report], str]
"""Makes the page of a report."""


def tell(text: str) -> None:
    """Show how far it is, on one line, where somebody looks."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text}", err=True, nl=False)


def fail(error: Exception) -> NoReturn:
    """End the command with what went wrong."""
    tell("")
    click.echo(f"quadriga: {error}", err=True)
    sys.exit(2)


def echo_json(shown: Any) -> None:
    """Print an object as JSON."""
    click.echo(_json(shown))


def put_out(report: Report, page: Page, options: SimpleNamespace) -> None:
    """Show a report as its options say, and write it to a file if there is one.

    Raises:
        OSError: The file cannot be written.
    """
    tell("")
    output: Path | None = options.output
    if output is not None:
        is_page = output.suffix == ".html"
        output.write_bytes(page(report).encode() if is_page else _json(report) + b"\n")
    if options.as_json:
        echo_json(report)
        return
    console = Console()
    for part in drift(report) if report.kind == "drift" else evaluation(report):
        console.print(part)
    if output is not None:
        console.print(f"Report: {output}", soft_wrap=True)


def page_with(image_bytes: Callable[[str], bytes | None]) -> Page:
    """Return what makes a page with the images that this finds."""

    def make(report: Report) -> str:
        from quadriga.monitor.report.page import render_page

        return render_page(report, image_bytes)

    return make


def in_store(blobs: Blobs) -> Callable[[str], bytes | None]:
    """Return what finds an image by its hash."""
    return lambda key: blobs.get(key) if key.startswith("blake3:") else None


def in_folder(folder: Path | None) -> Callable[[str], bytes | None]:
    """Return what finds the image of a name below a folder, with its ending or without."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()] if folder else []
    found = {path.stem: path for path in files} | {path.name: path for path in files}
    found |= {path.relative_to(folder or path).as_posix(): path for path in files}
    return lambda name: found[name].read_bytes() if name in found else None


def _json(shown: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(shown))


def drift(report: Report) -> Iterator[Table | Text]:
    """Say whether there is drift, then signal by signal, and what did not count."""
    yield Text(drift_texts.verdict(report))
    signals = sorted_by_effect(report.signals)
    if signals:
        yield _table(signals)
    for one in signals:
        if one.new_labels:
            named = ", ".join(map(metric_texts.one_line, one.new_labels[:_MOST_LABELS]))
            more = len(one.new_labels) - _MOST_LABELS
            rest = f" and {more:,} more" if more > 0 else ""
            yield Text(f"New labels of {metric_texts.one_line(one.name)}: {named}{rest}")
    reasons: dict[str, list[str]] = {}
    for one in signals:
        if one.status == "insufficient" and one.reason:
            reasons.setdefault(one.reason, []).append(metric_texts.one_line(one.name))
    for reason, names in reasons.items():
        yield Text(f"Insufficient, {', '.join(names)}: {reason}")
    for name, reason in report.parameters.get("left_out", {}).items():
        yield Text(f"Left out, {metric_texts.one_line(name)}: {metric_texts.one_line(reason, 200)}")
    for count, reason in metric_texts.excluded_text(report.data.excluded):
        yield Text(f"Left out: {count} {reason}")
    yield from map(Text, _moved(report.slices))
    yield from map(Text, _estimates(report))
    yield Text(_rows(report))


def _table(signals: list[Signal]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in ("signal", "status", "test"):
        table.add_column(column, overflow="fold", min_width=12 if column == "status" else None)
    for column in ("p", "effect (min)", "n", "n_eff"):
        table.add_column(column, overflow="fold", justify="right")
    for one in signals:
        words = (
            metric_texts.one_line(one.name),
            drift_texts.status_text(one),
            one.test.replace("_", "-"),
        )
        numbers = metric_texts.format_brief(one.p_adjusted), drift_texts.format_effect(one.effect)
        table.add_row(
            *map(Text, (*words, *numbers, *map(drift_texts.format_sides, (one.n, one.n_eff))))
        )
    return table


def _moved(slices: list[Slice]) -> Iterator[str]:
    found = drift_texts.moved_signals(slices)
    for one in found[:_MOST_MOVED]:
        where = f"Moved: {one.signal}, where {one.by} is {one.value} (n = {one.n})"
        yield f"{where}: {one.effect}, elsewhere {one.other}"
    if len(found) > _MOST_MOVED:
        yield f"Moved: {len(found) - _MOST_MOVED:,} more, with smaller effects"


def _estimates(report: Report) -> Iterator[str]:
    found = drift_texts.estimated_metrics(report.metrics)
    for one in found:
        between = "" if one.ci95 is None else f" ({metric_texts.format_interval(one)})"
        yield f"{one.type}, {drift_texts.method_name(one)}: {metric_texts.format_number(one.value)}{between}"
    yield from drift_texts.validity_notes(found)


def _rows(report: Report) -> str:
    before = report.data.baseline
    said = [f"{report.data.current.n:,} rows against {before.n if before else 0:,}"]
    for name, text in (("time", "sorted by"), ("source_key", "sources")):
        value = report.parameters.get(name)
        if value is not None:
            said.append(f"{text} {metric_texts.one_line(value)}")
    return ", ".join(said)


def evaluation(report: Report) -> Iterator[Table | Text]:
    """Show the headlines, what was counted, and a table for each thing that is sliced by."""
    if report.data.current.n:
        yield _headlines(report)
    yield _counts(report)
    yield from _slices(report)


def _numbers(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """Return a table of which the first column, without a name, says what the numbers are of."""
    table = Table(title=Text(title))
    table.add_column()
    for column in columns:
        table.add_column(Text(column), justify="right")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _headlines(report: Report) -> Table:
    name = f"{report.model.name} {report.model.version}".strip()
    differences = [
        {(one.type, str(one.parameters)): one for one in each.differences}
        for each in report.comparisons
    ]
    metrics, rows = metric_texts.headlines(report), []
    for title, metric in zip(metric_texts.titles(metrics), metrics, strict=True):
        key = metric.type, str(metric.parameters)
        others = [_difference(each.get(key)) for each in differences]
        rows.append(
            [
                title,
                metric_texts.format_number(metric.value),
                metric_texts.format_interval(metric),
                *others,
            ]
        )
    columns = "value", "95 %", *(one.model.name for one in report.comparisons)
    return _numbers(name or report.task, columns, rows)


def _difference(metric: Metric | None) -> str:
    """Say by how much the model is above another."""
    if metric is None or metric.value is None:
        return metric_texts.UNDEFINED
    sign = "+" if metric.value > 0 else ""
    between = "" if metric.ci95 is None else f" ({metric_texts.format_interval(metric)})"
    return f"{sign}{metric_texts.format_number(metric.value)}{between}"


def _counts(report: Report) -> Text:
    counts = [f"{report.data.current.n:,} images"]
    left_out = metric_texts.excluded_text(report.data.excluded)
    if left_out:
        counts.append("left out " + ", ".join(f"{count} {what}" for count, what in left_out))
    if report.status == "insufficient":
        counts.append("too few to say anything")
    counts += [f"{one.n:,} images in common with {one.model.name}" for one in report.comparisons]
    return Text(", ".join(counts))


def _slices(report: Report) -> Iterator[Table]:
    """Give a table for each thing that is sliced by, with the first headlines."""
    for by in dict.fromkeys(one.by for one in report.slices):
        found = [one for one in report.slices if one.by == by]
        slices = found[:_MOST_SLICES]
        if by in TIME_SLICES:
            slices.sort(key=lambda one: one.value or "")
        rest = f": {len(slices)} of {len(found)} values" if len(found) > len(slices) else ""
        rows = [
            [metric_texts.one_line(one.value), f"{one.n:,}"]
            + [metric_texts.format_number(metric.value) for metric in one.metrics[:4]]
            for one in slices
        ]
        yield _numbers(by + rest, ("images", *metric_texts.titles(slices[0].metrics[:4])), rows)
