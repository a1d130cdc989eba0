"""A report for who asked for it on the command line: as a table, as JSON, as a page."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.commands.report_tables import drift
from monitor import wording
from monitor.report import Metric, Report

_MOST_SLICES = 24

Page = Callable[[Report], str]
"""Makes the page of a report."""


def report_options(command: Any) -> Any:
    """Add the options of every command that makes a report."""
    options = (
        click.option(
            "--seed",
            type=click.IntRange(0, (1 << 32) - 1),
            default=0,
            show_default=True,
            help="Of what is drawn at random.",
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="Print the report as JSON, and nothing else."
        ),
        click.option(
            "--output",
            type=click.Path(path_type=Path),
            help="Write the report, too: .html for people, .json for programs.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def put_out(report: Report, *, as_json: bool, output: Path | None, page: Page) -> None:
    """Show a report, and write it to a file if there is one.

    Args:
        report: To be shown.
        as_json: Print JSON and nothing else.
        output: A file `.json` or `.html`.
        page: Asked where it is `.html`.

    Raises:
        OSError: The file cannot be written.
    """
    if output is not None:
        is_page = output.suffix == ".html"
        output.write_bytes(page(report).encode() if is_page else _json(report))
    if as_json:
        click.echo(_json(report))
        return
    console = Console()
    for part in drift(report) if report.kind == "drift" else _evaluation(report):
        console.print(part)
    if output is not None:
        console.print(f"Report: {output}", soft_wrap=True)


def check_output(output: Path | None) -> None:
    """See that a file is one that can be written, before all the work."""
    if output is None:
        return
    wrong = None
    if output.suffix not in {".html", ".json"}:
        wrong = f"expected a file .html or .json, got {output.name}"
    elif not output.parent.is_dir():
        wrong = f"expected a folder {output.parent}, got none"
    elif output.is_dir():
        wrong = f"expected a file, got the folder {output}"
    if wrong is not None:
        raise click.BadParameter(wrong, param_hint="--output")


def pictures_of(folder: Path | None) -> Callable[[str], bytes | None]:
    """Return what finds the image of a name below a folder, with its ending or without."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()] if folder else []
    found = {path.stem: path for path in files} | {path.name: path for path in files}
    found |= {path.relative_to(folder or path).as_posix(): path for path in files}

    def image_bytes(name: str) -> bytes | None:
        return found[name].read_bytes() if name in found else None

    return image_bytes


def page_of(images: Path | None) -> Page:
    """Return what makes a page with the pictures of a folder."""

    def make(report: Report) -> str:
        from monitor.page import page  # noqa: PLC0415 - loads matplotlib

        return page(report, pictures_of(images))

    return make


def tell(text: str) -> None:
    """Show how far it is, on one line, where somebody looks."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text}", err=True, nl=False)


def _json(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report)) + b"\n"


def _evaluation(report: Report) -> Iterator[Table | Text]:
    yield _headlines(report)
    yield _counts(report)
    yield from _slices(report)


def _headlines(report: Report) -> Table:
    name = f"{report.model.name} {report.model.version}".strip()
    table = Table(title=Text(name or report.task))
    for column in ("", "value", "95 %", *(one.model.name for one in report.comparisons)):
        table.add_column(Text(column), justify="right" if column else "left")
    differences = [
        {(one.type, str(one.parameters)): one for one in each.differences}
        for each in report.comparisons
    ]
    metrics = wording.headlines(report)
    for name, metric in zip(wording.titles(metrics), metrics, strict=True):
        key = metric.type, str(metric.parameters)
        others = [_difference(each.get(key)) for each in differences]
        shown = name, wording.number(metric.value), wording.interval(metric)
        table.add_row(*map(Text, (*shown, *others)))
    return table


def _difference(metric: Metric | None) -> str:
    """Say by how much the model is above another."""
    if metric is None or metric.value is None:
        return wording.UNDEFINED
    sign = "+" if metric.value > 0 else ""
    between = "" if metric.ci95 is None else f" ({wording.interval(metric)})"
    return f"{sign}{wording.number(metric.value)}{between}"


def _counts(report: Report) -> Text:
    counts = [f"{report.data.current.n:,} images"]
    left_out = wording.left_out(report.data.excluded)
    if left_out:
        counts.append("left out " + ", ".join(f"{count} {what}" for count, what in left_out))
    if report.status == "insufficient":
        counts.append("too few to say anything")
    counts += [f"{one.n:,} images in common with {one.model.name}" for one in report.comparisons]
    return Text(", ".join(counts))


def _slices(report: Report) -> list[Table]:
    """Return a table for each thing that is sliced by, with the first headlines."""
    from monitor.evaluation.slicing import TIMES  # noqa: PLC0415 - loads numpy

    tables = []
    for by in dict.fromkeys(one.by for one in report.slices):
        found = [one for one in report.slices if one.by == by]
        slices = found[:_MOST_SLICES]
        if by in TIMES:
            slices.sort(key=lambda one: one.value or "")
        rest = f": {len(slices)} of {len(found)} values" if len(found) > len(slices) else ""
        table = Table(title=Text(by + rest))
        for column in ("", "images", *wording.titles(slices[0].metrics[:4])):
            table.add_column(Text(column), justify="right" if column else "left")
        for one in slices:
            numbers = [wording.number(metric.value) for metric in one.metrics[:4]]
            table.add_row(*map(Text, (wording.plain(one.value), f"{one.n:,}", *numbers)))
        tables.append(table)
    return tables
