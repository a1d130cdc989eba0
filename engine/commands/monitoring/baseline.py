"""The command `quadriga baseline`: sets a model's baseline, on a running server or in its data folder."""

import time
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
)
from quadriga.engine.commands.output import echo_json, print_progress
from quadriga.engine.commands.store_options import open_store, store_options, store_settings
from quadriga.engine.config.extras import dataset_formats

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
