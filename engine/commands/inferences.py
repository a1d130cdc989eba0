"""The commands `quadriga query`, `export` and `import`."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quadriga.engine.commands.options import (
    PATH,
    option,
    parse_filter,
    store_options,
    store_settings,
)
from quadriga.engine.commands.output import print_progress


@click.command()
@click.argument("filter_text", metavar="FILTER", default="")
@store_options
@option("--limit", "Inferences to show.", type=click.IntRange(1, 1000), default=20)
@click.option("--order", type=click.Choice(["-ts", "ts"]), default="-ts", show_default=True)
@option("--json as_json", "Print one JSON record a line.", is_flag=True)
def query(filter_text: str, as_json: bool, limit: int, order: Any, **store: Any) -> None:
    """Find stored inferences by FILTER, in JSON or on one line.

    For example '{"meta.altitude": {"ge": 100}, "label": "circle"}' or 'meta.altitude=ge:100 & label=circle'.
    """
    from quadriga.engine.store_access import open_reader
    from quadriga.store.query.request import QueryRequest

    inferences, _ = open_reader(store_settings(**store), served=tuple)
    with closing(inferences):
        page = inferences.query(
            QueryRequest(parse_filter(filter_text), limit=limit, order=order, count="capped")
        )
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
        shown = ", ".join(filter(None, map(_prediction_text, predictions[:4])))
        more = f" and {len(predictions) - 4} more" if len(predictions) > 4 else ""
        name = f"{record.id}\n{record.created_at}\n{record.model.name}\n{record.input.name}"
        cells = (name, shown + more, bytes(record.metadata).decode())
        table.add_row(*map(Text, cells))  # what stands in brackets is no markup
    console = Console()
    console.print(table)
    more = "" if page.count_is_exact else " or more"
    console.print(f"{len(page.inferences)} of {page.count}{more} shown")
    if not page.inferences and "==" in filter_text and not filter_text.lstrip().startswith("{"):
        console.print("One = compares: a value after == begins with = itself.")
    if page.partial:
        console.print(
            "The search stopped before it had read everything: narrow it, for example by a time."
        )


def _prediction_text(prediction: dict[str, Any]) -> str:
    if "label" in prediction:
        return f"{prediction['label']} {prediction['score']:.2f}"
    return str(prediction.get("answer", ""))


@click.command("export")
@click.argument("filter_text", metavar="FILTER", default="{}")
@option(
    "--format",
    "JSON lines, Parquet, a dataset for Chariot, or COCO.",
    type=click.Choice(["jsonl", "parquet", "chariot", "coco"]),
    default="jsonl",
)
@option("--output", "File to write.", required=True, type=PATH)
@option("--images/--no-images", "Include the images; default: with chariot and coco.", default=None)
@option(
    "--annotations",
    "Annotations of chariot and coco; either: the ground truth if there is one, else predictions.",
    type=click.Choice(["either", "ground_truth", "predictions"]),
    default="either",
)
@store_options
def export_command(
    filter_text: str, output: Path, data: str | None, database: str | None, **export_options: Any
) -> None:
    """Write the inferences that match FILTER, as of a query, to a file; no server is needed."""
    from quadriga.engine.store_access import open_reader
    from quadriga.store.exchange.export import ExportParameters, check_parameters, export
    from quadriga.store.job_runner import QUERY_TIMEOUT_S

    inferences, blobs = open_reader(store_settings(data, database), QUERY_TIMEOUT_S, served=tuple)
    parameters = msgspec.convert(
        {"where": parse_filter(filter_text), **export_options}, ExportParameters
    )
    check_parameters(parameters)
    with closing(inferences):
        count = export(inferences, blobs, parameters, target=output.absolute(), tell=_print_count)
    print_progress("")
    click.echo(f"{count} inferences in {output}")


@click.command("import")
@click.argument("file", type=PATH)
@option(
    "--as kind",
    "Inferences with their ids and ground truth; or the ground truth alone.",
    type=click.Choice(["inferences", "ground-truth"]),
    default="inferences",
)
@option(
    "--join",
    "Field that joins ground truth to inferences: id, request_id, input.hash or meta.<key>. "
    "[default: id where FILE has one, else input.hash]",
    "FIELD",
)
@option(
    "--task",
    "Task of the ground truth alone: classification, detection, oriented, segmentation or image-text. "
    "[default: that of the annotations]",
)
@option(
    "--team",
    "Team that the inferences or the ground truth belong to. [default: that of each inference in FILE]",
)
@store_options
def import_command(
    file: Path,
    kind: Any,
    join: str | None,
    *,
    task: str | None,
    team: str | None,
    **store: Any,
) -> None:
    """Bring FILE into the store: .jsonl, .parquet, COCO's .json, or a .zip that an export wrote.

    A server may run meanwhile or not. Importing a file twice has the effect of importing it once.
    """
    from quadriga.store.blobs.files import open_blobs
    from quadriga.store.exchange.import_files import read
    from quadriga.store.exchange.imports import Importer
    from quadriga.tasks import SHORT_NAMES, full_name

    if join is not None and (kind == "inferences" or not _is_join_field(join)):
        raise click.BadParameter(
            f"expected id, request_id, input.hash or meta.<key>, with --as ground-truth, got {join}",
            param_hint="--join",
        )
    if task is not None and (kind == "inferences" or full_name(task) not in SHORT_NAMES.values()):
        raise click.BadParameter(
            f"expected one of {', '.join(SHORT_NAMES)}, with --as ground-truth, got {task}",
            param_hint="--task",
        )
    settings = store_settings(**store, is_written=True)
    blobs = open_blobs(settings.blob_location, settings.blob_grace_s)
    importer = Importer(
        settings.journal_directory,
        settings.database_url,
        blobs,
        kind=kind,
        join=join,
        task=None if task is None else full_name(task),
        team=team,
    )
    imported = importer.run(read(file), _print_count)
    print_progress("")
    counts = msgspec.structs.asdict(imported).items()
    click.echo(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts))


def _is_join_field(text: str) -> bool:
    return text in {"id", "request_id", "input.hash"} or (text[:5] == "meta." and len(text) > 5)


def _print_count(done: int, total: int | None = None) -> None:
    total_text = "" if total is None else f" of {total}"
    print_progress(f"{done}{total_text} inferences")
