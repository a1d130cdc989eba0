"""The command `quadriga evaluate`: of files, of what is stored, of a dataset that a model is run over."""

import shutil
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import msgspec
import rich_click as click

from quadriga.engine.commands.options import (
    PATH,
    cluster,
    dataset_options,
    filter_of,
    form_of,
    name_and_version,
    option,
    places,
    report_options,
    store_options,
    store_settings,
)
from quadriga.engine.commands.output import Page, in_folder, in_store, page_with, put_out, tell
from quadriga.monitor.report.schema import Report

_ALWAYS = {"by", "resamples", "seed", "as_json", "output"}
_OF_STORE = _ALWAYS | {"model", "where", "compare", "slices", "data"}
_READ = {
    "records": _ALWAYS | {"records", "task", "images", "on"},
    "truth": _ALWAYS | {"truth", "predictions", "task", "images"},
    "model": _OF_STORE | {"database", "on"},
    "dataset": _OF_STORE | {"dataset", "server", "split", "snapshot", "parameters", "threads"},
}
"""What is read where this is evaluated."""
_NEEDS = {"records": "task", "truth": "predictions"}


@click.command("evaluate")
@option(
    "--task",
    "Of --records and --truth: classification, detection, oriented, segmentation or image-text.",
)
@option(
    "--records",
    "JSON lines or Parquet with predictions and ground truth; - for the standard input.",
    type=PATH,
)
@option("--truth", "COCO's file of instances.", type=PATH)
@option("--predictions", "COCO's file of results, for --truth.", type=PATH)
@option(
    "--images",
    "Folder of the images of --records or --truth, for the page.",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@option(
    "--model",
    "Whose stored answers are evaluated; with --dataset also a model folder.",
    "NAME[@VERSION]",
)
@option("--where", "Which of its answers, as of a query.", "FILTER")
@option(
    "--compare",
    "Another model, on the same images; repeat for more.",
    "NAME[@VERSION]",
    multiple=True,
)
@option(
    "--slice slices", "A part to look at by itself; repeat for more.", "NAME=FILTER", multiple=True
)
@option(
    "--by",
    "What to slice by: meta.<path>, hour, day, month; repeat for more.",
    "FIELD",
    multiple=True,
)
@option(
    "--dataset",
    "Folder or zip that --model is run over first: annotations.jsonl, COCO, or a folder a label.",
    type=PATH,
)
@option(
    "--server",
    "Server that runs --model over --dataset. [default: http://127.0.0.1:8080, or one of its own for a model folder]",
    "URL",
)
@option("--split", "Which split of --dataset; where it has none, what it is called.", "NAME")
@option(
    "--parameters",
    'Of each request over --dataset, such as {"score_threshold": 0.001}.',
    "JSON",
    default="{}",
    show_default=False,
)
@dataset_options
@option(
    "--on",
    "Read --model, or Parquet, on a Ray cluster: ray for one here, or its address, such as ray://head:10001.",
    "CLUSTER",
)
@option(
    "--resamples",
    "Of the bootstrap, for intervals; 0 for none.",
    type=click.IntRange(0, 1000),
    default=200,
)
@report_options
@store_options
def evaluate_command(**given: Any) -> None:
    """Say how good a model's answers are: in files, in a store, or over a dataset.

    \b
    quadriga evaluate --task detection --records answers.jsonl
    quadriga evaluate --truth instances.json --predictions results.json
    quadriga evaluate --model NAME --where 'ts=ge:-7d' --by meta.camera_id
    quadriga evaluate --model NAME --dataset FOLDER --output report.html
    """  # noqa: D301 - click leaves lines after a backspace as they are
    options = SimpleNamespace(**given)
    form = form_of(options, _READ, _NEEDS, more="dataset")
    report, page = _EVALUATE[form](options)
    put_out(report, page, options)


def _records(options: SimpleNamespace) -> tuple[Report, Page]:
    from quadriga.monitor.evaluation.files.evaluate_files import evaluate_parquet, evaluate_records

    def show(lines: int) -> None:
        tell(f"{lines} images")

    place, page = options.records, page_with(in_folder(options.images))
    asked: dict[str, Any] = {"by": options.by, "options": _asked(options), "on_lines_read": show}
    if place.suffix == ".parquet":
        with cluster(options.on) as found:
            each = map if found is None else found.map
            return evaluate_parquet(place.absolute(), options.task, map_shards=each, **asked), page
    if options.on is not None:
        raise click.UsageError(f"expected --on with --model or with Parquet, got it with {place}")
    if str(place) != "-":
        with place.open("rb") as file:
            return evaluate_records(file, options.task, name=place.name, **asked), page
    with TemporaryFile() as file:  # it is read twice
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.seek(0)
        return evaluate_records(file, options.task, name="standard input", **asked), page


def _coco(options: SimpleNamespace) -> tuple[Report, Page]:
    from quadriga.monitor.evaluation.files.evaluate_files import evaluate_coco

    files, asked = (options.truth, options.predictions), _asked(options)
    report = evaluate_coco(*files, options.task, by=options.by, options=asked)
    return report, page_with(in_folder(options.images))


def _asked(options: SimpleNamespace) -> Any:
    from quadriga.monitor.evaluation.reporting import EvaluationOptions

    return EvaluationOptions(options.resamples, options.seed)


def _stored(options: SimpleNamespace) -> tuple[Report, Page]:
    from quadriga.engine.stored import open_stored
    from quadriga.monitor.evaluation.parameters import EvaluationParameters, check_parameters
    from quadriga.monitor.evaluation.stored import evaluate_stored
    from quadriga.store.jobs import QUERY_TIMEOUT_S

    parameters = msgspec.convert(_parameters(options), EvaluationParameters)
    check_parameters(parameters)
    settings = store_settings(options.data, options.database)
    inferences, blobs = open_stored(settings, QUERY_TIMEOUT_S)

    def show(done: int, total: int | None) -> None:
        computing = ", computing" * (done == total)
        tell(f"read {done} of {total} answers{computing}" if total else "choosing")

    with closing(inferences), places(options.on, settings.database_url) as there:
        report = evaluate_stored(inferences, parameters, show, executor=there)
    return report, page_with(in_store(blobs))


def _dataset(options: SimpleNamespace) -> tuple[Report, Page]:
    from quadriga.engine.commands.datasets import evaluate_dataset

    return evaluate_dataset(options, _parameters(options))


def _parameters(options: SimpleNamespace) -> dict[str, Any]:
    """Return what is asked of an evaluation of stored inferences, as its API takes it."""
    slices = {}
    for text in options.slices:
        name, _, where = text.partition("=")
        if not name or not where:
            raise click.BadParameter(f"expected NAME=FILTER, got {text}", param_hint="--slice")
        slices[name] = filter_of(where, "--slice")
    model, version = name_and_version(options.model)
    others = [name_and_version(one) for one in options.compare]
    return {
        "model": model,
        "version": version,
        "where": filter_of(options.where, "--where"),
        "by": options.by,
        "slices": slices,
        "compare": [{"model": name, "version": version} for name, version in others],
        "resamples": options.resamples,
        "seed": options.seed,
    }


_EVALUATE = {"records": _records, "truth": _coco, "model": _stored, "dataset": _dataset}
