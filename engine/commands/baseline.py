"""The command `quadriga baseline`: what is usual of a model, by a running server."""

from types import SimpleNamespace
from typing import Any

import rich_click as click

from quadriga.engine.commands.options import (
    DEFAULT_SERVER,
    PATH,
    dataset_options,
    filter_of,
    name_and_version,
    option,
)
from quadriga.engine.commands.output import echo_json, tell
from quadriga.engine.commands.server_client import ServerClient, done, model_path
from quadriga.monitor.report import metric_texts

_DEFAULT = "default"
"""Name of the one that the semantic score compares with."""


@click.command("baseline")
@option("--model", "Whose it is.", "NAME[@VERSION]", required=True)
@option("--name", "What it is called.", default=_DEFAULT)
@option("--from start", "Since when: RFC 3339, or as -7d.", "TIME")
@option("--to end", "Until when. [default: now]", "TIME")
@option("--where", "Which inferences, as of a query.", "FILTER")
@option("--rolling", "Such as 7d: the time before each window, in place of a window.", "SPAN")
@option(
    "--dataset", "Folder or zip that --model is run over first, in place of a window.", type=PATH
)
@dataset_options
@click.option("--server", default=DEFAULT_SERVER, show_default=True, metavar="URL")
@option("--json as_json", "Print the baseline as JSON.", is_flag=True)
def baseline_command(**given: Any) -> None:
    """Say what is usual of a model, for drift: what it answered within a time, or over a dataset.

    \b
    quadriga baseline --model NAME --from -7d
    quadriga baseline --model NAME --dataset FOLDER
    """  # noqa: D301 - click leaves lines after a backspace as they are
    options = SimpleNamespace(**given)
    windows = (options.start, options.end, options.rolling)
    if options.dataset is not None and (windows != (None, None, None) or options.where):
        raise click.UsageError("expected --dataset without a window, got both")
    made = _made(options)
    tell("")
    if options.as_json:
        echo_json(made)
        return
    named = f"{made['name']} of {made['model']}: {made['state']}"
    if made["rolling"] is not None:
        click.echo(f"{named}, the {made['rolling']} before each window")
        return
    click.echo(f"{named}, {made['n']:,} images")
    for count, reason in metric_texts.excluded_text(made["excluded"]):
        click.echo(f"left out: {count} {reason}")
    if made["name"] == _DEFAULT:
        references = (
            f"{made['references']:,} embeddings"
            if made["references"]
            else "none, as 100 are needed"
        )
        click.echo(f"semantic score: {references}")


def _made(options: SimpleNamespace) -> dict[str, Any]:
    """Have the baseline made, and return it."""
    server = ServerClient(options.server)
    model, version = name_and_version(options.model)
    where = filter_of(options.where, "--where")
    if options.dataset is not None:
        model, version, where = _run(server, (model, version), options)
    asked = {
        "name": options.name,
        "version": version,
        "where": where,
        "from": options.start,
        "to": options.end,
        "rolling": options.rolling,
    }
    path = f"/api/models/{model_path(model, None)}/baseline"
    made = server.call("PUT", path, asked)
    if made["job"] is not None:
        job = server.call("GET", f"/api/jobs/{made['job']}")
        done(server, job, lambda read, total: tell(f"read {read} of {total or '?'} inferences"))
    listed = server.call("GET", path)["baselines"]
    found: dict[str, Any] = next((one for one in listed if one["name"] == options.name), made)
    return found


def _run(
    server: ServerClient, named: tuple[str, str | None], options: SimpleNamespace
) -> tuple[str, str, Any]:
    """Run the model over the dataset; return its name, version, and the filter of its answers."""
    from quadriga.engine.commands.datasets import Job, model_of, run, snapshot_of
    from quadriga.monitor.evaluation.files.datasets import read_dataset

    model, version, task = model_of(server, *named)
    images = read_dataset(options.dataset, task)
    snapshot = options.snapshot or snapshot_of(images, options.threads)
    job = Job(model, version, task, snapshot, {}, options.threads)
    run(server, job, images)
    return model, version, job.of_snapshot
