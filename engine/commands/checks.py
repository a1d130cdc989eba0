"""The commands `quadriga inspect`, `validate` and `conformance`: checks of models and engines."""

import json
import sys
from pathlib import Path

import msgspec
import rich_click as click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quadriga.engine.commands.options import PATH, model_options, option, prepare_models
from quadriga.engine.commands.output import echo_json


@click.command()
@click.argument("model", type=PATH)
@model_options
@option("--json as_json", "Print JSON.", is_flag=True)
def inspect(model: Path, extensions: str | None, as_json: bool) -> None:
    """Describe MODEL and how it will be used, with reasons. MODEL is a folder or an ONNX file."""
    from quadriga.engine.models.inspection import inspect_model, print_inspection

    prepare_models(extensions)
    inspection = inspect_model(model)
    if as_json:
        echo_json(inspection)
    else:
        print_inspection(inspection, Console())


@click.command()
@click.argument("model", type=PATH)
@option(
    "--image",
    "Image file.",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@option(
    "--output",
    "File for the picture with the predictions.",
    default="annotated.png",
    type=PATH,
)
@option(
    "--parameters",
    """Parameters of the request as JSON, such as '{"prompts": ["What is it?"]}'.""",
    default="{}",
    show_default=False,
)
@model_options
@option("--json as_json", "Print JSON.", is_flag=True)
def validate(
    *,
    model: Path,
    image: Path,
    output: Path,
    parameters: str,
    extensions: str | None,
    as_json: bool,
) -> None:
    """Run MODEL on an image, check the predictions and draw them. Exits with 1 if a check fails."""
    from quadriga.engine.serving.tensors.validation import validate as run

    try:
        request_parameters = json.loads(parameters)
    except ValueError as error:
        raise click.BadParameter(
            f"expected JSON, got {parameters}: {error}", param_hint="--parameters"
        ) from error
    if not isinstance(request_parameters, dict):
        raise click.BadParameter(f"expected an object, got {parameters}", param_hint="--parameters")
    prepare_models(extensions)
    validation = run(model, image, output, request_parameters)
    if as_json:
        echo_json(validation)
    else:
        size = f"{validation.width} x {validation.height}"
        table = Table(escape(f"{image.name}, {size}"), "", "found")
        for check in validation.checks:
            table.add_row(check.name, "yes" if check.holds else "[red]NO", check.found)
        console = Console()
        for prediction in validation.predictions[:20]:
            console.print(msgspec.json.encode(prediction).decode(), soft_wrap=True, markup=False)
        console.print(table)
        for note in validation.notes:
            console.print(note, style="yellow", soft_wrap=True, markup=False)
        console.print(f"Picture: {validation.picture}", soft_wrap=True, markup=False)
    sys.exit(0 if all(check.holds for check in validation.checks) else 1)


@click.command()
@click.argument("url")
@option("--model", "Model name in the path, such as m-<id>.", required=True)
@option("--task", "Task, such as detection or OBJECT_DETECTION.", required=True)
@option("--json as_json", "Print one JSON object per line.", is_flag=True)
def conformance(url: str, model: str, task: str, as_json: bool) -> None:
    """Check whether the engine at URL speaks chariot-v2-kserve. Exits with 1 if a must differs."""
    from quadriga.engine.commands.server_client import (
        credentials,
        environment_key,
        environment_tls,
    )
    from quadriga.proto.conformance import TASKS, EngineClient, check_engine
    from quadriga.proto.conformance_cases import CASES
    from quadriga.tasks import SHORT_NAMES, full_name

    name = full_name(task)
    if name not in TASKS:
        allowed = ", ".join(short for short, long in SHORT_NAMES.items() if long in TASKS)
        raise click.BadParameter(f"expected one of {allowed}, got {task}", param_hint="--task")
    holds = True
    tls = environment_tls() if url.startswith("https:") else None
    client = EngineClient(url, model, name, credentials=credentials(environment_key()), tls=tls)
    for finding in check_engine(client, CASES):
        holds = holds and (finding.ok or finding.severity == "should")
        if as_json:
            click.echo(msgspec.json.encode(finding))
            continue
        click.echo(f"{'ok' if finding.ok else 'differs':7}  {finding.severity:6}  {finding.case}")
        for kind, text in (("expected", finding.expected), ("got", finding.found)):
            if text:
                click.echo(f"{'':17}{kind} {text}")
    sys.exit(0 if holds else 1)
