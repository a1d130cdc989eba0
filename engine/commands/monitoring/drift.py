"""The command `quadriga drift`: compares files, or stored inferences here or by a running server."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import rich_click as click

from quadriga.engine.commands.options import (
    PATH,
    SERVER_NAMES,
    connect,
    option,
    parse_filter,
    report_options,
    select_form,
)
from quadriga.engine.commands.output import ReportAndPage
from quadriga.engine.commands.store_options import store_options

_COMMON_OPTIONS = {
    "baseline", "ignore", "source_key", "alpha", "windows", "kernel", "seed", "as_json",
    "output", "fail_on_drift",
}  # fmt: skip
_STORE_OPTIONS = _COMMON_OPTIONS | {
    "model", "start", "end", "where", "baseline_start", "baseline_end", "by",
}  # fmt: skip
_OPTIONS_BY_FORM = {
    "current": _COMMON_OPTIONS
    | {"current", "numeric", "categorical", "embedding", "time", "no_keep"},
    "model": _STORE_OPTIONS | {"data", "database", "on", "no_keep"},
    "server": _STORE_OPTIONS | {"server"},
}
"""Options that each form of the command reads, by the option that selects it."""

_EXIT_STATUSES = {"drift": 1, "insufficient": 3}
"""Exit statuses with --fail-on-drift, by the status of the report; 2 is that of wrong usage."""


@click.command("drift")
@option(
    "--baseline",
    "Baseline: a CSV, JSON lines or Parquet file; with --model a baseline's name. [default: default]",
    "FILE|NAME",
)
@option("--current", "File to compare with the baseline, in any of these formats.", type=PATH)
@option("--model", "Model whose stored inferences are compared.", "NAME[@VERSION]")
@option("--from start", "Start of the window: RFC 3339, or relative such as -24h.", "TIME")
@option("--to end", "End of the window. [default: now]", "TIME")
@option("--where", "Filter of the inferences, as of a query.", "FILTER")
@option(
    "--baseline-from baseline_start",
    "In place of --baseline: start of a window of --model that serves as the baseline.",
    "TIME",
)
@option("--baseline-to baseline_end", "End of that window.", "TIME")
@option(
    "--by",
    "Metadata key whose values are searched for the cause of an alarm; repeat for more.",
    "KEY",
    multiple=True,
)
@option(SERVER_NAMES, "Server that compares. [default: compare here, on the database]", "URL")
@option(
    "--on",
    "Read --model on a Ray cluster: ray for one here, or its address, such as ray://head:10001.",
    "CLUSTER",
)
@option("--numeric", "Column of numbers; repeat for more.", "NAME", multiple=True)
@option("--categorical", "Column of labels; repeat for more.", "NAME", multiple=True)
@option(
    "--embedding",
    "Column of lists of numbers, or the columns NAME_0, NAME_1 and so on; repeat for more.",
    "NAME",
    multiple=True,
)
@option("--ignore", "Column or signal to leave out; repeat for more.", "NAME", multiple=True)
@option(
    "--source-key",
    "Column that names the source of a row. [default: camera_id, stream or recording]",
    "NAME",
)
@option(
    "--time",
    "Column to sort rows by. [default: created_at or timestamp, otherwise as they are]",
    "NAME",
)
@option(
    "--alpha",
    "Maximum share of days with a false alarm.",
    type=click.FloatRange(0.001, 0.5),
    default=0.05,
)
@option(
    "--windows", "Comparisons per day, which share alpha.", type=click.IntRange(1, 1440), default=1
)
@option(
    "--kernel",
    "Distance between embeddings.",
    type=click.Choice(["energy", "mmd"]),
    default="energy",
)
@report_options
@store_options
@option(
    "--fail-on-drift",
    "Exit with 1 where there is drift, and with 3 where too little is independent to say.",
    is_flag=True,
)
def drift_command(**values: Any) -> None:
    """Report whether anything has changed: in files with one row per inference, or in a store.

    \b
    quadriga drift --baseline march.csv --current april.csv
    quadriga drift --baseline usual.parquet --current today.jsonl --output report.html
    quadriga drift --model NAME --from -24h --baseline-from -8d --baseline-to -1d
    """  # noqa: D301 - click leaves lines after a backspace as they are
    from quadriga.engine.commands.monitoring.reports import write_report
    from quadriga.monitor.report.checks import signal_checks

    options = SimpleNamespace(**values)
    form = select_form(options, _OPTIONS_BY_FORM, {"current": "baseline"}, "server")
    if options.baseline is not None and (options.baseline_start or options.baseline_end):
        raise click.UsageError("--baseline cannot be used with --baseline-from or --baseline-to")
    report, page = _COMPARE[form](options)
    checks = signal_checks(report) if options.fail_on_drift else []
    write_report(report, page, options, checks)
    sys.exit(_EXIT_STATUSES.get(report.status, 0) if options.fail_on_drift else 0)


def _compare_files(options: SimpleNamespace) -> ReportAndPage:
    from quadriga.engine.commands.monitoring.reports import image_from_folder, page_writer
    from quadriga.monitor.drift.files.compare_files import ColumnOptions, compare_files
    from quadriga.monitor.drift.significance.decision import ComparisonSettings

    columns = (options.numeric, options.categorical, options.embedding, options.ignore)
    column_options = ColumnOptions(*columns, options.source_key, options.time)
    settings = ComparisonSettings(
        alpha=options.alpha, windows=options.windows, kernel=options.kernel, seed=options.seed
    )
    report = compare_files(Path(options.baseline), options.current, column_options, settings)
    return report, page_writer(image_from_folder(None))


def _compare_on_server(options: SimpleNamespace) -> ReportAndPage:
    from quadriga.engine.commands.monitoring.reports import wait_for_report

    client = connect(options.server)
    options.is_kept = True
    job = client.drift(options.model, wait=False, **_to_parameters(options))
    return wait_for_report(client, job)


def _compare_stored(options: SimpleNamespace) -> ReportAndPage:
    from quadriga.client.versions import model_body
    from quadriga.engine.commands.monitoring.reports import report_of_store
    from quadriga.monitor.drift.baselines import BaselineStore
    from quadriga.monitor.drift.parameters import (
        DriftParameters,
        resolve_times,
        with_model_name,
    )
    from quadriga.monitor.drift.stored import compare_stored

    now_us = time.time_ns() // 1000
    body = model_body(options.model, _to_parameters(options))
    parameters = resolve_times(msgspec.convert(body, DriftParameters), now_us)

    def resolve(inferences: Any, settings: Any) -> Any:
        named = with_model_name(parameters, inferences)
        return BaselineStore(settings.baselines_directory).resolve_rolling(named)

    def compute(inferences: Any, settings: Any, resolved: Any, _: Path, **reading: Any) -> Any:
        name, baselines = resolved.baseline, BaselineStore(settings.baselines_directory)
        baseline = baselines.read_summary(resolved.model, name) if isinstance(name, str) else None
        return compare_stored(inferences, resolved, baseline, now_us=now_us, **reading)

    return report_of_store(options, "drift", resolve, compute)


def _to_parameters(options: SimpleNamespace) -> dict[str, Any]:
    """Return the parameters of a drift report on stored inferences, but for the model, as the client takes them."""
    filter_ = parse_filter(options.where, "--where")
    unchanged = ("ignore", "by", "alpha", "windows", "kernel", "seed", "baseline")
    parameters: dict[str, Any] = {name: getattr(options, name) for name in unchanged}
    parameters |= {"where": filter_, "from": options.start, "to": options.end}
    parameters["source_keys"] = options.source_key and [options.source_key]
    if options.baseline_start is not None or options.baseline_end is not None:
        window = {"from": options.baseline_start, "to": options.baseline_end}
        version = options.model.partition("@")[2] or None
        parameters["baseline"] = {**window, "version": version, "where": filter_}
    return parameters


_COMPARE = {"current": _compare_files, "model": _compare_stored, "server": _compare_on_server}
