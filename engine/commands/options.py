"""Options that several commands share, and the values read from them."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import rich_click as click
from click import get_current_context
from click.core import ParameterSource

Decorator = Callable[[Any], Any]

DEFAULT_SERVER = "http://127.0.0.1:8080"
_RESPONSE_TIMEOUT_S = 300.0
PATH = click.Path(path_type=Path)


def option(names: str, text: str, metavar: str | None = None, **keywords: Any) -> Decorator:
    """Return a click option; `names` are separated by spaces, and a default is shown."""
    attributes = {"show_default": "default" in keywords} | keywords
    return click.option(*names.split(), help=text, metavar=metavar, **attributes)


def combine(*options: Decorator) -> Decorator:
    """Return a decorator that gives a command several options."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


DATASET_FORMATS = ("chariot", "coco", "yolo", "yolo-obb", "yolo-seg", "imagefolder", "dota", "cvat", "label-studio")  # fmt: skip
"""Datasets that an export writes, in the forms of tools."""

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

report_options = combine(
    option("--seed", "Seed of random draws.", type=click.IntRange(0, (1 << 32) - 1), default=0),
    option("--json as_json", "Print the report as JSON, and nothing else.", is_flag=True),
    report_output_option,
    option(
        "--no-keep",
        "Print the report only. [default: the data folder keeps it, and the console shows it]",
        is_flag=True,
    ),
)
"""Options of the commands that make a report."""

dataset_options = combine(
    option("--snapshot", "Name of the --dataset snapshot. [default: a hash of its images]", "NAME"),
    option(
        "--threads",
        "Concurrent requests over --dataset.",
        type=click.IntRange(1, 64),
        default=4,
    ),
)
"""Options of the commands that run a model over a dataset."""


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
    value = parse_filter(text, flag) or {}
    if not isinstance(value, dict):
        raise click.BadParameter(f"expected an object, got {text}", param_hint=flag)
    return value


def ray_cluster(address: str | None) -> AbstractContextManager[Any]:
    """Return the Ray cluster at the address of --on, closed at the end; None without an address."""
    if address is None:
        return nullcontext()
    from quadriga.monitor.evaluation.ray_executor import RayCluster

    return closing(RayCluster(address))
