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
from quadriga.monitor.report.schema import TIMES, Metric, Report, Signal, Slice, by_effect
from quadriga.store.blobs.interface import Blobs

_MAX_LABELS = 10
_MAX_MOVED = 5
_MAX_SLICES = 24

RenderPage = Callable[[Report], str]
"""Makes the page of a report."""


def print_progress(text: str) -> None:
    """Show how far it is, on one line, where somebody looks."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text}", err=True, nl=False)


def fail(error: Exception) -> NoReturn:
    """End the command with what went wrong."""
    print_progress("")
    click.echo(f"quadriga: {error}", err=True)
    sys.exit(2)


def echo_json(shown: Any) -> None:
    """Print an object as JSON."""
    click.echo(_to_json(shown))


def write_report(report: Report, page: RenderPage, options: SimpleNamespace) -> None:
    """Show a report as its options say, and write it to a file if there is one.

    Raises:
        OSError: The file cannot be written.
    """
    print_progress("")
    output: Path | None = options.output
    if output is not None:
        is_page = output.suffix == ".html"
        output.write_bytes(page(report).encode() if is_page else _to_json(report) + b"\n")
    if options.as_json:
        echo_json(report)
        return
    console = Console()
    for part in render_drift(report) if report.kind == "drift" else render_evaluation(report):
        console.print(part)
    if output is not None:
        console.print(f"Report: {output}", soft_wrap=True)


def page_writer(image_bytes: Callable[[str], bytes | None]) -> RenderPage:
    """Return what makes a page with the images that this finds."""

    def make(report: Report) -> str:
        from quadriga.monitor.report.page import page

        return page(report, image_bytes)

    return make


def image_from_store(blobs: Blobs) -> Callable[[str], bytes | None]:
    """Return what finds an image by its hash."""
    return lambda key: blobs.get(key) if key.startswith("blake3:") else None


def image_from_folder(folder: Path | None) -> Callable[[str], bytes | None]:
    """Return what finds the image of a name below a folder, with its ending or without."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()] if folder else []
    found = {path.stem: path for path in files} | {path.name: path for path in files}
    found |= {path.relative_to(folder or path).as_posix(): path for path in files}
    return lambda name: found[name].read_bytes() if name in found else None


def _to_json(shown: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(shown))


def render_drift(report: Report) -> Iterator[Table | Text]:
    """Say whether there is drift, then signal by signal, and what did not count."""
    yield Text(drift_texts.verdict(report))
    signals = by_effect(report.signals)
    if signals:
        yield _signal_table(signals)
    for one in signals:
        if one.new_labels:
            named = ", ".join(map(metric_texts.plain, one.new_labels[:_MAX_LABELS]))
            more = len(one.new_labels) - _MAX_LABELS
            rest = f" and {more:,} more" if more > 0 else ""
            yield Text(f"New labels of {metric_texts.plain(one.name)}: {named}{rest}")
    reasons: dict[str, list[str]] = {}
    for one in signals:
        if one.status == "insufficient" and one.reason:
            reasons.setdefault(one.reason, []).append(metric_texts.plain(one.name))
    for reason, names in reasons.items():
        yield Text(f"Insufficient, {', '.join(names)}: {reason}")
    for name, reason in report.parameters.get("left_out", {}).items():
        yield Text(f"Left out, {metric_texts.plain(name)}: {metric_texts.plain(reason, 200)}")
    for count, reason in metric_texts.left_out(report.data.excluded):
        yield Text(f"Left out: {count} {reason}")
    yield from map(Text, _moved_texts(report.slices))
    yield from map(Text, _estimate_texts(report))
    yield Text(_rows_text(report))


def _signal_table(signals: list[Signal]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in ("signal", "status", "test"):
        table.add_column(column, overflow="fold", min_width=12 if column == "status" else None)
    for column in ("p", "effect (min)", "n", "n_eff"):
        table.add_column(column, overflow="fold", justify="right")
    for one in signals:
        words = metric_texts.plain(one.name), drift_texts.status(one), one.test.replace("_", "-")
        numbers = metric_texts.brief(one.p_adjusted), drift_texts.effect(one.effect)
        table.add_row(*map(Text, (*words, *numbers, *map(drift_texts.sides, (one.n, one.n_eff)))))
    return table


def _moved_texts(slices: list[Slice]) -> Iterator[str]:
    found = drift_texts.moved(slices)
    for one in found[:_MAX_MOVED]:
        where = f"Moved: {one.signal}, where {one.by} is {one.value} (n = {one.n})"
        yield f"{where}: {one.effect}, elsewhere {one.other}"
    if len(found) > _MAX_MOVED:
        yield f"Moved: {len(found) - _MAX_MOVED:,} more, with smaller effects"


def _estimate_texts(report: Report) -> Iterator[str]:
    found = drift_texts.estimates(report.metrics)
    for one in found:
        between = "" if one.ci95 is None else f" ({metric_texts.interval(one)})"
        yield f"{one.type}, {drift_texts.method(one)}: {metric_texts.number(one.value)}{between}"
    yield from drift_texts.valid(found)


def _rows_text(report: Report) -> str:
    before = report.data.baseline
    said = [f"{report.data.current.n:,} rows against {before.n if before else 0:,}"]
    for name, text in (("time", "sorted by"), ("source_key", "sources")):
        value = report.parameters.get(name)
        if value is not None:
            said.append(f"{text} {metric_texts.plain(value)}")
    return ", ".join(said)


def render_evaluation(report: Report) -> Iterator[Table | Text]:
    """Show the headlines, what was counted, and a table for each thing that is sliced by."""
    if report.data.current.n:
        yield _headline_table(report)
    yield _counts_text(report)
    yield from _slice_tables(report)


def _number_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """Return a table of which the first column, without a name, says what the numbers are of."""
    table = Table(title=Text(title))
    table.add_column()
    for column in columns:
        table.add_column(Text(column), justify="right")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _headline_table(report: Report) -> Table:
    name = f"{report.model.name} {report.model.version}".strip()
    differences = [
        {(one.type, str(one.parameters)): one for one in each.differences}
        for each in report.comparisons
    ]
    metrics, rows = metric_texts.headlines(report), []
    for title, metric in zip(metric_texts.titles(metrics), metrics, strict=True):
        key = metric.type, str(metric.parameters)
        others = [_difference_text(each.get(key)) for each in differences]
        rows.append(
            [title, metric_texts.number(metric.value), metric_texts.interval(metric), *others]
        )
    columns = "value", "95 %", *(one.model.name for one in report.comparisons)
    return _number_table(name or report.task, columns, rows)


def _difference_text(metric: Metric | None) -> str:
    """Say by how much the model is above another."""
    if metric is None or metric.value is None:
        return metric_texts.UNDEFINED
    sign = "+" if metric.value > 0 else ""
    between = "" if metric.ci95 is None else f" ({metric_texts.interval(metric)})"
    return f"{sign}{metric_texts.number(metric.value)}{between}"


def _counts_text(report: Report) -> Text:
    counts = [f"{report.data.current.n:,} images"]
    left_out = metric_texts.left_out(report.data.excluded)
    if left_out:
        counts.append("left out " + ", ".join(f"{count} {what}" for count, what in left_out))
    if report.status == "insufficient":
        counts.append("too few to say anything")
    counts += [f"{one.n:,} images in common with {one.model.name}" for one in report.comparisons]
    return Text(", ".join(counts))


def _slice_tables(report: Report) -> Iterator[Table]:
    """Give a table for each thing that is sliced by, with the first headlines."""
    for by in dict.fromkeys(one.by for one in report.slices):
        found = [one for one in report.slices if one.by == by]
        slices = found[:_MAX_SLICES]
        if by in TIMES:
            slices.sort(key=lambda one: one.value or "")
        rest = f": {len(slices)} of {len(found)} values" if len(found) > len(slices) else ""
        rows = [
            [metric_texts.plain(one.value), f"{one.n:,}"]
            + [metric_texts.number(metric.value) for metric in one.metrics[:4]]
            for one in slices
        ]
        yield _number_table(
            by + rest, ("images", *metric_texts.titles(slices[0].metrics[:4])), rows
        )
