"""The commands `quadriga drift` and `baseline`: compare files or stored inferences, and set what those are compared with.

Both work here, on the data folder, or by a running server.
"""

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
    dataset_options,
    option,
    parse_filter,
    report_options,
    select_form,
)
from quadriga.engine.commands.output import ReportAndPage, echo_json, print_progress
from quadriga.engine.commands.store_options import open_store, store_options, store_settings
from quadriga.engine.config.extras import dataset_formats

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


_DEFAULT_NAME = "default"
"""Name of the baseline that the semantic score compares with."""


@click.command("baseline")
@option("--model", "Model of the baseline.", "NAME[@VERSION]", required=True)
@option("--name", "Name of the baseline.", default=_DEFAULT_NAME)
@option("--from start", "Start of the window: RFC 3339, or relative such as -7d.", "TIME")
@option("--to end", "End of the window. [default: now]", "TIME")
@option("--where", "Filter of the inferences, as of a query.", "FILTER")
@option("--rolling", "Use the time before each compared window, such as 7d, as baseline.", "SPAN")
@option("--dataset", "Folder or zip to run --model over first, in place of a window.", type=PATH)
@dataset_options
@option(
    SERVER_NAMES,
    "Server that sets it. [default: http://127.0.0.1:8080, unless --data or --database is given]",
    "URL",
)
@store_options
@option("--json as_json", "Print the baseline as JSON.", is_flag=True)
def baseline_command(**values: Any) -> None:
    """Set the baseline of a model for drift: its inferences within a window, or over a dataset.

    \b
    quadriga baseline --model NAME --from -7d
    quadriga baseline --model NAME --dataset FOLDER
    quadriga baseline --model NAME --from -7d --data FOLDER
    """  # noqa: D301 - click leaves lines after a backspace as they are
    from quadriga.client.versions import split_version
    from quadriga.monitor.report.metric_texts import excluded_text

    options = SimpleNamespace(**values)
    options.model, options.version = split_version(options.model)
    windows = (options.start, options.end, options.rolling)
    if options.dataset is not None and (windows != (None, None, None) or options.where):
        raise click.UsageError("--dataset cannot be used with a window")
    is_here = options.data is not None or options.database is not None
    if is_here and (options.server is not None or options.dataset is not None):
        other = "--server" if options.server is not None else "--dataset"
        raise click.UsageError(f"{other} cannot be used with --data or --database")
    options.where = parse_filter(options.where, "--where")
    baseline = _save_baseline(options) if is_here else _put_baseline(options)
    print_progress("")
    if options.as_json:
        echo_json(baseline)
        return
    summary = f"{baseline['name']} of {baseline['model']}: {baseline['state']}"
    if baseline["rolling"] is not None:
        click.echo(f"{summary}, the {baseline['rolling']} before each window")
        return
    click.echo(f"{summary}, {baseline['n']:,} images")
    for count, reason in excluded_text(baseline["excluded"]):
        click.echo(f"left out: {count} {reason}")
    if baseline["name"] == _DEFAULT_NAME:
        references = (
            f"{baseline['references']:,} embeddings"
            if baseline["references"]
            else "none, as 100 are needed"
        )
        click.echo(f"semantic score: {references}")


def _put_baseline(options: SimpleNamespace) -> dict[str, Any]:
    """Have the server save the baseline, and return it."""
    client = connect(options.server)
    if options.dataset is not None:
        _run_over_dataset(client, options)
    saved = client.models.set_baseline(options.model, **_to_request(options))
    if saved["job"] is not None:
        client.jobs.wait(saved["job"])
    baselines = client.models.baselines(options.model)["baselines"]
    baseline: dict[str, Any] = next(
        (candidate for candidate in baselines if candidate["name"] == options.name), saved
    )
    return baseline


def _save_baseline(options: SimpleNamespace) -> Any:
    """Read the inferences here, save the baseline in the data folder, and return it."""
    from quadriga.engine.commands.monitoring.reports import check_keepable
    from quadriga.monitor.drift.baselines import BaselineStore, decode_baseline
    from quadriga.monitor.drift.job import BaselineJob, run_baseline
    from quadriga.monitor.drift.service import DriftService
    from quadriga.store.jobs.jobs import Jobs
    from quadriga.store.jobs.runner import run_here

    settings = store_settings(options.data, options.database, is_written=True, must_exist=True)
    check_keepable(options, settings)
    body = msgspec.json.encode(_to_request(options))
    jobs, baselines = Jobs(settings.jobs_directory), BaselineStore(settings.baselines_directory)
    with open_store(settings) as (inferences, blobs):
        model = inferences.names.resolve(options.model)
        if options.rolling is not None:  # nothing is read yet
            baseline = DriftService(jobs, inferences, baselines).put_baseline(model, body)
            return msgspec.to_builtins(baseline)
        inferences.check_where(options.where)
        job = BaselineJob(model, decode_baseline(model, body, time.time_ns() // 1000))
        with run_here(jobs, "baseline", job, inferences, blobs) as run:
            run.end("succeeded", result=run.result(run_baseline(run)))
    return msgspec.to_builtins(baselines.get(model, options.name))


def _to_request(options: SimpleNamespace) -> dict[str, Any]:
    """Return the request for a baseline, as the API takes it."""
    window = {"from": options.start, "to": options.end, "rolling": options.rolling}
    return {"name": options.name, "version": options.version, "where": options.where, **window}


def _run_over_dataset(client: Any, options: SimpleNamespace) -> None:
    """Run the model over the dataset; the options name its version and the filter of its inferences then."""
    from quadriga.engine.commands.monitoring.datasets import (
        DatasetRun,
        resolve_model,
        run_model,
        snapshot_hash,
    )
    from quadriga.monitor.evaluation.files.datasets import read_dataset

    model, version, task = resolve_model(client, options.model, options.version)
    images = read_dataset(options.dataset, task, dataset_formats())
    snapshot = options.snapshot or snapshot_hash(images, options.threads)
    run = DatasetRun(model, version, task, snapshot=snapshot, parameters={})
    run_model(client, run, images, options.threads)
    options.model, options.version, options.where = model, version, run.snapshot_filter
