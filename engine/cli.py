"""The command `quadriga`."""

from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

import rich_click as click
from click.shell_completion import get_completion_class

from quadriga.engine.commands.output import fail
from quadriga.engine.config import extras

_EXPECTED_ERRORS = {
    "builtins.OSError",
    "quadriga.extras.tuning.quantizer.QuantizationError",
    "quadriga.engine.models.onnx_file.LoadError",
    "quadriga.engine.models.runners.session.RunError",
    "quadriga.engine.config.extras.MissingExtra",
    "quadriga.engine.config.settings.SettingsError",
    "json.decoder.JSONDecodeError",
    "quadriga.monitor.drift.samples.DriftError",
    "msgspec.ValidationError",
    "quadriga.proto.errors.ProtocolError",
    "quadriga.client.errors.ClientError",
    "sqlalchemy.exc.DBAPIError",
    "quadriga.store.records.errors.StoreError",
}
"""Errors whose message suffices, without a traceback; by name, since a command imports only what it needs."""


_COMMANDS = {
    "audit": "commands.keys:audit_command", "backup": "commands.store:backup_command",
    "baseline": "commands.monitoring.drift:baseline_command", "check": "commands.store:check_command",
    "compare": "commands.compare:compare_command", "drift": "commands.monitoring.drift:drift_command",
    "erase": "commands.erase:erase_command", "evaluate": "commands.monitoring.evaluate:evaluate_command",
    "export": "commands.inferences:export_command", "import": "commands.inferences:import_command",
    "infer": "commands.infer:infer_command", "inspect": "commands.checks:inspect", "jobs": "commands.server:jobs_command",
    "keys": "commands.keys:keys_command", "migrate": "commands.store:migrate", "models": "commands.server:models_command",
    "query": "commands.inferences:query", "replay": "commands.compare:replay_command",
    "reports": "commands.server:reports_command", "restore": "commands.store:restore_command",
    "schedules": "commands.server:schedules_command", "select": "commands.inferences:select_command",
    "serve": "processes.serve_command:serve", "store": "commands.store:store", "validate": "commands.checks:validate",
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
            command = resolve_name(f"quadriga.engine.{_COMMANDS[cmd_name]}")
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


if __name__ == "__main__":
    main()
