"""The commands `quadriga inspect`, `validate` and `conformance`: what a model or an engine is."""

import json
import sys
from pathlib import Path

import msgspec
import rich_click as click
from rich.console import Console
from rich.table import Table

from quadriga.engine.commands.options import PATH, model_options, option, prepare_models
from quadriga.engine.commands.output import echo_json


@click.command()
@click.argument("model", type=PATH)
@model_options
@option("--json as_json", "Print JSON.", is_flag=True)
def inspect(model: Path, extensions: str | None, as_json: bool) -> None:
    """Say what MODEL is, what will be done with it, and why. MODEL is a folder or an ONNX file."""
    from quadriga.engine.inspection import inspect_model, show

    prepare_models(extensions)
    inspection = inspect_model(model)
    if as_json:
        echo_json(inspection)
    else:
        show(inspection, Console())


@click.command()
@click.argument("model", type=PATH)
@option(
    "--image",
    "Image file.",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@option(
    "--output", "Where the picture with the predictions goes.", default="annotated.png", type=PATH
)
@option(
    "--parameters",
    """Parameters of the request, in JSON, such as '{"prompts": ["What is it?"]}'.""",
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
    """Run MODEL on an image, check the answer, and draw it. Exits with 1 where a check fails."""
    from quadriga.engine.validation import validate as run

    try:
        asked = json.loads(parameters)
    except ValueError as error:
        raise click.BadParameter(
            f"expected JSON, got {parameters}: {error}", param_hint="--parameters"
        ) from error
    if not isinstance(asked, dict):
        raise click.BadParameter(f"expected an object, got {parameters}", param_hint="--parameters")
    prepare_models(extensions)
    found = run(model, image, output, asked)
    if as_json:
        echo_json(found)
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


@click.command()
@click.argument("url")
@option("--model", "Name in the path, such as m-<id>.", required=True)
@option("--task", "Such as detection, or OBJECT_DETECTION.", required=True)
@option("--json as_json", "Print one JSON object a line.", is_flag=True)
def conformance(url: str, model: str, task: str, as_json: bool) -> None:
    """Ask the engine at URL whether it speaks chariot-v2-kserve. Exits with 1 where a must differs."""
    from quadriga.proto.conformance import TASKS, EngineClient, check_engine
    from quadriga.proto.conformance_cases import CASES
    from quadriga.tasks import SHORT_NAMES, full_name

    name = full_name(task)
    if name not in TASKS:
        known = ", ".join(short for short, long in SHORT_NAMES.items() if long in TASKS)
        raise click.BadParameter(f"expected one of {known}, got {task}", param_hint="--task")
    holds = True
    for finding in check_engine(EngineClient(url, model, name), CASES):
        holds = holds and (finding.ok or finding.severity == "should")
        if as_json:
            click.echo(msgspec.json.encode(finding))
            continue
        click.echo(f"{'ok' if finding.ok else 'differs':7}  {finding.severity:6}  {finding.case}")
        for what, text in (("expected", finding.expected), ("got", finding.found)):
            if text:
                click.echo(f"{'':17}{what} {text}")
    sys.exit(0 if holds else 1)
