"""The command `quadriga`: serve, inspect, validate, query, conformance, and those on the store."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine import settings as settings_module
from engine.baseline_command import baseline_command
from engine.drift_command import drift_command
from engine.evaluate_command import evaluate_command
from engine.export_commands import export_command, import_command
from engine.settings import Settings, SettingsError
from engine.store_commands import fail, migrate, store, store_options, store_settings

_SERVE_FLAGS = [name for name in Settings.__struct_fields__ if name != "models"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="quadriga")
def main() -> None:
    """Serve computer-vision models, keep every inference, and find it again."""


def _setting_options(command: Any) -> Any:
    """Give a command one flag per setting, with the setting's own description."""
    texts = settings_module.descriptions()
    defaults = Settings()
    for name in reversed(_SERVE_FLAGS):
        flag = f"--{name.replace('_', '-')}"
        default = getattr(defaults, name)
        text = f"{texts[name]} [default: {default}]" if default not in ("", None) else texts[name]
        if isinstance(default, bool):
            command = click.option(
                f"{flag}/--no-{name.replace('_', '-')}", default=None, help=text
            )(command)
        else:
            command = click.option(flag, default=None, help=text)(command)
    return command


@main.command()
@click.argument("models", required=False)
@click.option(
    "--config", type=click.Path(path_type=Path), help="Settings file; default: quadriga.toml."
)
@_setting_options
def serve(models: str | None, config: Path | None, **flags: Any) -> None:
    """Serve MODELS: a folder of model folders, one model folder, or one ONNX file."""
    from engine.supervisor import supervise  # noqa: PLC0415 - other commands need no processes
    from engine.worker import configure_logging  # noqa: PLC0415 - as above

    given = {
        name: value for name, value in {"models": models, **flags}.items() if value is not None
    }
    try:
        settings = settings_module.load(given, os.environ, config)
        configure_logging("supervisor")
        sys.exit(supervise(settings, _announce))
    except SettingsError as error:
        fail(error)


def _announce(url: str, grpc_address: str) -> None:
    click.echo(f"Quadriga listens on {url}", err=False)
    if grpc_address:
        click.echo(f"gRPC on {grpc_address}")
    sys.stdout.flush()


@main.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(model: Path, as_json: bool) -> None:  # noqa: FBT001 - a flag of the command line
    """Say what MODEL is, what will be done with it, and why. MODEL is a folder or an ONNX file."""
    from engine.inspection import inspect_model, show  # noqa: PLC0415 - loads onnxruntime
    from engine.session import LoadError  # noqa: PLC0415 - as above

    try:
        inspection = inspect_model(model)
    except LoadError as error:
        fail(error)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(inspection)).decode())
    else:
        show(inspection, Console())


@main.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--image",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Image file.",
)
@click.option(
    "--output",
    default="annotated.png",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the picture with the predictions goes.",
)
@click.option(
    "--parameters",
    default="{}",
    help="""Parameters of the request, in JSON, such as '{"prompts": ["What is it?"]}'.""",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def validate(model: Path, image: Path, output: Path, parameters: str, as_json: bool) -> None:  # noqa: FBT001 - a flag of the command line
    """Run MODEL on an image, check the answer, and draw it. Exits with 1 where a check fails."""
    from engine.session import LoadError, RunError  # noqa: PLC0415 - loads onnxruntime
    from engine.validation import validate as run  # noqa: PLC0415 - as above
    from proto.errors import ProtocolError  # noqa: PLC0415 - as above

    try:
        asked = json.loads(parameters)
        if not isinstance(asked, dict):
            raise click.BadParameter(
                f"expected an object, got {parameters}", param_hint="--parameters"
            )
        found = run(model, image, output, asked)
    except (LoadError, RunError, ProtocolError, OSError, json.JSONDecodeError) as error:
        fail(error)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        table = Table(f"{image.name}, {found.width} x {found.height}", "", "found")
        for check in found.checks:
            table.add_row(check.name, "yes" if check.holds else "[red]NO", check.found)
        console = Console()
        for prediction in found.predictions[:20]:
            console.print(msgspec.json.encode(prediction).decode(), soft_wrap=True)
        console.print(table)
        console.print(f"Picture: {found.picture}", soft_wrap=True)
    sys.exit(0 if all(check.holds for check in found.checks) else 1)


@main.command()
@click.argument("where", metavar="FILTER", default="")
@store_options
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Inferences to show.",
)
@click.option("--order", type=click.Choice(["-ts", "ts"]), default="-ts", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record a line.")
def query(where: str, as_json: bool, limit: int, order: Any, **flags: Any) -> None:  # noqa: FBT001 - a flag of the command line
    """Find stored inferences by FILTER, in JSON or on one line.

    For example '{"meta.altitude": {"ge": 100}, "label": "circle"}' or 'meta.altitude=ge:100 & label=circle'.
    """
    from store.blobs.files import open_blobs  # noqa: PLC0415 - other commands need no database
    from store.errors import StoreError  # noqa: PLC0415 - as above
    from store.inferences import Inferences  # noqa: PLC0415 - as above
    from store.query.request import QueryRequest  # noqa: PLC0415 - as above

    try:
        settings = store_settings(flags)
        inferences = Inferences(
            settings.database_url,
            settings.journal_directory,
            open_blobs(settings.blob_place, settings.blob_grace_s),
        )
        request = QueryRequest(
            json.loads(where) if where.lstrip().startswith("{") else where,
            limit=limit,
            order=order,
            count="capped",
        )
        page = inferences.query(request)
    except json.JSONDecodeError as error:
        fail(ValueError(f"expected FILTER to be JSON, got {where!r}: {error}"))
    except (SettingsError, StoreError, msgspec.ValidationError) as error:
        fail(error)
    if as_json:
        for record in page.inferences:
            click.echo(msgspec.json.encode(record))
        return
    table = Table(show_lines=True)
    table.add_column("inference", no_wrap=True, overflow="fold")
    for name in ("predictions", "metadata"):
        table.add_column(name, overflow="fold")
    for record in page.inferences:
        predictions = json.loads(bytes(record.predictions))
        shown = ", ".join(filter(None, map(_in_words, predictions[:4])))
        more = f" and {len(predictions) - 4} more" if len(predictions) > 4 else ""
        name = f"{record.id}\n{record.created_at}\n{record.model.name}\n{record.input.name}"
        cells = (name, shown + more, bytes(record.metadata).decode())
        table.add_row(*map(Text, cells))  # what stands in brackets is no markup
    console = Console()
    console.print(table)
    more = "" if page.count_is_exact else " or more"
    console.print(f"{len(page.inferences)} of {page.count}{more} shown")
    if page.partial:
        console.print(
            "The search ended before all were looked at: narrow it, for example by a time."
        )


@main.command()
@click.argument("url")
@click.option("--model", required=True, help="Name in the path, such as m-<id>.")
@click.option("--task", required=True, help="Such as detection, or OBJECT_DETECTION.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def conformance(url: str, model: str, task: str, as_json: bool) -> None:  # noqa: FBT001 - a flag of the command line
    """Ask the engine at URL whether it speaks chariot-v2-kserve. Exits with 1 where a must differs."""
    from proto.conformance import TASKS, Engine, check_engine  # noqa: PLC0415 - draws with OpenCV
    from proto.conformance_cases import CASES  # noqa: PLC0415 - as above
    from tasks import SHORT_NAMES, full_name  # noqa: PLC0415 - as above

    name = full_name(task)
    if name not in TASKS:
        known = [short for short, long in SHORT_NAMES.items() if long in TASKS]
        raise click.BadParameter(
            f"expected one of {', '.join(known)}, got {task}", param_hint="--task"
        )
    holds = True
    for finding in check_engine(Engine(url, model, name), CASES):
        holds = holds and (finding.ok or finding.severity == "should")
        if as_json:
            click.echo(msgspec.json.encode(finding))
            continue
        click.echo(f"{'ok' if finding.ok else 'differs':7}  {finding.severity:6}  {finding.case}")
        for what, text in (("expected", finding.expected), ("got", finding.found)):
            if text:
                click.echo(f"{'':17}{what} {text}")
    sys.exit(0 if holds else 1)


main.add_command(baseline_command)
main.add_command(drift_command)
main.add_command(evaluate_command)
main.add_command(export_command)
main.add_command(import_command)
main.add_command(migrate)
main.add_command(store)


def _in_words(prediction: dict[str, Any]) -> str:
    if "label" in prediction:
        return f"{prediction['label']} {prediction['score']:.2f}"
    return str(prediction.get("answer", ""))


if __name__ == "__main__":
    main()
