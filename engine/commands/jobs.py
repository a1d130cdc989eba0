"""The command `quadriga jobs`: the jobs of a server, what they do and what came out."""

import sys
from pathlib import Path
from typing import Any

import rich_click as click

from quadriga.engine.commands.options import PATH, connect, json_option, option, server_option
from quadriga.engine.commands.output import echo_json, print_table, print_text, short_time

_COLUMNS = ("id", "kind", "state", "progress", "ended", "error")
_id_argument = click.argument("job_id", metavar="ID")


@click.group("jobs", invoke_without_command=True)
@server_option
@option("--state", "Only jobs in this state; repeat for more.", multiple=True,
        type=click.Choice(["queued", "running", "succeeded", "failed", "cancelled"]))  # fmt: skip
@json_option
@click.pass_context
def jobs_command(
    context: click.Context, server: str, state: tuple[str, ...], as_json: bool
) -> None:
    """List the jobs of a server, newest first: exports, evaluations, drift reports, erasures.

    \b
    quadriga jobs --state running
    quadriga jobs wait 1795809696067523212-85cf
    """  # noqa: D301 - click leaves lines after a backspace as they are
    if context.invoked_subcommand is not None:
        return
    jobs = connect(server).jobs.list()
    if state:
        jobs = [job for job in jobs if job["state"] in state]
    if as_json:
        echo_json({"jobs": jobs})
    elif jobs:
        print_table(_COLUMNS, map(_cells, jobs))
    else:
        click.echo("no jobs")


@jobs_command.command("show")
@_id_argument
@server_option
@json_option
def show_job(job_id: str, server: str, as_json: bool) -> None:
    """Show a job with its parameters and the end of its log."""
    _print_job(connect(server).jobs.get(job_id), as_json=as_json)


@jobs_command.command("wait")
@_id_argument
@server_option
@json_option
def wait_job(job_id: str, server: str, as_json: bool) -> None:
    """Wait until a job has ended. Exits with 1 if it did not succeed."""
    from quadriga.client.errors import JobFailed

    jobs = connect(server).jobs
    try:
        job = jobs.wait(job_id)
    except JobFailed as error:
        job = error.job
    _print_job(job, as_json=as_json)
    sys.exit(0 if job["state"] == "succeeded" else 1)


@jobs_command.command("cancel")
@_id_argument
@server_option
@json_option
def cancel_job(job_id: str, server: str, as_json: bool) -> None:
    """Cancel a job at its next step."""
    _print_job(connect(server).jobs.cancel(job_id), as_json=as_json)


@jobs_command.command("result")
@_id_argument
@option("--output", "File to write the result to; - for standard output.", type=PATH, required=True)
@server_option
def job_result(job_id: str, output: Path, server: str) -> None:
    """Download the result of a job, such as the file of an export."""
    jobs = connect(server).jobs
    if str(output) == "-":
        sys.stdout.buffer.write(jobs.result(job_id))
        return
    jobs.result(job_id, output)
    click.echo(f"{output}: {output.stat().st_size:,} bytes")


def _cells(job: dict[str, Any]) -> tuple[str, ...]:
    ended = short_time(job["ended_at"])
    return (job["id"], job["kind"], job["state"], _progress(job), ended, job["error"] or "")


def _progress(job: dict[str, Any]) -> str:
    """Return the progress of a job, `12,000 of 40,000, reading inferences`."""
    done, total, step = (job["progress"].get(name) for name in ("done", "total", "step"))
    numbers = f"{done:,}" if total is None else f"{done:,} of {total:,}"
    return f"{numbers}, {step}" if step else numbers


def _print_job(job: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(job)
        return
    for name, cell in zip(_COLUMNS, _cells(job), strict=True):
        if cell:
            print_text(f"{name}: {cell}")
    for name, value in job["parameters"].items():
        if value not in (None, [], {}):
            print_text(f"parameter {name}: {value}")
    if job["log"]:
        print_text(job["log"].rstrip())
