"""The command `quadriga infer`: images to a server, predictions back, by the client."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import rich_click as click

from quadriga.engine.commands.options import connect, option, parse_object, server_option
from quadriga.engine.commands.output import print_progress
from quadriga.quoting import listed, one_line, printable

MAX_PREDICTIONS = 10
"""Maximum predictions on the line of an image."""


@click.command("infer")
@click.argument("model")
@click.argument("images", metavar="IMAGE|FOLDER|GLOB...", nargs=-1, required=True)
@server_option
@option("--metadata", "JSON object that is stored with each inference.", "JSON")
@option(
    "--parameters",
    """Parameters of the requests as a JSON object, such as '{"score_threshold": 0.8}'.""",
    "JSON",
)
@option("--concurrency", "Requests at a time.", type=click.IntRange(1, 256), default=8)
@option(
    "--output",
    "Folder for pictures with the predictions drawn; it is made if it is not there.",
    "FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
)
@option("--json as_json", "Print one JSON object a line.", is_flag=True)
@option(
    "--points",
    "With --json: contours with all their points, not the number of points.",
    is_flag=True,
)
def infer_command(
    *,
    model: str,
    images: tuple[str, ...],
    server: str,
    metadata: str | None,
    parameters: str | None,
    concurrency: int,
    output: Path | None,
    as_json: bool,
    points: bool,
) -> None:
    """Send images to MODEL (NAME or NAME@VERSION) of a server, and print what it predicts.

    A folder stands for the images directly in it, and a pattern in quotes for its files. Exits with 1 if an image failed,
    which is named on standard error, and with 2 if none can be asked for.

    \b
    quadriga infer shapes-detector photos --output drawn
    quadriga infer shapes-detector 'photos/**/*.jpg' --metadata '{"camera": "north"}' --json
    """  # noqa: D301 - click leaves lines after a backspace as they are
    if points and not as_json:
        raise click.UsageError("--points needs --json")
    paths = expand_images(images)
    pictures = None if output is None else PictureFolder(output, paths)
    failures = 0
    with connect(server) as client:
        results = client.infer_many(
            model,
            paths,
            parse_object(metadata, "--metadata") or None,
            parameters=parse_object(parameters, "--parameters"),
            concurrency=concurrency,
            progress=False,
        )
        for done, result in enumerate(results, 1):
            print_progress("")
            failures += not _print_result(result, as_json=as_json, points=points)
            if pictures is not None and result.ok:
                failures += not _draw(pictures, result)
            failed = f", {failures:,} failed" if failures else ""
            print_progress(f"{done:,} of {len(paths):,} images{failed}")
    print_progress("")
    sys.exit(1 if failures else 0)


def expand_images(arguments: Iterable[str]) -> list[str]:
    """Return the images that files, folders and patterns stand for, in the order of the arguments.

    Raises:
        click.BadParameter: An argument stands for no image.
    """
    from quadriga.client.batches import find_images

    paths: list[str] = []
    for argument in arguments:
        if os.path.isdir(argument):  # noqa: PTH112 - a Path would lose a leading ./
            matches = [os.fspath(path) for path in find_images(argument)[0]]
        elif os.path.exists(argument):  # noqa: PTH110 - also a name with brackets
            matches = [argument]
        elif has_magic(argument):
            matches = sorted(filter(os.path.isfile, glob(argument, recursive=True)))  # noqa: PTH207
        else:
            raise click.BadParameter(f"image not found: {argument}", param_hint="IMAGE")
        if not matches:
            raise click.BadParameter(f"expected images, got none: {argument}", param_hint="IMAGE")
        paths += matches
    return paths


class PictureFolder:
    """Folder that takes a picture for each image, under the image's name.

    Args:
        folder: The folder.
        images: Paths of all images, none of which is overwritten.

    Raises:
        click.BadParameter: An image is in the folder itself.
    """

    def __init__(self, folder: Path, images: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        own = os.path.realpath(folder)
        parents = {os.path.dirname(image) for image in images}  # noqa: PTH120 - of a million paths
        if own in {os.path.realpath(parent or ".") for parent in parents}:
            raise click.BadParameter(
                f"expected another folder than that of the images, got {folder}",
                param_hint="--output",
            )
        self._folder = folder
        self._counts: dict[str, int] = {}

    def write(self, result: Any) -> Path:
        """Write the picture of a result: a JPEG for a JPEG, else a PNG; a number is added to a name that was used.

        Raises:
            quadriga.client.errors.InputError: The image cannot be read to draw on.
            OSError: The file cannot be written.
        """
        source = Path(result.source)
        suffix = source.suffix if source.suffix.lower() in {".jpg", ".jpeg"} else ".png"
        target = self._folder / self._unused(source.stem, suffix)
        result.draw().save(target, **({"quality": 90} if suffix != ".png" else {}))
        return target

    def _unused(self, stem: str, suffix: str) -> str:
        """Return a name that no image of this run has; names are compared as a disk that ignores case does."""
        name = stem + suffix
        while (key := name.lower()) in self._counts:
            self._counts[key] += 1
            name = f"{stem}-{self._counts[key]}{suffix}"
        self._counts[key] = 1
        return name


def fold_contours(predictions: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield predictions with `contour_points`, the number of points of each ring, in the place of `contour`."""
    for prediction in predictions:
        folded = dict(prediction)
        if "contour" in folded:
            folded["contour_points"] = [len(ring) for ring in folded.pop("contour")]
        yield folded


def _print_result(result: Any, *, as_json: bool, points: bool) -> bool:
    """Print a result, or that there is none; return whether there is one."""
    if not result.ok:
        _warn(f"{_shown(result.source)}: {result.error}")
        if as_json:
            _echo_json({"image": result.source, "error": str(result.error)})
        return False
    if as_json:
        predictions = result.predictions if points else list(fold_contours(result.predictions))
        values = {"image": result.source, "id": result.id, "model": result.model}
        _echo_json({**values, "version": result.version, "predictions": predictions})
    else:
        click.echo(f"{printable(_shown(result.source))}: {_summary(result.predictions)}")
    return True


def _summary(predictions: Sequence[dict[str, Any]]) -> str:
    from quadriga.client.drawing import caption

    captions = [one_line(caption(row), 200) for row in predictions]
    return listed(captions, MAX_PREDICTIONS) or "nothing"


def _draw(pictures: PictureFolder, result: Any) -> bool:
    from quadriga.client.errors import InputError

    try:
        pictures.write(result)
    except InputError as error:  # such as an image of five bands, which Pillow does not know
        _warn(f"{_shown(result.source)}: not drawn: {error}")
        return False
    return True


def _shown(source: str) -> str:
    """Return a path on one line; bytes that are no text are replaced."""
    return click.format_filename(source).replace("\n", " ")


def _echo_json(value: Any) -> None:
    """Print JSON in UTF-8; a file name that is no text keeps its bytes as Python's surrogates, escaped."""
    click.echo(json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace"))


def _warn(text: str) -> None:
    click.echo(f"quadriga: {printable(text)}", err=True)
