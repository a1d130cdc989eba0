"""The commands `quadriga export` and `quadriga import`: out of a store into files, and back."""

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import rich_click as click

from engine.commands.store import fail, store_options, store_settings
from engine.settings import SettingsError


@click.command("export")
@click.argument("where", metavar="FILTER", default="{}")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet", "chariot", "coco"]),
    default="jsonl",
    show_default=True,
    help="JSON lines, Parquet, a dataset for Chariot, or COCO.",
)
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The file to make.")
@click.option(
    "--images/--no-images", default=None, help="With the images; default: with chariot and coco."
)
@click.option(
    "--annotations",
    type=click.Choice(["either", "ground_truth", "predictions"]),
    default="either",
    show_default=True,
    help="What chariot and coco annotate; either: the truth where there is one, else the predictions.",
)
@store_options
def export_command(
    where: str,
    form: str,
    output: Path,
    images: bool | None,  # noqa: FBT001 - a flag of the command line
    annotations: str,
    **flags: Any,
) -> None:
    """Write the inferences that match FILTER, as of a query, to a file; it needs no server."""
    from store.blobs.files import open_blobs  # noqa: PLC0415 - other commands need no database
    from store.errors import StoreError  # noqa: PLC0415 - as above
    from store.exchange.export import ExportParameters, check, export  # noqa: PLC0415 - as above
    from store.inferences import Inferences  # noqa: PLC0415 - as above
    from store.jobs import QUERY_S  # noqa: PLC0415 - as above

    try:
        settings = store_settings(flags)
        blobs = open_blobs(settings.blob_place, settings.blob_grace_s)
        inferences = Inferences(
            settings.database_url, settings.journal_directory, blobs, timeout_s=QUERY_S
        )
        asked = {
            "where": json.loads(where) if where.lstrip().startswith("{") else where,
            "format": form,
            "images": images,
            "annotations": annotations,
        }
        parameters = msgspec.convert(asked, ExportParameters)
        check(parameters)
        count = export(inferences, blobs, parameters, output.absolute(), _show)
    except json.JSONDecodeError as error:
        _fail(ValueError(f"expected FILTER to be JSON, got {where!r}: {error}"))
    except (SettingsError, StoreError, OSError) as error:
        _fail(error)
    _clear()
    click.echo(f"{count} inferences in {output}")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--as",
    "what",
    type=click.Choice(["inferences", "ground-truth"]),
    default="inferences",
    show_default=True,
    help="Inferences, with their ids and ground truth; or the ground truth alone.",
)
@click.option(
    "--join",
    default=None,
    metavar="FIELD",
    help="What tells the inference of a ground truth: id, request_id, input.hash or meta.<key>. "
    "[default: id where FILE has one, else input.hash]",
)
@store_options
def import_command(file: Path, what: Any, join: str | None, **flags: Any) -> None:
    """Bring FILE into the store: .jsonl, .parquet, COCO's .json, or a .zip that an export wrote.

    Works beside a server and without one. Importing twice is importing once.
    """
    from store.blobs.files import open_blobs  # noqa: PLC0415 - other commands need no database
    from store.errors import StoreError  # noqa: PLC0415 - as above
    from store.exchange.import_files import read  # noqa: PLC0415 - as above
    from store.exchange.imports import Importer  # noqa: PLC0415 - as above

    if join is not None and (what == "inferences" or not _is_join(join)):
        raise click.BadParameter(
            f"expected id, request_id, input.hash or meta.<key>, with --as ground-truth, got {join}",
            param_hint="--join",
        )
    try:
        settings = store_settings(flags)
        importer = Importer(
            settings.journal_directory,
            settings.database_url,
            open_blobs(settings.blob_place, settings.blob_grace_s),
            what,
            join,
        )
        imported = importer.run(read(file), _show)
    except (SettingsError, StoreError, OSError) as error:
        _fail(error)
    _clear()
    counts = msgspec.structs.asdict(imported).items()
    click.echo(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts))


def _is_join(text: str) -> bool:
    return text in {"id", "request_id", "input.hash"} or (text[:5] == "meta." and len(text) > 5)


def _show(done: int, total: int | None = None) -> None:
    """Show how far it is, on one line."""
    if sys.stderr.isatty():
        of = "" if total is None else f" of {total}"
        click.echo(f"\r{done}{of} inferences", err=True, nl=False)


def _clear() -> None:
    if sys.stderr.isatty():
        click.echo("\r\033[K", err=True, nl=False)


def _fail(error: Exception) -> NoReturn:
    _clear()
    fail(error)
