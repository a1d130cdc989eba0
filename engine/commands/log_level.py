"""The command `quadriga log-level`: shows and sets the level of the log of a running server."""

from typing import get_args

import rich_click as click

from quadriga.engine.commands.options import option, server_option
from quadriga.engine.commands.output import echo_json
from quadriga.engine.config.server_settings import LogLevel

_CONFIGURED = "configured"


@click.command("log-level")
@click.argument("level", required=False, type=click.Choice([*get_args(LogLevel), _CONFIGURED]))
@server_option
@option("--json as_json", "Print the answer as JSON.", is_flag=True)
def log_level_command(level: str | None, server: str, as_json: bool) -> None:
    """Show the level of a server's log, or set it until the server ends.

    `configured` sets that of its settings again. It needs the key of an administrator.
    """
    from quadriga.engine.commands.server_client import ServerClient

    client, path = ServerClient(server), "/api/log-level"
    if level is None:
        answer = client.request_json("GET", path)
    else:
        body = {"level": None if level == _CONFIGURED else level}
        answer = client.request_json("PUT", path, body)
    if as_json:
        echo_json(answer)
    else:
        click.echo(f"{answer['level']} (the settings say {answer['configured']})")
