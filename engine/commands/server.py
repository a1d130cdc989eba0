"""The commands `quadriga models`, `jobs`, `reports` and `schedules`: what a server has, does and keeps."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import rich_click as click

from quadriga.engine.commands.options import (
    PATH,
    combine,
    connect,
    json_option,
    option,
    report_output_option,
    server_option,
)
from quadriga.engine.commands.output import echo_json, print_table, print_text, short_time

Cells = Callable[[dict[str, Any]], tuple[str, ...]]
"""Function that returns the texts of a row."""

_JOB_COLUMNS = ("id", "kind", "state", "progress", "ended", "error")
_id_argument = click.argument("job_id", metavar="ID")
_options_of_a_job = combine(_id_argument, server_option, json_option)


@click.command("models")
@server_option
@option("--json as_json", "Print the list as JSON.", is_flag=True)
def models_command(server: str, as_json: bool) -> None:
    """List the models that a server serves or has stored inferences of."""
    models = connect(server).models.list()
    if as_json:
        echo_json({"models": models})
        return
    columns = ("model", "task", "versions", "inferences", "last", "baseline", "drift", "evaluation")
    print_table(columns, map(model_cells, models), numbers=["inferences"])


def model_cells(model: dict[str, Any]) -> tuple[str, ...]:
    """Return the texts of a model's row: name, task, versions, inferences, last, baseline, drift and evaluation."""
    states = [
        f"{version['version']} {'replaced' if version.get('is_replaced') else (version['state'] or 'not served').lower()}"
        for version in model["versions"]
    ]
    baseline, drift, evaluation = model["baseline"], model["drift"], model["evaluation"]
    headline = evaluation["headline"] if evaluation else None
    value = None if headline is None else headline["value"]
    return (
        model["name"],
        model["task"] or "",
        "\n".join(states),
        f"{model['inferences']:,}",
        model["last_at"] or "",
        baseline["state"] if baseline else "",
        drift["status"] if drift else "",
        f"{headline['type']} {value:.3f}" if headline and value is not None else "",
    )


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
    _print_list("jobs", {"jobs": jobs}, _JOB_COLUMNS, _job_cells, as_json=as_json)


@jobs_command.command("show")
@_options_of_a_job
def show_job(job_id: str, server: str, as_json: bool) -> None:
    """Show a job with its parameters and the end of its log."""
    _print_job(connect(server).jobs.get(job_id), as_json=as_json)


@jobs_command.command("wait")
@_options_of_a_job
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
@_options_of_a_job
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


def _print_list(
    name: str, answer: dict[str, Any], columns: Sequence[str], cells: Cells, *, as_json: bool
) -> None:
    """Print the list of this name in an answer as a table, or the whole answer as JSON."""
    if as_json:
        echo_json(answer)
    elif answer[name]:
        print_table(columns, map(cells, answer[name]))
    else:
        click.echo(f"no {name}")


def _job_cells(job: dict[str, Any]) -> tuple[str, ...]:
    """Return the texts of a job's row; its progress as `12,000 of 40,000, reading inferences`."""
    done, total, step = (job["progress"].get(name) for name in ("done", "total", "step"))
    numbers = f"{done:,}" if total is None else f"{done:,} of {total:,}"
    progress = f"{numbers}, {step}" if step else numbers
    ended = short_time(job["ended_at"])
    return (job["id"], job["kind"], job["state"], progress, ended, job["error"] or "")


def _print_job(job: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(job)
        return
    for name, cell in zip(_JOB_COLUMNS, _job_cells(job), strict=True):
        if cell:
            print_text(f"{name}: {cell}")
    for name, value in job["parameters"].items():
        if value not in (None, [], {}):
            print_text(f"parameter {name}: {value}")
    if job["log"]:
        print_text(job["log"].rstrip())


@click.group("reports", invoke_without_command=True)
@server_option
@option("--model", "Only reports of this model.", "NAME")
@json_option
@click.pass_context
def reports_command(context: click.Context, server: str, model: str | None, as_json: bool) -> None:
    """List the reports of a server, newest first.

    \b
    quadriga reports --model shapes-detector
    quadriga reports show 1795809696067523212-85cf --output report.html
    """  # noqa: D301 - click leaves lines after a backspace as they are
    if context.invoked_subcommand is not None:
        return
    client = connect(server)
    listed = client.reports.list()
    reports, unreadable = listed["reports"], listed["unreadable"]
    if model is not None:
        name = _name_of(client, model)
        reports = [report for report in reports if report["model"]["name"] == name]
    columns = ("id", "kind", "model", "version", "status", "made", "images")
    shown = {"reports": reports, "unreadable": unreadable}
    _print_list("reports", shown, columns, _report_cells, as_json=as_json)
    for report_id in () if as_json else unreadable:
        click.echo(f"report {report_id} is damaged, or of a newer version", err=True)


@reports_command.command("show")
@click.argument("report_id", metavar="ID")
@report_output_option
@server_option
@json_option
def show_report(report_id: str, output: tuple[Path, ...], server: str, as_json: bool) -> None:
    """Show a report as the command that makes one does, and write it to files."""
    from quadriga.engine.commands.monitoring.reports import read_report, write_report

    client = connect(server)
    write_report(
        read_report(client, report_id),
        lambda _: client.reports.page(report_id),
        SimpleNamespace(output=output, as_json=as_json),
    )


def _name_of(client: Any, model: str) -> str:
    """Return the name of a model that the server knows under this spelling; the spelling itself for one that is gone."""
    from quadriga.client.errors import NotFound

    try:
        return str(client.models.get(model)["name"])
    except NotFound:
        return model


def _report_cells(report: dict[str, Any]) -> tuple[str, ...]:
    model = report["model"]
    return (
        report["id"], report["kind"], model["name"], model["version"], report["status"],
        short_time(report["created"]), f"{report['n']:,}",
    )  # fmt: skip


@click.command("schedules")
@server_option
@json_option
def schedules_command(server: str, as_json: bool) -> None:
    """List the schedules of drift and of evaluation that a server has for its models."""
    listed = {"schedules": list(_schedules(connect(server)))}
    columns = ("model", "kind", "every", "next report", "alerts go to", "waiting alerts")
    _print_list("schedules", listed, columns, _schedule_cells, as_json=as_json)


def _schedules(client: Any) -> Iterator[dict[str, Any]]:
    from quadriga.client.errors import NotFound

    kinds = {"drift": client.schedules.drift, "evaluation": client.schedules.evaluation}
    for model in client.models.list():
        for kind, read in kinds.items():
            with suppress(NotFound):
                yield {"kind": kind, **read(model["name"])}


def _schedule_cells(schedule: dict[str, Any]) -> tuple[str, ...]:
    webhooks, next_report = schedule["webhooks"], short_time(schedule["next_at"])
    if (state := schedule.get("baseline_state")) in {"missing", "failed"}:
        next_report = f"none: its baseline {schedule['baseline']} is {state}"
    return (
        schedule["model"], schedule["kind"], schedule["every"], next_report,
        "\n".join(webhook["url"] for webhook in webhooks),
        str(sum(webhook["waiting"] for webhook in webhooks)) if webhooks else "",
    )  # fmt: skip
