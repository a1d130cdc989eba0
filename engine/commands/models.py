"""The command `quadriga models`: lists the models of a server."""

from typing import Any

import rich_click as click

from quadriga.engine.commands.options import connect, option, server_option
from quadriga.engine.commands.output import echo_json, print_table

_COLUMNS = ("model", "task", "versions", "inferences", "last", "baseline", "drift", "evaluation")


@click.command("models")
@server_option
@option("--json as_json", "Print the list as JSON.", is_flag=True)
def models_command(server: str, as_json: bool) -> None:
    """List the models that a server serves or has stored inferences of."""
    models = connect(server).models.list()
    if as_json:
        echo_json({"models": models})
        return
    print_table(_COLUMNS, map(_cells, models), numbers=["inferences"])


def _cells(model: dict[str, Any]) -> tuple[str, ...]:
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
