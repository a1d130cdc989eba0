"""Reports as tables on the terminal, JSON and pages."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quadriga.engine.commands.output import (
    ReportAndPage,
    echo_json,
    print_progress,
    print_warnings,
    to_json,
)
from quadriga.monitor.report import drift_texts, metric_texts
from quadriga.monitor.report.checks import Check, render_junit, render_markdown
from quadriga.monitor.report.schema import (
    TIME_SLICES,
    Comparison,
    Metric,
    Report,
    Signal,
    Slice,
    sorted_by_effect,
)
from quadriga.quoting import one_line
from quadriga.store.blobs.interface import KEY_PREFIX, Blobs
from quadriga.store.exchange.dataset_files import open_dataset_files

_MAX_LABELS = 10
_MAX_MOVED = 5
_MAX_SLICES = 24

RenderPage = Callable[[Report], str]
"""Function that renders a report as an HTML page."""


def write_report(
    report: Report, page: RenderPage, options: SimpleNamespace, checks: Sequence[Check] = ()
) -> None:
    """Print a report as its options say, and write it to each file of --output.

    Args:
        report: The report.
        page: Renders its page.
        options: Values of the options.
        checks: What the report was held against, for the forms that a pipeline reads.

    Raises:
        OSError: A file cannot be written.
    """
    print_progress("")
    for output in options.output:
        output.write_bytes(_in_form_of(output, report, page, checks))
    if options.as_json:
        print_warnings(report.warnings)
        echo_json(report)
        return
    console = Console()
    for renderable in render_drift(report) if report.kind == "drift" else render_evaluation(report):
        console.print(renderable)
    for output in options.output:
        console.print(f"Report: {output}", soft_wrap=True, markup=False)
    if getattr(options, "is_kept", False):
        console.print(f"Kept as report {report.id}", soft_wrap=True, markup=False)


def _in_form_of(output: Path, report: Report, page: RenderPage, checks: Sequence[Check]) -> bytes:
    """Return a report in the form that the ending of its file names."""
    if output.suffix == ".html":
        return page(report).encode()
    if output.suffix == ".md":
        return render_markdown(report, checks).encode()
    if output.suffix == ".xml":
        return render_junit(report, checks)
    return to_json(report) + b"\n"


def wait_for_report(client: Any, job: Any) -> ReportAndPage:
    """Wait for a job of a server, and return its report, and the function that returns its page.

    Raises:
        quadriga.client.ClientError: The server does not respond, or the job ends without a report.
    """
    report_id = client.jobs.wait(job)["id"]
    page = client.reports.page(report_id)
    return read_report(client, report_id), lambda _: page


def read_report(client: Any, report_id: str) -> Report:
    """Return a report of a server."""
    return msgspec.convert(dict(client.reports.get(report_id)), Report)


def page_writer(image_bytes: Callable[[str], bytes | None]) -> RenderPage:
    """Return the function that renders a page with the images that `image_bytes` returns."""

    def make(report: Report) -> str:
        from quadriga.monitor.report.page import render_page

        return render_page(report, image_bytes)

    return make


def image_from_store(blobs: Blobs) -> Callable[[str], bytes | None]:
    """Return the function that reads an image by its hash."""
    return lambda key: blobs.get(key) if key.startswith(KEY_PREFIX) else None


def image_from_folder(folder: Path | None) -> Callable[[str], bytes | None]:
    """Return the function that reads an image below a folder by its name, with or without suffix."""
    from quadriga.store.exchange.coco import written_names

    files = None if folder is None else open_dataset_files(folder)
    names = [] if files is None else files.names
    paths = {PurePosixPath(name).stem: name for name in names} | {
        PurePosixPath(name).name: name for name in names
    }
    paths |= {name: name for name in names}

    def read(name: str) -> bytes | None:
        path = next((paths[written] for written in written_names(name) if written in paths), None)
        return None if files is None or path is None else files.read(path)

    return read


def render_drift(report: Report) -> Iterator[Table | Text]:
    """Yield the verdict, the table of signals, and notes on what was excluded."""
    yield Text(drift_texts.verdict(report))
    if report.status == "drift" or drift_texts.undecided_signals(report):
        yield Text(drift_texts.headline(report))
    signals = sorted_by_effect(report.signals)
    if signals:
        yield _signal_table(signals)
    for signal in signals:
        if signal.new_labels:
            named = ", ".join(map(one_line, signal.new_labels[:_MAX_LABELS]))
            hidden_count = len(signal.new_labels) - _MAX_LABELS
            remaining = f" and {hidden_count:,} more" if hidden_count > 0 else ""
            yield Text(f"New labels of {one_line(signal.name)}: {named}{remaining}")
    reasons: dict[str, list[str]] = {}
    for signal in signals:
        if signal.status == "insufficient" and signal.reason:
            reasons.setdefault(signal.reason, []).append(one_line(signal.name))
    for signal in signals:
        if began := drift_texts.began_text(drift_texts.readable_signal(signal, report)):
            yield Text(f"Began, {one_line(signal.name)}: {began}")
    for reason, names in reasons.items():
        yield Text(f"Insufficient, {', '.join(names)}: {reason}")
    for name, reason in report.parameters.get("left_out", {}).items():
        yield Text(f"Left out, {one_line(name)}: {one_line(reason, 200)}")
    for count, reason in metric_texts.excluded_text(report.data.excluded):
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
    for signal in signals:
        texts = (
            one_line(signal.name),
            drift_texts.status_text(signal),
            signal.test.replace("_", "-"),
        )
        numbers = (
            metric_texts.format_brief(signal.p_adjusted),
            drift_texts.format_effect(signal.effect),
        )
        table.add_row(
            *map(Text, (*texts, *numbers, *map(drift_texts.format_sides, (signal.n, signal.n_eff))))
        )
    return table


def _moved_texts(slices: list[Slice]) -> Iterator[str]:
    moved = drift_texts.moved_signals(slices)
    for signal in moved[:_MAX_MOVED]:
        text = f"Moved: {signal.signal}, where {signal.by} is {signal.value} (n = {signal.n})"
        yield f"{text}: {signal.effect}, elsewhere {signal.other}"
    if len(moved) > _MAX_MOVED:
        yield f"Moved: {len(moved) - _MAX_MOVED:,} more, with smaller effects"


def _estimate_texts(report: Report) -> Iterator[str]:
    estimates = drift_texts.estimated_metrics(report.metrics)
    for metric in estimates:
        interval = "" if metric.ci95 is None else f" ({metric_texts.format_interval(metric)})"
        yield f"{metric.type}, {drift_texts.method_name(metric)}: {metric_texts.format_number(metric.value)}{interval}"
    yield from drift_texts.validity_notes(estimates)


def _rows_text(report: Report) -> str:
    baseline = report.data.baseline
    texts = [f"{report.data.current.n:,} rows against {baseline.n if baseline else 0:,}"]
    for name, text in (("time", "sorted by"), ("source_key", "sources")):
        value = report.parameters.get(name)
        if value is not None:
            texts.append(f"{text} {one_line(value)}")
    if (reason := report.parameters.get("source_key_reason")) is not None:
        texts.append(one_line(reason, 300))
    return ", ".join(texts)


def render_evaluation(report: Report) -> Iterator[Table | Text]:
    """Yield what the numbers show, the headlines, the counts, the warnings, and a table for each key that it is sliced by."""
    warnings = [Text(one_line(warning, 400)) for warning in report.warnings]
    if not report.data.current.n:  # there are no numbers, and they say why
        yield from warnings
        yield _counts_text(report)
        return
    yield from map(Text, metric_texts.findings(report))
    yield _headline_table(report)
    yield from map(Text, metric_texts.headline_notes(report))
    if counts := metric_texts.counts_by_label(report):
        yield Text(counts)
    yield _counts_text(report)
    yield from warnings
    yield from _slice_tables(report)


def _number_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """Return a table whose first column, without a name, labels its rows."""
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
        {(metric.type, str(metric.parameters)): metric for metric in comparison.differences}
        for comparison in report.comparisons
    ]
    metrics, rows = metric_texts.table_metrics(report), []
    for title, metric in zip(metric_texts.titles(metrics), metrics, strict=True):
        key = metric.type, str(metric.parameters)
        compared = [_difference_text(comparison.get(key)) for comparison in differences]
        rows.append(
            [
                title,
                metric_texts.format_number(metric.value),
                metric_texts.format_interval(metric),
                *compared,
            ]
        )
    columns = "value", "95 %", *map(_compared_name, report.comparisons)
    return _number_table(name or report.task, columns, rows)


def _difference_text(metric: Metric | None) -> str:
    """Return by how much the model is above another, as text."""
    if metric is None or metric.value is None:
        return metric_texts.UNDEFINED
    sign = "+" if metric.value > 0 else ""
    interval = "" if metric.ci95 is None else f" ({metric_texts.format_interval(metric)})"
    return f"{sign}{metric_texts.format_number(metric.value)}{interval}"


def _compared_name(comparison: Comparison) -> str:
    return f"{comparison.model.name} {comparison.model.version}".strip()


def _counts_text(report: Report) -> Text:
    counts = [f"{report.data.current.n:,} images"]
    left_out = metric_texts.excluded_text(report.data.excluded)
    if left_out:
        counts.append("left out " + ", ".join(f"{count} {reason}" for count, reason in left_out))
    if report.status == "insufficient":
        counts.append("too few to draw conclusions")
    counts += [
        f"{comparison.n:,} images in common with {_compared_name(comparison)}"
        for comparison in report.comparisons
    ]
    return Text(", ".join(counts))


def _slice_tables(report: Report) -> Iterator[Table]:
    """Yield one table for each key that the report is sliced by, with the first headlines."""
    for by in dict.fromkeys(slice_.by for slice_ in report.slices):
        matching = [slice_ for slice_ in report.slices if slice_.by == by]
        slices = matching[:_MAX_SLICES]
        if by in TIME_SLICES:
            slices.sort(key=lambda slice_: slice_.value or "")
        shown = f": {len(slices)} of {len(matching)} values" if len(matching) > len(slices) else ""
        metrics = [metric_texts.slice_headlines(report, slice_)[:4] for slice_ in slices]
        rows = [
            [one_line(slice_.value), f"{slice_.n:,}"]
            + [metric_texts.format_number(metric.value) for metric in slice_metrics]
            for slice_, slice_metrics in zip(slices, metrics, strict=True)
        ]
        yield _number_table(by + shown, ("images", *metric_texts.titles(metrics[0])), rows)
