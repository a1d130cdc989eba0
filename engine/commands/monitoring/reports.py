"""The command `quadriga reports`: the reports of evaluations and of drift that a server keeps."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import rich_click as click

from quadriga.engine.commands.options import (
    connect,
    json_option,
    option,
    report_output_option,
    server_option,
)
from quadriga.engine.commands.output import echo_json, print_table, short_time

_COLUMNS = ("id", "kind", "model", "version", "status", "made", "images")


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
    if as_json:
        echo_json({"reports": reports, "unreadable": unreadable})
        return
    if reports:
        print_table(_COLUMNS, map(_cells, reports))
    else:
        click.echo("no reports")
    for report_id in unreadable:
        click.echo(f"report {report_id} is damaged, or of a newer version", err=True)


@reports_command.command("show")
@click.argument("report_id", metavar="ID")
@report_output_option
@server_option
@json_option
def show_report(report_id: str, output: tuple[Path, ...], server: str, as_json: bool) -> None:
    """Show a report as the command that makes one does, and write it to files."""
    from quadriga.engine.commands.monitoring.report_output import read_report, write_report

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


def _cells(report: dict[str, Any]) -> tuple[str, ...]:
    model = report["model"]
    return (
        report["id"], report["kind"], model["name"], model["version"], report["status"],
        short_time(report["created"]), f"{report['n']:,}",
    )  # fmt: skip
