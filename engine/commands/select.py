"""The command `quadriga select`: the images to label next, as a dataset of a tool."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import msgspec
import rich_click as click

from quadriga.engine.commands.options import (
    DATASET_FORMATS,
    PATH,
    json_option,
    option,
    parse_filter,
)
from quadriga.engine.commands.output import echo_json, print_progress
from quadriga.engine.commands.store_options import open_store, store_options, store_settings
from quadriga.engine.config.extras import dataset_formats

SELECTION_FILE = "selection.jsonl"
"""File in the dataset that says of each image why it was selected."""

_CRITERIA = ("uncertainty", "diversity", "drift")


def _criteria(_: click.Context, __: click.Parameter, text: str) -> list[str]:
    """Read the list of --by."""
    names = [name.strip() for name in text.split(",")]
    if wrong := [name for name in names if name not in _CRITERIA]:
        raise click.BadParameter(
            f"expected some of {','.join(_CRITERIA)}, separated by commas, got {wrong[0] or 'nothing'}"
        )
    return [*dict.fromkeys(names)]


def _output(_: click.Context, __: click.Parameter, output: Path) -> Path:
    """Check before the work that the dataset can be written."""
    output = output.absolute()
    if not output.parent.is_dir():
        raise click.BadParameter(f"folder not found: {output.parent}")
    if output.suffix.lower() == ".zip":
        if output.is_dir():
            raise click.BadParameter(f"expected a file, got the folder {output}")
    elif output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise click.BadParameter(f"expected a .zip, or a new or empty folder, got {output}")
    return output


@click.command("select")
@option("--model", "Model whose images are labelled.", "NAME[@VERSION]", required=True)
@option("--where", "Filter of the inferences, as of a query. [default: all of the model]", "FILTER")
@option("--n count", "Images to select.", type=click.IntRange(1, 10_000), default=100)
@option(
    "--by",
    "What speaks for an image: that the model was unsure, that it differs from labelled and other selected images, "
    "and that it is unlike the baseline.",
    "LIST",
    default=",".join(_CRITERIA),
    callback=_criteria,
)
@option(
    "--output",
    "Dataset to write: a .zip, or a new or empty folder.",
    "FOLDER|ZIP",
    required=True,
    type=PATH,
    callback=_output,
)
@option(
    "--format", "Form of the dataset.", type=click.Choice(DATASET_FORMATS), default="label-studio"
)
@option(
    "--source-key",
    "Metadata key of the sources that share the images equally, such as meta.camera_id. "
    "[default: camera_id, stream or recording]",
    "KEY",
)
@option("--seed", "Seed of random draws.", type=click.IntRange(0, (1 << 32) - 1), default=0)
@json_option
@store_options
def select_command(
    model: str,
    where: str | None,
    output: Path,
    source_key: str | None,
    *,
    format: Any,  # noqa: A002 - as the option
    as_json: bool,
    data: str | None,
    database: str | None,
    **choice: Any,
) -> None:
    """Write the images to label next: the most useful ones without ground truth, as a dataset.

    The predictions come along as annotations to correct, and selection.jsonl says why each image was selected. No server is
    needed, and one may run.
    """
    from quadriga.client.versions import split_version
    from quadriga.monitor.drift.parameters import SOURCE_KEYS
    from quadriga.monitor.selection.stored import SelectionOptions, check_found, select
    from quadriga.store.exchange.dataset_options import ExportParameters

    name, version = split_version(model)
    source_keys = [source_key.removeprefix("meta.")] if source_key else SOURCE_KEYS
    options = SelectionOptions(
        model=name,
        version=version,
        where=parse_filter(where, "--where"),
        source_keys=source_keys,
        **choice,
    )
    with open_store(store_settings(data, database, must_exist=True)) as (inferences, blobs):
        selection = select(inferences, options, lambda count: print_progress(f"{count} inferences"))
        check_found(selection)
        parameters = ExportParameters(format=format, annotations="predictions")
        written, left_out = _write(
            inferences, blobs, parameters, images=selection.images, output=output
        )
    print_progress("")
    selection = msgspec.structs.replace(selection, images=written)
    if as_json:
        result = {"output": str(output), **msgspec.to_builtins(selection), "not_written": left_out}
        echo_json(result)
    else:
        _print_selection(selection, left_out, output)


def _write(
    inferences: Any, blobs: Any, parameters: Any, *, images: Sequence[Any], output: Path
) -> tuple[list[Any], dict[str, int]]:
    """Write the dataset whole or not at all; return the images that are in it, and why others are not."""
    from quadriga.monitor.selection.stored import counted
    from quadriga.store.exchange.export import export
    from quadriga.store.records.errors import NotFoundError

    with TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as folder:
        archive = Path(folder) / "dataset.zip"
        ids = [image.inference_id for image in images]
        exported = export(
            inferences, blobs, parameters, archive, ids=ids, formats=dataset_formats()
        )
        with ZipFile(archive, "a", ZIP_DEFLATED) as dataset:
            paths = {_stem(path): path for path in dataset.namelist() if _is_image(path)}
            written = [image for image in images if image.inference_id in paths]
            lines = (
                {"image": paths[image.inference_id], **msgspec.to_builtins(image)}
                for image in written
            )
            dataset.writestr(SELECTION_FILE, msgspec.json.Encoder().encode_lines(lines))
        left_out = dict(exported.left_out)
        if others := len(images) - len(written) - sum(left_out.values()):
            left_out["it or its image was removed meanwhile"] = others
        if not written:
            raise NotFoundError(f"nothing was written: {counted(left_out)}")
        if output.suffix.lower() == ".zip":
            archive.replace(output)
        else:
            unpacked = Path(folder) / "dataset"
            with ZipFile(archive) as dataset:
                dataset.extractall(unpacked)  # what was written above
            unpacked.replace(output)
    return written, left_out


def _stem(path: str) -> str:
    return path.rpartition("/")[2].rpartition(".")[0]


def _is_image(path: str) -> bool:
    return not path.endswith((".txt", ".json", ".jsonl", ".xml", ".yaml"))


def _print_selection(selection: Any, left_out: dict[str, int], output: Path) -> None:
    count = len(selection.images)
    click.echo(f"{count} images in {output}, out of {selection.candidates} candidates")
    for reason, number in left_out.items():
        click.echo(f"  {number} selected but not written: {reason}")
    for reason, number in selection.left_out.items():
        click.echo(f"  {number} inferences are no candidates: {reason}")
    for note in selection.notes:
        click.echo(f"  {note}")
