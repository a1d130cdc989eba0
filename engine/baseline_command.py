"""The command `quadriga baseline`: what is usual of a model, by a running server."""

from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from engine.evaluation_options import filter_of, name_and_version
from engine.report_output import tell
from engine.server_client import ServerClient, model_path
from engine.store_commands import fail
from monitor import wording

DEFAULT_SERVER = "http://127.0.0.1:8080"
_DEFAULT = "default"
"""Name of the one that the semantic score compares with."""


@click.command("baseline")
@click.option("--model", required=True, metavar="NAME[@VERSION]", help="Whose it is.")
@click.option("--name", default=_DEFAULT, show_default=True, help="What it is called.")
@click.option("--from", "start", metavar="TIME", help="Since when: RFC 3339, or as -7d.")
@click.option("--to", "end", metavar="TIME", help="Until when. [default: now]")
@click.option("--where", default="", metavar="FILTER", help="Which inferences, as of a query.")
@click.option(
    "--rolling",
    metavar="SPAN",
    help="Such as 7d: the time before each window, in place of a window.",
)
@click.option(
    "--dataset",
    type=click.Path(path_type=Path),
    help="Folder or zip that --model is run over first, in place of a window.",
)
@click.option(
    "--snapshot", metavar="NAME", help="What --dataset is called. [default: a hash of its images]"
)
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Requests over --dataset at once.",
)
@click.option("--server", default=DEFAULT_SERVER, show_default=True, metavar="URL")
@click.option("--json", "as_json", is_flag=True, help="Print the baseline as JSON.")
def baseline_command(**flags: Any) -> None:
    """Say what is usual of a model, for drift: what it answered within a time, or over a dataset.

    \b
    quadriga baseline --model NAME --from -7d
    quadriga baseline --model NAME --dataset FOLDER
    """  # noqa: D301 - click leaves lines after a backspace as they are
    from monitor.evaluation.state import EvaluationError  # noqa: PLC0415 - loads numpy

    in_place = [name for name in ("start", "end", "rolling") if flags[name] is not None]
    if flags["dataset"] is not None and (in_place or flags["where"]):
        raise click.UsageError("expected --dataset without a window, got both")
    try:
        made = _made(flags)
    except (EvaluationError, OSError) as error:
        tell("")
        fail(error)
    tell("")
    if flags["as_json"]:
        click.echo(msgspec.json.format(msgspec.json.encode(made)).decode())
        return
    named = f"{made['name']} of {made['model']}: {made['state']}"
    if made["rolling"] is not None:
        click.echo(f"{named}, the {made['rolling']} before each window")
        return
    click.echo(f"{named}, {made['n']:,} images")
    for count, reason in wording.left_out(made["excluded"]):
        click.echo(f"left out: {count} {reason}")
    if made["name"] == _DEFAULT:
        references = (
            f"{made['references']:,} embeddings" if made["references"] else "none, of too few"
        )
        click.echo(f"semantic score: {references}")


def _made(flags: dict[str, Any]) -> dict[str, Any]:
    """Have the baseline made, and return it."""
    from engine.server_reports import done  # noqa: PLC0415 - loads numpy

    server = ServerClient(flags["server"])
    model, version = name_and_version(flags["model"])
    asked = {
        "name": flags["name"],
        "version": version,
        "where": filter_of(flags["where"], "--where") if flags["where"] else None,
        "from": flags["start"],
        "to": flags["end"],
        "rolling": flags["rolling"],
    }
    if flags["dataset"] is not None:
        model, version, where = _run(server, (model, version), flags)
        asked |= {"version": version, "where": where}
    path = f"/api/models/{model_path(model, None)}/baseline"
    made = server.call("PUT", path, asked)
    if made["job"] is not None:
        job = server.call("GET", f"/api/jobs/{made['job']}")
        done(server, job, lambda read, total: tell(f"read {read} of {total or '?'} inferences"))
    listed = server.call("GET", path)["baselines"]
    found: dict[str, Any] = next((one for one in listed if one["name"] == flags["name"]), made)
    return found


def _run(
    server: ServerClient, named: tuple[str, str | None], flags: dict[str, Any]
) -> tuple[str, str, Any]:
    """Run the model over the dataset; return its name, version, and the filter of its answers."""
    from engine.bulk_inference import Job, run  # noqa: PLC0415 - loads numpy
    from engine.dataset_evaluation import model_of, say, snapshot_of  # noqa: PLC0415 - as above
    from monitor.datasets import read_dataset  # noqa: PLC0415 - as above

    model, version, task = model_of(server, *named)
    images = read_dataset(flags["dataset"], task)
    snapshot = flags["snapshot"] or snapshot_of(images, flags["threads"])
    job = Job(model, version, task, snapshot, {}, flags["threads"])
    say(job, run(server, job, images, tell))
    return model, version, job.of_snapshot
