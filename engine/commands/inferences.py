"""The commands `quadriga query`, `export`, `import` and `select`: stored inferences, shown and as files."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from quadriga.engine.commands.options import (
    DATASET_FORMATS,
    PATH,
    json_option,
    option,
    parse_filter,
)
from quadriga.engine.commands.output import echo_json, make_table, print_progress, print_warnings
from quadriga.engine.commands.store_options import (
    SEARCH_TIMEOUT_S,
    open_store,
    store_options,
    store_settings,
)
from quadriga.engine.config.extras import dataset_formats

_MAX_REASONS_SHOWN = 20


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
    from rich.console import Console

    from quadriga.store.query.request import QueryRequest

    settings = store_settings(**store, reads_images=False, must_exist=True)
    with open_store(settings, SEARCH_TIMEOUT_S) as (inferences, _):
        request = QueryRequest(parse_filter(filter_text), limit=limit, order=order, count="capped")
        page = inferences.query(request)
    print_warnings(page.warnings or ())
    if as_json:
        for record in page.inferences:
            click.echo(msgspec.json.encode(record))
        return
    columns = ("inference", "predictions", "metadata")
    rows = map(_cells, page.inferences)
    table = make_table(columns, rows, unbroken=columns[:1], show_lines=True)
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


def _cells(record: Any) -> tuple[str, str, str]:
    predictions = json.loads(bytes(record.predictions))
    shown = ", ".join(filter(None, map(_prediction_text, predictions[:4])))
    more = f" and {len(predictions) - 4} more" if len(predictions) > 4 else ""
    name = f"{record.id}\n{record.created_at}\n{record.model.name}\n{record.input.name}"
    return name, shown + more, bytes(record.metadata).decode()


def _prediction_text(prediction: dict[str, Any]) -> str:
    if "label" in prediction:
        return f"{prediction['label']} {prediction['score']:.2f}"
    return str(prediction.get("answer", ""))


@click.command("export")
@click.argument("filter_text", metavar="FILTER", default="{}")
@option(
    "--format",
    "JSON lines, Parquet, or a dataset in the form of a tool; see docs/datasets.md.",
    type=click.Choice(["jsonl", "parquet", *DATASET_FORMATS]),
    default="jsonl",
)
@option("--output", "File to write.", required=True, type=PATH)
@option("--images/--no-images", "Include the images; default: in datasets.", default=None)
@option(
    "--annotations",
    "Annotations of a dataset; either: the ground truth if there is one, else predictions.",
    type=click.Choice(["either", "ground_truth", "predictions"]),
    default="either",
)
@option("--split", "Splits of a dataset and their shares, such as train=0.8,val=0.2.", default="")
@option(
    "--split-by",
    "What is never in two splits: input.hash, an image; or meta.<key>, what has the same value of a key.",
    default="input.hash",
)
@option(
    "--image-url",
    "Links to images that do not come along, such as http://localhost:8080/api/inferences/{id}/input; also {file}, "
    "{hash}, {blob}.",
    default="",
)
@option(
    "--upright", "Turn images by their EXIF orientation, for tools that ignore it.", is_flag=True
)
@option(
    "--labels labels_file",
    "Labels in the order of their numbers in YOLO and COCO, one a line. [default: those of the model, where all inferences are of "
    "one in the setting models]",
    type=PATH,
)
@option("--json as_json", "Print the counts as JSON.", is_flag=True)
@store_options
def export_command(
    filter_text: str,
    output: Path,
    split: str,
    *,
    as_json: bool,
    labels_file: Path | None,
    data: str | None,
    database: str | None,
    **export_options: Any,
) -> None:
    """Write the inferences that match FILTER, as of a query, to a file; no server is needed."""
    from quadriga.engine.models.recognition.labels import read_label_file
    from quadriga.store.exchange.dataset_options import ExportParameters, parse_splits
    from quadriga.store.exchange.export import NUMBERED_FORMATS, check_parameters, export

    export_options["labels"] = [] if labels_file is None else [*read_label_file(labels_file)]
    settings = store_settings(data, database, must_exist=True)
    parameters = msgspec.convert(
        {"where": parse_filter(filter_text), "split": parse_splits(split), **export_options},
        ExportParameters,
    )
    check_parameters(parameters)
    with open_store(settings) as (inferences, blobs):
        if labels_file is None and parameters.format in NUMBERED_FORMATS:
            known = _labels_of_one_model(inferences, parameters.where, settings.models)
            parameters = msgspec.structs.replace(parameters, labels=known)
        result = export(
            inferences,
            blobs,
            parameters,
            target=output.absolute(),
            tell=_print_count,
            formats=dataset_formats(),
        )
        warnings = [] if result.written else inferences.unknown_keys(parameters.where)
    print_progress("")
    print_warnings(warnings)
    if as_json:
        counts = {"written": result.written, **msgspec.to_builtins(result)}
        echo_json({"output": str(output), **counts})
        return
    click.echo(f"{result.written} inferences in {output}")
    for line in result.lines():
        click.echo(f"  {line}")


def _labels_of_one_model(inferences: Any, where: Any, models: str) -> list[str]:
    """Return the labels of the model that all matching inferences are of; empty if there is no such model in `models`.

    Of several versions it is the one of the newest inference. The labels are read from its files, and it is not loaded.
    """
    from quadriga.engine.models.model_archives import archive_name
    from quadriga.engine.models.model_folders import find_models
    from quadriga.engine.models.onnx_file import LoadError
    from quadriga.store.query.request import QueryRequest
    from quadriga.store.records.errors import NotReadyError, QueryTimeoutError

    with suppress(LoadError, OSError, NotReadyError, QueryTimeoutError):
        # The server reports folders that are no models.
        served = {} if "://" in models else find_models(Path(models), lambda *_: None)
        newest = inferences.query(QueryRequest(where=where, limit=1)).inferences
        if not served or not newest:
            return []
        name, version = newest[0].model.name, newest[0].model.version
        for other in inferences.stored_names() - {name}:
            of_model = {"model": {"eq": other}}
            request = QueryRequest(where={"and": [where, of_model]} if where else of_model, limit=1)
            page = inferences.query(request)
            if page.inferences or page.partial:  # a search that stopped early may have missed them
                return []
        path = served.get(name, {}).get(version)
        if path is not None and path.is_file() and archive_name(path) is None:
            return _labels_of_file(path)
    return []


def _labels_of_file(path: Path) -> list[str]:
    from quadriga.engine.models.model import model_folder
    from quadriga.engine.models.onnx_file import read_onnx
    from quadriga.engine.models.recognition.evidence import Evidence, read_json
    from quadriga.engine.models.recognition.labels import find_labels
    from quadriga.engine.models.recognition.model_toml import read_model_toml

    folder = model_folder(path)
    evidence = Evidence(
        inputs=(),
        outputs=(),
        metadata=read_onnx(path)[0].metadata,
        config=read_json(folder / "config.json"),
        written=read_model_toml(folder),
        folder=folder,
    )
    return list((find_labels(evidence) or [()])[0])


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
    "--model",
    "Model that the ground truth alone is for. [default: every one of its task]",
    default="",
)
@option("--dry-run", "Say what ground truth matches, and import nothing.", is_flag=True)
@option(
    "--accept-predictions",
    "Take annotations that an export made from predictions as ground truth: somebody has checked them.",
    is_flag=True,
)
@option(
    "--team",
    "Team that the inferences or the ground truth belong to. [default: that of each inference in FILE]",
)
@store_options
def import_command(
    file: Path,
    kind: Any,
    *,
    dry_run: bool,
    accept_predictions: bool,
    data: str | None,
    database: str | None,
    **scope: Any,
) -> None:
    """Bring FILE into the store: .jsonl, .parquet, a dataset's .json, .xml, .zip or folder.

    A server may run meanwhile or not. Importing a file twice has the effect of importing it once.
    """
    from quadriga.store.blobs.files import open_blobs
    from quadriga.store.exchange.import_files import read
    from quadriga.store.exchange.imports import Importer
    from quadriga.tasks import full_name

    _check_join_and_task(kind, scope["join"], scope["task"])
    if kind == "inferences" and (scope["model"] or dry_run or accept_predictions):
        raise click.UsageError(
            "--model, --dry-run and --accept-predictions can only be used with --as ground-truth"
        )
    if scope["task"] is not None:
        scope["task"] = full_name(scope["task"])
    settings = store_settings(data, database, is_written=not dry_run)
    if scope["model"]:
        with open_store(settings, SEARCH_TIMEOUT_S) as (inferences, _):
            scope["model"] = inferences.names.resolve(scope["model"])
    blobs = open_blobs(settings.blob_location)
    importer = Importer(
        settings.journal_directory, settings.database_url, blobs, kind=kind, **scope
    )
    formats = dataset_formats()
    items = read(file, scope["task"], accept_predictions=accept_predictions, formats=formats)
    imported = (importer.check if dry_run else importer.run)(items, _print_count)
    print_progress("")
    counts = msgspec.structs.asdict(imported).items()
    click.echo(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts))
    for reason in importer.reasons[:_MAX_REASONS_SHOWN]:
        click.echo(f"  {reason}")
    if imported.unmatched > _MAX_REASONS_SHOWN:
        click.echo(f"  and {imported.unmatched - _MAX_REASONS_SHOWN} more")


def _check_join_and_task(kind: str, join: str | None, task: str | None) -> None:
    """Refuse a join or a task that is none, or that is written beside inferences."""
    from quadriga.tasks import SHORT_NAMES, full_name

    is_field = join in {"id", "request_id", "input.hash"} or re.match(r"meta\..", join or "")
    if join is not None and (kind == "inferences" or not is_field):
        raise click.BadParameter(
            f"expected id, request_id, input.hash or meta.<key>, with --as ground-truth, got {join}",
            param_hint="--join",
        )
    if task is not None and (kind == "inferences" or full_name(task) not in SHORT_NAMES.values()):
        raise click.BadParameter(
            f"expected one of {', '.join(SHORT_NAMES)}, with --as ground-truth, got {task}",
            param_hint="--task",
        )


def _print_count(done: int, total: int | None = None) -> None:
    total_text = "" if total is None else f" of {total}"
    print_progress(f"{done}{total_text} inferences")


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
    from tempfile import TemporaryDirectory
    from zipfile import ZIP_DEFLATED, ZipFile

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
