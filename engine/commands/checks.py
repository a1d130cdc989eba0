"""The commands `quadriga inspect` and `validate`: checks of models."""

import sys
from pathlib import Path

import msgspec
import rich_click as click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quadriga.engine.commands.options import PATH, option, parse_object
from quadriga.engine.commands.output import echo_json
from quadriga.engine.commands.store_options import load_settings
from quadriga.engine.config.settings import add_extensions, fields

extensions_option = option(
    "--extensions", f"{fields()['extensions'].text} [default: QUADRIGA_EXTENSIONS]", "FOLDER"
)
"""Option of the commands that load a model themselves; `prepare_models` applies it."""


def prepare_models(extensions: str | None) -> None:
    """Make the modules of the extensions folder importable; None takes the folder of the settings."""
    add_extensions(load_settings(extensions=extensions))


@click.command()
@click.argument("model", type=PATH)
@extensions_option
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
)
@extensions_option
@option("--json as_json", "Print JSON.", is_flag=True)
def validate(
    *,
    model: Path,
    image: Path,
    output: Path,
    parameters: str | None,
    extensions: str | None,
    as_json: bool,
) -> None:
    """Run MODEL on an image, check the predictions and draw them. Exits with 1 if a check fails."""
    from quadriga.engine.serving.tensors.validation import validate as run

    request_parameters = parse_object(parameters, "--parameters")
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
