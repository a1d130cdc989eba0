"""Options that several commands share, and the settings and values read from them."""

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

from quadriga.engine.config.settings import Settings, SettingsError, add_extensions, fields, load
from quadriga.engine.config.store_places import check_places
from quadriga.store.records.disk import create_privately

Decorator = Callable[[Any], Any]

DEFAULT_SERVER = "http://127.0.0.1:8080"
_RESPONSE_TIMEOUT_S = 300.0
PATH = click.Path(path_type=Path)


def option(names: str, text: str, metavar: str | None = None, **keywords: Any) -> Decorator:
    """Return a click option; `names` are separated by spaces, and a default is shown."""
    attributes = {"show_default": "default" in keywords} | keywords
    return click.option(*names.split(), help=text, metavar=metavar, **attributes)


def _combine(*options: Decorator) -> Decorator:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_REPORT_ENDINGS = (".html", ".json", ".md", ".xml")


def _check_outputs(
    _: click.Context, __: click.Parameter, outputs: tuple[Path, ...]
) -> tuple[Path, ...]:
    """Check that a report's files can be written, before the work starts.

    Raises:
        click.BadParameter: One has another ending, its folder does not exist, or it is named twice.
    """
    for output in outputs:
        if output.suffix not in _REPORT_ENDINGS:
            expected = ", ".join(_REPORT_ENDINGS[:-1])
            raise click.BadParameter(
                f"expected a file ending in {expected} or {_REPORT_ENDINGS[-1]}, got {output.name}"
            )
        if not output.parent.is_dir():
            raise click.BadParameter(f"folder not found: {output.parent}")
        if output.is_dir():
            raise click.BadParameter(f"expected a file, got the folder {output}")
        if outputs.count(output) > 1:
            raise click.BadParameter(f"expected each file once, got {output} twice")
    return outputs


def _of_the_group(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Return what the group of a command was given, if the command itself was given nothing."""
    group, name = context.parent, parameter.name or ""
    is_given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
    return value if is_given or group is None else group.params.get(name, value)


SERVER_NAMES = "--server --url server"
"""Names of the option with a server's URL, of which the first is in the documents."""

server_option = click.option(
    *SERVER_NAMES.split(),
    default=DEFAULT_SERVER,
    show_default=True,
    metavar="URL",
    callback=_of_the_group,
)
"""Option of the commands that ask a server; a command of a group takes that of the group."""

json_option = option("--json as_json", "Print JSON, and nothing else.", is_flag=True)


def connect(url: str | None, **options: Any) -> Any:
    """Return the client of a server, with the key and the TLS files that the environment names.

    Args:
        url: URL of the server; None for the default.
        options: Further arguments of `quadriga.client.Client`.
    """
    from quadriga.client import Client

    return Client(
        url or DEFAULT_SERVER,
        timeout=_RESPONSE_TIMEOUT_S,
        total_timeout=_RESPONSE_TIMEOUT_S,
        **options,
    )


report_output_option = option(
    "--output",
    "Also write the report to a file; repeat for more: .html for people, .json for programs, .md for the "
    "summary of a pipeline, .xml for its checks as JUnit.",
    type=PATH,
    multiple=True,
    callback=_check_outputs,
)

_CONFIG = "quadriga.config"
"""Key of the context under which the file of --config is."""


def _keep_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    context.meta[_CONFIG] = path


config_option = option(
    "--config",
    "Settings file of the server. [default: QUADRIGA_CONFIG, else quadriga.toml]",
    type=PATH,
    callback=_keep_config,
    expose_value=False,
)
store_options = _combine(
    option("--data", "Data folder of the server. [default: data]"),
    option("--database", "SQLAlchemy URL of the store."),
    config_option,
)
"""Options of the commands that open a store; `store_settings` reads them."""

model_options = _combine(
    option(
        "--extensions",
        f"{fields()['extensions'].text} [default: QUADRIGA_EXTENSIONS]",
        "FOLDER",
    ),
)
"""Options of the commands that load a model themselves; `prepare_models` applies them."""

keep_option = option(
    "--no-keep keep",
    "Print the report only. [default: the data folder keeps it, and the console shows it]",
    flag_value=False,
    default=True,
    show_default=False,
)
report_options = _combine(
    option("--seed", "Seed of random draws.", type=click.IntRange(0, (1 << 32) - 1), default=0),
    option("--json as_json", "Print the report as JSON, and nothing else.", is_flag=True),
    report_output_option,
    keep_option,
)
"""Options of the commands that make a report."""

dataset_options = _combine(
    option("--snapshot", "Name of the --dataset snapshot. [default: a hash of its images]", "NAME"),
    option(
        "--threads",
        "Concurrent requests over --dataset.",
        type=click.IntRange(1, 64),
        default=4,
    ),
)
"""Options of the commands that run a model over a dataset."""


def store_settings(
    data: str | None,
    database: str | None,
    *,
    is_written: bool = False,
    reads_images: bool = True,
    must_exist: bool = False,
) -> Settings:
    """Return the settings with these values; None leaves a value to the environment, the settings file or default.

    A command that writes the store makes its files for its user alone from then on, as the server does.

    Raises:
        SettingsError: The server of the data folder has another database or, where images are read, others; a database
            that is named without a folder is that of no folder. Or there is no store, where it must exist.
    """
    if is_written:
        create_privately()
    settings = _load_settings({"data": data, "database": database})
    if database is None or data is not None:
        check_places(settings, reads_images=reads_images)
    if must_exist:
        _check_exists(settings)
    return settings


def _check_exists(settings: Settings) -> None:
    """Check that a data folder is there, and has a database of its own if it is to have one.

    Raises:
        SettingsError: It is not.
    """
    from quadriga.store.database.sqlite import database_path

    file = database_path(settings.database_url)
    if file is not None and not file.exists() and not settings.journal_directory.is_dir():
        raise SettingsError(
            f"no store in {settings.data}: set --data, --database or --config as for the server"
        )


def data_settings(data: str | None) -> Settings:
    """Return the settings of a command that reads files of a data folder, and no store."""
    return _load_settings({"data": data})


def prepare_models(extensions: str | None) -> None:
    """Make the modules of the extensions folder importable; None takes the folder of the settings."""
    add_extensions(_load_settings({"extensions": extensions}))


def _load_settings(options: Mapping[str, str | None]) -> Settings:
    flags = {name: value for name, value in options.items() if value is not None}
    context = get_current_context(silent=True)
    file = None if context is None else context.meta.get(_CONFIG)
    return load(flags, os.environ, file)


def select_form(
    options: SimpleNamespace,
    options_by_form: dict[str, set[str]],
    required: dict[str, str],
    *combined: str,
) -> str:
    """Return the form of a command that the options select; refuse options that it does not read.

    Args:
        options: Values of all options.
        options_by_form: Options that each form reads, by the option that selects the form.
        required: Option that a form needs besides the one that selects it.
        combined: Options that make a form of their own together with --model, the first of them that is given.

    Raises:
        click.UsageError: No form or several are selected, or an option is missing or unread.
    """
    names = [name for name in options_by_form if name not in combined]
    supplied = [name for name in names if getattr(options, name) is not None]
    if len(supplied) != 1:
        *others, last = (f"--{name} {'NAME' if name == 'model' else 'FILE'}" for name in names)
        expected, got = f"{', '.join(others)} and {last}", " and ".join(supplied) or "none"
        raise click.UsageError(f"expected one of {expected}, got {got}")
    form = supplied[0]
    if form == "model":
        form = next((name for name in combined if getattr(options, name) is not None), form)
    if form in required and getattr(options, required[form]) is None:
        raise click.UsageError(f"--{required[form]} is required with --{form}")
    context = get_current_context()
    for parameter in context.command.params:
        is_given = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if is_given and parameter.expose_value and parameter.name not in options_by_form[form]:
            raise click.UsageError(f"{parameter.opts[0]} cannot be used with --{form}")
    return form


def parse_filter(text: str | None, flag: str | None = None) -> Any:
    """Return the filter in a flag, or in the argument FILTER, as a query takes it."""
    if not text:
        return None
    try:
        return json.loads(text) if text.lstrip().startswith("{") else text
    except json.JSONDecodeError as error:
        expected = "FILTER to be JSON" if flag is None else "JSON"
        message = f"expected {expected}, got {text}: {error}"
        raise click.BadParameter(message, param_hint=flag) from error


def parse_object(text: str | None, flag: str) -> dict[str, Any]:
    """Return the JSON object in a flag; an empty one for None.

    Raises:
        click.BadParameter: It is none.
    """
    try:
        value = {} if text is None else json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"expected JSON, got {text}: {error}", param_hint=flag) from error
    if not isinstance(value, dict):
        raise click.BadParameter(f"expected an object, got {text}", param_hint=flag)
    return value


def name_and_version(text: str) -> tuple[str, str | None]:
    """Split NAME@VERSION; the version is None if there is none."""
    name, _, version = text.partition("@")
    return name, version or None


def ray_cluster(address: str | None) -> AbstractContextManager[Any]:
    """Return the Ray cluster at the address of --on, closed at the end; None without an address."""
    if address is None:
        return nullcontext()
    from quadriga.monitor.evaluation.ray_executor import RayCluster

    return closing(RayCluster(address))


@contextmanager
def shard_executor(address: str | None, database_url: str) -> Iterator[Any]:
    """Yield the executor that reads a database on the cluster of --on; None to read it here."""
    with ray_cluster(address) as ray:
        if ray is None:
            yield None
            return
        from quadriga.monitor.evaluation.ray_executor import RayExecutor

        yield RayExecutor(ray, database_url)
