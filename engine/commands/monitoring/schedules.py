"""The command `quadriga schedules`: which models a server watches, by drift and by evaluation."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import rich_click as click

from quadriga.engine.commands.options import connect, json_option, server_option
from quadriga.engine.commands.output import echo_json, print_table, short_time

_COLUMNS = ("model", "kind", "every", "next report", "alerts go to", "waiting alerts")


@click.command("schedules")
@server_option
@json_option
def schedules_command(server: str, as_json: bool) -> None:
    """List the schedules of drift and of evaluation that a server has for its models."""
    schedules = list(_schedules(connect(server)))
    if as_json:
        echo_json({"schedules": [{"kind": kind, **schedule} for kind, schedule in schedules]})
    elif schedules:
        print_table(_COLUMNS, (_cells(kind, schedule) for kind, schedule in schedules))
    else:
        click.echo("no schedules")


def _schedules(client: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    from quadriga.client.errors import NotFound

    kinds = {"drift": client.schedules.drift, "evaluation": client.schedules.evaluation}
    for model in client.models.list():
        for kind, read in kinds.items():
            with suppress(NotFound):
                yield kind, read(model["name"])


def _cells(kind: str, schedule: dict[str, Any]) -> tuple[str, ...]:
    webhooks, next_report = schedule["webhooks"], short_time(schedule["next_at"])
    if (state := schedule.get("baseline_state")) in {"missing", "failed"}:
        next_report = f"none: its baseline {schedule['baseline']} is {state}"
    return (
        schedule["model"], kind, schedule["every"], next_report,
        "\n".join(webhook["url"] for webhook in webhooks),
        str(sum(webhook["waiting"] for webhook in webhooks)) if webhooks else "",
    )  # fmt: skip
