"""The command `quadriga`."""

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args

import rich_click as click
from click.shell_completion import get_completion_class

from quadriga.engine.commands.output import fail
from quadriga.engine.config import extras
from quadriga.engine.config import settings as settings_module
from quadriga.engine.config.settings import SettingsError, fields, flag_of

_EXPECTED_ERRORS = {
    "builtins.OSError",
    "quadriga.extras.tuning.quantizer.QuantizationError",
    "quadriga.engine.models.onnx_file.LoadError",
    "quadriga.engine.models.runners.session.RunError",
    "quadriga.engine.config.extras.MissingExtra",
    "quadriga.engine.config.settings.SettingsError",
    "json.decoder.JSONDecodeError",
    "quadriga.monitor.drift.samples.DriftError",
    "quadriga.monitor.evaluation.state.EvaluationError",
    "msgspec.ValidationError",
    "quadriga.proto.errors.ProtocolError",
    "quadriga.client.errors.ClientError",
    "sqlalchemy.exc.DBAPIError",
    "quadriga.store.records.errors.StoreError",
}
"""Errors whose message suffices, without a traceback; by name, since a command imports only what it needs."""


_COMMANDS = {
    "audit": "audit:audit_command", "backup": "backup:backup_command", "baseline": "monitoring.baseline:baseline_command",
    "check": "backup:check_command", "compare": "compare:compare_command", "drift": "monitoring.drift:drift_command",
    "erase": "erase:erase_command", "evaluate": "monitoring.evaluate:evaluate_command", "export": "inferences:export_command",
    "import": "inferences:import_command", "infer": "infer:infer_command", "inspect": "checks:inspect",
    "jobs": "jobs:jobs_command", "keys": "keys:keys_command", "migrate": "store:migrate", "models": "models:models_command",
    "query": "inferences:query", "reports": "monitoring.reports:reports_command", "replay": "compare:replay_command",
    "restore": "backup:restore_command", "schedules": "monitoring.schedules:schedules_command", "select": "select:select_command",
    "store": "store:store", "validate": "checks:validate",
}  # fmt: skip
"""Modules and names of commands, which are imported as they are used: the others cost a command nothing."""

_OF_EXTRAS = ("profile", "quantize")


class _Commands(click.RichGroup):
    """Commands that report an expected error in one line and exit with status 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Import all commands, and return their names."""
        for name in (*_COMMANDS, *_OF_EXTRAS):
            self.get_command(ctx, name)
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, which is imported if it was not yet; None for a name that none has."""
        if cmd_name in _COMMANDS and cmd_name not in self.commands:
            command = resolve_name(f"quadriga.engine.commands.{_COMMANDS[cmd_name]}")
            self.add_command(command, cmd_name)
        if cmd_name in _OF_EXTRAS and cmd_name not in self.commands:
            with suppress(extras.MissingExtra):
                self.add_command(extras.load(cmd_name, cmd_name))
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            names = {f"{class_.__module__}.{class_.__qualname__}" for class_ in type(error).__mro__}
            if names.isdisjoint(_EXPECTED_ERRORS) or isinstance(error, BrokenPipeError):
                raise
            fail(error)


_PANELS = {
    "Serve": ("serve", "infer", "models", "jobs", "schedules"),
    "Prepare a model": ("inspect", "validate", "profile", "quantize"),
    "Find what was stored": ("query", "export", "import", "select", "erase"),
    "Judge and watch": ("evaluate", "compare", "replay", "drift", "baseline", "reports"),
    "Operate": ("keys", "audit", "backup", "restore", "check", "migrate", "store", "completion"),
}  # fmt: skip
"""Commands by what people do, in the order in which they do it."""


def _in_panels(command: click.RichGroup) -> click.RichGroup:
    for name, commands in _PANELS.items():
        command = click.command_panel(name, commands=list(commands))(command)
    return command


@_in_panels
@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="quadriga")
def main() -> None:
    """Serve computer-vision models, store every inference, and find it again."""


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
    for name in (*settings_module.REMOVED, *settings_module.RENAMED):
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
            raise settings_module.unknown(name, f"flag {error.option_name}") from error


@main.command(cls=_Serve)
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
    settings = settings_module.load(supplied, os.environ, config)
    settings_module.add_extensions(settings)
    if "://" not in settings.models and not Path(settings.models).exists():
        raise SettingsError(f"model folder not found: {settings.models}")
    configure_logging("supervisor", settings)
    for path in settings_module.open_secret_files(os.environ):
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


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes commands and options.

    \b
    quadriga completion bash > ~/.local/share/bash-completion/completions/quadriga
    quadriga completion fish > ~/.config/fish/completions/quadriga.fish
    """  # noqa: D301 - click leaves lines after a backspace as they are
    made = get_completion_class(shell)
    if made is not None:
        click.echo(made(main, {}, "quadriga", "_QUADRIGA_COMPLETE").source())


def _announce(url: str, grpc_address: str, make_line: Callable[[str], str] = str) -> None:
    click.echo(make_line(f"Quadriga listens on {url}"))
    if grpc_address:
        click.echo(make_line(f"gRPC on {grpc_address}"))
    click.echo(make_line(f"Console on {url}/console/"))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
