"""Options that several commands have, and what is read off them; they go on as a namespace."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import rich_click as click
from click import get_current_context
from click.core import ParameterSource

from quadriga.engine import settings
from quadriga.engine.settings import Settings

Decorator = Callable[[Any], Any]

DEFAULT_SERVER = "http://127.0.0.1:8080"
PATH = click.Path(path_type=Path)


def option(names: str, text: str, metavar: str | None = None, **more: Any) -> Decorator:
    """Return click's option, with spaces between its names; a default is shown."""
    shown = {"show_default": "default" in more} | more
    return click.option(*names.split(), help=text, metavar=metavar, **shown)


def _combine(*options: Decorator) -> Decorator:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _check_output(_: click.Context, __: click.Parameter, output: Path | None) -> Path | None:
    """See that a report's file is one that can be written, before all the work."""
    if output is None:
        return None
    if output.suffix not in {".html", ".json"}:
        raise click.BadParameter(f"expected a file .html or .json, got {output.name}")
    if not output.parent.is_dir():
        raise click.BadParameter(f"expected a folder {output.parent}, got none")
    if output.is_dir():
        raise click.BadParameter(f"expected a file, got the folder {output}")
    return output


store_options = _combine(
    option("--data", "Data folder of the server. [default: data]"),
    option("--database", "SQLAlchemy URL of the store."),
)
"""Of every command that opens a store; `store_settings` reads them."""

model_options = _combine(
    option(
        "--extensions",
        f"{settings.descriptions()['extensions']} [default: QUADRIGA_EXTENSIONS]",
        "FOLDER",
    ),
)
"""Options of the commands that load a model themselves; `prepare_models` applies them."""

report_options = _combine(
    option(
        "--seed", "Of what is drawn at random.", type=click.IntRange(0, (1 << 32) - 1), default=0
    ),
    option("--json as_json", "Print the report as JSON, and nothing else.", is_flag=True),
    option(
        "--output",
        "Write the report, too: .html for people, .json for programs.",
        type=PATH,
        callback=_check_output,
    ),
)
"""Of every command that makes a report."""

dataset_options = _combine(
    option("--snapshot", "What --dataset is called. [default: a hash of its images]", "NAME"),
    option("--threads", "Requests over --dataset at once.", type=click.IntRange(1, 64), default=4),
)
"""Of every command that runs a model over a dataset."""


def store_settings(data: str | None, database: str | None) -> Settings:
    """Return the settings of a server with these; what is None is left to it."""
    return _load_settings({"data": data, "database": database})


def prepare_models(extensions: str | None) -> None:
    """Let models name modules of the folder of extensions; None is left to the settings."""
    settings.add_extensions(_load_settings({"extensions": extensions}))


def _load_settings(options: Mapping[str, str | None]) -> Settings:
    flags = {name: value for name, value in options.items() if value is not None}
    return settings.load(flags, os.environ)


def select_form(
    options: SimpleNamespace, read: dict[str, set[str]], needs: dict[str, str], more: str
) -> str:
    """Tell which of its forms a command was asked for, and see that no option goes unread.

    Args:
        options: That were given.
        read: The options of each form, by the one that asks for it.
        needs: What else a form needs.
        more: The option that makes a form of its own of --model.
    """
    first = [name for name in read if name != more]
    given = [name for name in first if getattr(options, name) is not None]
    if len(given) != 1:
        *others, last = (f"--{name} {'NAME' if name == 'model' else 'FILE'}" for name in first)
        expected, got = f"{', '.join(others)} and {last}", " and ".join(given) or "none"
        raise click.UsageError(f"expected one of {expected}, got {got}")
    form = more if given == ["model"] and getattr(options, more) is not None else given[0]
    if form in needs and getattr(options, needs[form]) is None:
        raise click.UsageError(f"expected --{needs[form]} with --{form}, got none")
    context = get_current_context()
    for one in context.command.params:
        is_given = context.get_parameter_source(one.name or "") is ParameterSource.COMMANDLINE
        if is_given and one.name not in read[form]:
            raise click.UsageError(f"expected no {one.opts[0]} with --{form}, got one")
    return form


def parse_filter(text: str | None, flag: str | None = None) -> Any:
    """Return the filter of a flag, or of the argument FILTER, as a query takes it."""
    if not text:
        return None
    try:
        return json.loads(text) if text.lstrip().startswith("{") else text
    except json.JSONDecodeError as error:
        expected = "FILTER to be JSON" if flag is None else "JSON"
        said = f"expected {expected}, got {text}: {error}"
        raise click.BadParameter(said, param_hint=flag) from error


def name_and_version(text: str) -> tuple[str, str | None]:
    """Take NAME@VERSION apart; without a version it is None."""
    name, _, version = text.partition("@")
    return name, version or None


def ray_cluster(address: str | None) -> AbstractContextManager[Any]:
    """Give the Ray cluster of --on, left at the end; None where none is wanted."""
    if address is None:
        return nullcontext()
    from quadriga.monitor.evaluation.ray_executor import RayCluster

    return closing(RayCluster(address))


@contextmanager
def shard_executor(address: str | None, database_url: str) -> Iterator[Any]:
    """Give the places of --on where a database is read; None for here."""
    with ray_cluster(address) as found:
        if found is None:
            yield None
            return
        from quadriga.monitor.evaluation.ray_executor import RayExecutor

        yield RayExecutor(found, database_url)
