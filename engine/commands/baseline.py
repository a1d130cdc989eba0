"""The command `quadriga baseline`: sets a model's baseline on a running server."""

from types import SimpleNamespace
from typing import Any

import rich_click as click

from quadriga.engine.commands.options import (
    PATH,
    dataset_options,
    name_and_version,
    option,
    parse_filter,
    server_option,
)
from quadriga.engine.commands.output import echo_json, print_progress
from quadriga.engine.commands.server_client import ServerClient, model_path, wait_for_job
from quadriga.monitor.report import metric_texts

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
@server_option
@option("--json as_json", "Print the baseline as JSON.", is_flag=True)
def baseline_command(**values: Any) -> None:
    """Set the baseline of a model for drift: its inferences within a window, or over a dataset.

    \b
    quadriga baseline --model NAME --from -7d
    quadriga baseline --model NAME --dataset FOLDER
    """  # noqa: D301 - click leaves lines after a backspace as they are
    options = SimpleNamespace(**values)
    windows = (options.start, options.end, options.rolling)
    if options.dataset is not None and (windows != (None, None, None) or options.where):
        raise click.UsageError("--dataset cannot be used with a window")
    baseline = _put_baseline(options)
    print_progress("")
    if options.as_json:
        echo_json(baseline)
        return
    summary = f"{baseline['name']} of {baseline['model']}: {baseline['state']}"
    if baseline["rolling"] is not None:
        click.echo(f"{summary}, the {baseline['rolling']} before each window")
        return
    click.echo(f"{summary}, {baseline['n']:,} images")
    for count, reason in metric_texts.excluded_text(baseline["excluded"]):
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
    server = ServerClient(options.server)
    model, version = name_and_version(options.model)
    filter_ = parse_filter(options.where, "--where")
    if options.dataset is not None:
        model, version, filter_ = _run_over_dataset(server, (model, version), options)
    request = {
        "name": options.name,
        "version": version,
        "where": filter_,
        "from": options.start,
        "to": options.end,
        "rolling": options.rolling,
    }
    path = f"/api/models/{model_path(model, None)}/baseline"
    response = server.request_json("PUT", path, request)
    if response["job"] is not None:
        job = server.request_json("GET", f"/api/jobs/{response['job']}")
        wait_for_job(
            server,
            job,
            lambda read, total: print_progress(f"read {read} of {total or '?'} inferences"),
        )
    baselines = server.request_json("GET", path)["baselines"]
    baseline: dict[str, Any] = next(
        (candidate for candidate in baselines if candidate["name"] == options.name), response
    )
    return baseline


def _run_over_dataset(
    server: ServerClient, name_version: tuple[str, str | None], options: SimpleNamespace
) -> tuple[str, str, Any]:
    """Run the model over the dataset; return its name, version, and the filter of its inferences."""
    from quadriga.engine.commands.datasets import (
        DatasetRun,
        resolve_model,
        run_model,
        snapshot_hash,
    )
    from quadriga.monitor.evaluation.files.datasets import read_dataset

    model, version, task = resolve_model(server, *name_version)
    images = read_dataset(options.dataset, task)
    snapshot = options.snapshot or snapshot_hash(images, options.threads)
    run = DatasetRun(
        model, version, task, snapshot=snapshot, parameters={}, threads=options.threads
    )
    run_model(server, run, images)
    return model, version, run.snapshot_filter
