"""The command `quadriga serve`: one flag for each setting, and a server that runs until it is stopped."""

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import rich_click as click

from quadriga.engine.config.settings import (
    REMOVED,
    RENAMED,
    SettingsError,
    add_extensions,
    fields,
    flag_of,
    load,
    open_secret_files,
    unknown,
)

_OTHER_FLAGS = {"name": ("--model_name", "--model-name")}
"""Further flags of settings: those of KServe."""

_REMOVED_SWITCHES = {"ce_merge", "grpc_compression", "semantic_score_in_parameters"}


def _setting_options(command: Any) -> Any:
    """Add one flag per setting to a command, in panels by group, with the setting's own description."""
    groups: dict[str, list[str]] = {}
    for field in fields().values():
        if field.name != "models":  # the argument
            group = field.group or f"Extra {field.extra}"
            groups.setdefault(group, []).append(flag_of(field.name))
    for name in (*REMOVED, *RENAMED):
        flag = _switch(name) if name in _REMOVED_SWITCHES else flag_of(name)
        command = click.option(flag, name, default=None, hidden=True)(command)
    for field in reversed(fields().values()):
        if field.name == "models":
            continue
        text, default = field.text, field.default
        command = click.option(
            _switch(field.name) if isinstance(default, bool) else flag_of(field.name),
            *_OTHER_FLAGS.get(field.name, ()),
            field.name,
            default=None,
            help=f"{text} [default: {default}]" if default not in ("", None) else text,
            metavar=_value_name(field.kind),
        )(command)
    for group, flags in reversed(groups.items()):
        command = click.option_panel(group, options=flags)(command)
    return command


def _switch(name: str) -> str:
    flag = flag_of(name)
    return flag + flag.replace("--", "/--no-", 1)


def _value_name(kind: Any) -> str | None:
    """Return what the help of a flag calls its value: its choices, or the kind of number; None for texts."""
    arguments = get_args(kind)
    if arguments and all(isinstance(argument, str) for argument in arguments):
        return "|".join(filter(None, arguments))
    return {int: "INTEGER", float: "NUMBER"}.get(kind)


class _Serve(click.RichCommand):
    """The command `serve`, which says which extra is not here if a flag is one of its settings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not error.option_name.startswith("--extras-"):
                raise
            name = error.option_name.removeprefix("--").replace("-", "_")
            raise unknown(name, f"flag {error.option_name}") from error


@click.command("serve", cls=_Serve)
@click.argument("models", required=False)
@_setting_options
@click.option(
    "--config", type=click.Path(path_type=Path), help="Settings file; default: quadriga.toml."
)
def serve(config: Path | None, **flags: Any) -> None:
    """Serve MODELS: a folder of model folders, one model folder or ONNX file, or s3://BUCKET/FOLDER."""
    from quadriga.engine.processes.logs import configure_logging, json_line
    from quadriga.engine.processes.supervisor import supervise
    from quadriga.store.records.disk import create_privately

    supplied = {name: value for name, value in flags.items() if value is not None}
    settings = load(supplied, os.environ, config)
    add_extensions(settings)
    if "://" not in settings.models and not Path(settings.models).exists():
        raise SettingsError(f"model folder not found: {settings.models}")
    configure_logging("supervisor", settings)
    for path in open_secret_files(os.environ):
        logging.getLogger("quadriga.supervisor").warning(
            "every user of this machine may read the secret in %s: chmod 600", path
        )
    create_privately()
    is_json = settings.log_format == "json"
    announce = (
        partial(_announce, make_line=partial(json_line, "supervisor")) if is_json else _announce
    )
    try:
        sys.exit(supervise(settings, announce))
    except SettingsError as error:
        if not is_json:
            raise
        logging.getLogger("quadriga.supervisor").critical("%s", error)
        sys.exit(2)


def _announce(url: str, grpc_address: str, make_line: Callable[[str], str] = str) -> None:
    click.echo(make_line(f"Quadriga listens on {url}"))
    if grpc_address:
        click.echo(make_line(f"gRPC on {grpc_address}"))
    click.echo(make_line(f"Console on {url}/console/"))
    sys.stdout.flush()
