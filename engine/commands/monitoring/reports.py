"""Reports of commands: computed from a store and kept in its data folder, read from a server, printed, written to files."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.text import Text

from quadriga.engine.commands.options import ray_cluster
from quadriga.engine.commands.output import (
    ReportAndPage,
    echo_json,
    make_table,
    print_progress,
    print_warnings,
    to_json,
)
from quadriga.engine.commands.store_options import open_store, store_settings
from quadriga.engine.config.settings import Settings
from quadriga.monitor.report import drift_texts, metric_texts
from quadriga.monitor.report.checks import Check, render_junit, render_markdown
from quadriga.monitor.report.saved import save_report
from quadriga.monitor.report.schema import (
    TIME_SLICES,
    Metric,
    Report,
    ReportedModel,
    Signal,
    sorted_by_effect,
)
from quadriga.quoting import listed, one_line
from quadriga.store.exchange.dataset_files import open_dataset_files
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.jobs.runner import JobRun, run_here
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import StoreError

_MAX_LABELS = 10
_MAX_MOVED = 5
_MAX_SLICES = 24

RenderPage = Callable[[Report], str]
"""Function that renders a report as an HTML page."""

Resolve = Callable[[InferenceReader, Settings], msgspec.Struct]
"""Returns the parameters of a report with what the store and its settings decide, as its job on the server has them."""


def report_of_store(
    options: SimpleNamespace, kind: str, resolve: Resolve, compute: Callable[..., Report]
) -> ReportAndPage:
    """Compute a report of a store, and keep it in the data folder; where it cannot be kept, a warning says why.

    Args:
        options: Values of the options; `is_kept` is set where the report is kept.
        kind: Kind of the job that makes the same report on the server.
        resolve: See `Resolve`.
        compute: Computes the report of the store, its settings, the parameters and a folder for what belongs to it;
            `on_progress` is an `OnProgress`, and `map_shards` that of --on.
    """
    settings = store_settings(options.data, options.database)
    with ExitStack() as stack:
        inferences, blobs = stack.enter_context(open_store(settings))
        map_shards = None
        if (ray := stack.enter_context(ray_cluster(options.on))) is not None:
            from quadriga.monitor.evaluation.ray_executor import map_on

            map_shards = map_on(ray, settings.database_url)
        parameters = resolve(inferences, settings)
        compute = partial(compute, inferences, settings, parameters, map_shards=map_shards)
        run = None
        if not options.no_keep:
            stack.callback(os.umask, os.umask(0o077))  # as the files of the server
            try:
                check_keepable(options, settings)
                jobs = Jobs(settings.jobs_directory)
                run = stack.enter_context(run_here(jobs, kind, parameters, inferences, blobs))
            except StoreError as error:
                _warn(str(error))
        if run is None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            report = compute(folder, on_progress=_print_read)
        else:
            report = compute(run.directory, on_progress=partial(_report_read, run))
            saved = msgspec.structs.replace(report, id=run.job.id)
            try:
                run.end("succeeded", result=run.result(save_report(run, saved)))
            except OSError as error:
                _warn(str(error.strerror))
            else:
                options.is_kept, report = True, saved
    return report, page_writer(inferences.image)


def _report_read(run: JobRun, done: int, total: int | None) -> None:
    _print_read(done, total)
    with suppress(OSError):  # a full disk is met again when the report is saved
        run.report_progress(done, total)


def check_keepable(options: SimpleNamespace, settings: Settings) -> None:
    """Check that files can be kept in the data folder: it is that of the store, and of this user, as its server reads them.

    Raises:
        StoreError: It is not.
    """
    if options.database is not None and options.data is None:
        raise StoreError("--database names no data folder: add --data")
    parts = settings.journal_directory, Path(settings.data) / "store.db"
    part = next((part for part in parts if part.exists()), None)
    if part is None:
        raise StoreError(f"no store in {settings.data}")
    if part.stat().st_uid != os.geteuid():
        raise StoreError(f"{settings.data} belongs to another user: run the command as that user")


def _warn(reason: str) -> None:
    print_warnings([f"the report is not kept: {reason}"])


def _print_read(read: int, total: int | None) -> None:
    computing = ", computing" * (read == total)
    print_progress(f"read {read} of {total} inferences{computing}" if total else "choosing")


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
    return read_report(client, report_id), lambda _: client.reports.page(report_id)


def read_report(client: Any, report_id: str) -> Report:
    """Return a report of a server."""
    return msgspec.convert(dict(client.reports.get(report_id)), Report)


def page_writer(image_bytes: Callable[[str], bytes | None]) -> RenderPage:
    """Return the function that renders a page with the images that `image_bytes` returns."""

    def make(report: Report) -> str:
        from quadriga.monitor.report.page import render_page

        return render_page(report, image_bytes)

    return make


def image_from_folder(folder: Path | None) -> Callable[[str], bytes | None]:
    """Return the function that reads an image below a folder by its name, with or without suffix."""
    from quadriga.store.exchange.coco import written_names

    if folder is None:
        return lambda _: None
    files = open_dataset_files(folder)
    paths = {PurePosixPath(name).stem: name for name in files.names}
    paths |= {PurePosixPath(name).name: name for name in files.names}
    paths |= {name: name for name in files.names}

    def read(name: str) -> bytes | None:
        path = next((paths[written] for written in written_names(name) if written in paths), None)
        return None if path is None else files.read(path)

    return read


def render_drift(report: Report) -> Iterator[Any]:
    """Yield the verdict, the table of signals, and notes on what was excluded."""
    yield Text(drift_texts.verdict(report))
    if drift_texts.is_moved(report):
        yield Text(drift_texts.headline(report))
    signals = sorted_by_effect(report.signals)
    if signals:
        yield _signal_table(signals)
    yield from map(Text, _signal_notes(report, signals))
    yield from map(Text, _window_notes(report))


def _signal_notes(report: Report, signals: list[Signal]) -> Iterator[str]:
    for signal in signals:
        if signal.new_labels:
            named = listed([*map(one_line, signal.new_labels)], _MAX_LABELS)
            yield f"New labels of {one_line(signal.name)}: {named}"
    for signal in signals:
        if began := drift_texts.began_text(drift_texts.readable_signal(signal, report)):
            yield f"Began, {one_line(signal.name)}: {began}"
    reasons: dict[str, list[str]] = {}
    for signal in signals:
        if signal.status == "insufficient" and signal.reason:
            reasons.setdefault(signal.reason, []).append(one_line(signal.name))
    for reason, names in reasons.items():
        yield f"Insufficient, {', '.join(names)}: {reason}"
    for name, reason in report.parameters.get("left_out", {}).items():
        yield f"Left out, {one_line(name)}: {one_line(reason, 200)}"


def _window_notes(report: Report) -> Iterator[str]:
    for count, reason in metric_texts.excluded_text(report.data.excluded):
        yield f"Left out: {count} {reason}"
    moved = drift_texts.moved_signals(report.slices)
    for at in moved[:_MAX_MOVED]:
        text = f"Moved: {at.signal}, where {at.by} is {at.value} (n = {at.n})"
        yield f"{text}: {at.effect}, elsewhere {at.other}"
    if len(moved) > _MAX_MOVED:
        yield f"Moved: {len(moved) - _MAX_MOVED:,} more, with smaller effects"
    estimates = drift_texts.estimated_metrics(report.metrics)
    for metric in estimates:
        value = metric_texts.format_number(metric.value) + _interval(metric)
        yield f"{metric.type}, {drift_texts.method_name(metric)}: {value}"
    yield from drift_texts.validity_notes(estimates)
    yield _rows_text(report)


def _interval(metric: Metric) -> str:
    return "" if metric.ci95 is None else f" ({metric_texts.format_interval(metric)})"


def _signal_table(signals: list[Signal]) -> Any:
    numbers = ("p", "effect (min)", "n", "n_eff")
    rows = (
        (
            one_line(signal.name),
            drift_texts.status_text(signal),
            signal.test.replace("_", "-"),
            metric_texts.format_brief(signal.p_adjusted),
            drift_texts.format_effect(signal.effect),
            drift_texts.format_sides(signal.n),
            drift_texts.format_sides(signal.n_eff),
        )
        for signal in signals
    )
    style: dict[str, Any] = {"box": box.SIMPLE, "padding": (0, 1, 0, 0)}
    columns = ("signal", "status", "test", *numbers)
    return make_table(columns, rows, numbers, widths={"status": 12}, **style)


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


def render_evaluation(report: Report) -> Iterator[Any]:
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


def _headline_table(report: Report) -> Any:
    differences = [
        {metric_texts.title(metric): metric for metric in comparison.differences}
        for comparison in report.comparisons
    ]
    metrics, rows = metric_texts.table_metrics(report), []
    for title, metric in zip(metric_texts.titles(metrics), metrics, strict=True):
        cells = [
            title,
            metric_texts.format_number(metric.value),
            metric_texts.format_interval(metric),
        ]
        for compared in differences:
            difference = compared.get(metric_texts.title(metric))
            interval = "" if difference is None else _interval(difference)
            cells.append(metric_texts.format_difference(difference) + interval)
        rows.append(cells)
    numbers = "value", "95 %", *(_name(comparison.model) for comparison in report.comparisons)
    name = Text(_name(report.model) or report.task)
    return make_table(("", *numbers), rows, numbers, title=name)


def _name(model: ReportedModel) -> str:
    return f"{model.name} {model.version}".strip()


def _counts_text(report: Report) -> Text:
    counts = [f"{report.data.current.n:,} images"]
    left_out = metric_texts.excluded_text(report.data.excluded)
    if left_out:
        counts.append("left out " + ", ".join(f"{count} {reason}" for count, reason in left_out))
    if report.status == "insufficient":
        counts.append("too few to draw conclusions")
    counts += [
        f"{comparison.n:,} images in common with {_name(comparison.model)}"
        for comparison in report.comparisons
    ]
    return Text(", ".join(counts))


def _slice_tables(report: Report) -> Iterator[Any]:
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
        numbers = ("images", *metric_texts.titles(metrics[0]))
        yield make_table(("", *numbers), rows, numbers, title=Text(by + shown))
