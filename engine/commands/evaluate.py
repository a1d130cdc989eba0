"""The command `quadriga evaluate`: of files, of what is stored, of a dataset that a model is run over."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import msgspec
import rich_click as click
from click import get_current_context
from click.core import ParameterSource

from engine.commands.options import Options, evaluation_parameters
from engine.commands.report_output import Page, check_output, page_of, put_out, report_options, tell
from engine.commands.store import fail, store_options, store_settings
from engine.settings import SettingsError
from monitor.report import Report

_PATH = click.Path(path_type=Path)
_SOURCES = "--records FILE, --truth FILE, --model NAME"
_ALWAYS = {"by", "resamples", "seed", "as_json", "output"}
_OF_STORE = {"model", "where", "compare", "slices", "data"}
_READ = {
    "records": {"records", "task", "images", "on"},
    "truth": {"truth", "predictions", "task", "images"},
    "model": {*_OF_STORE, "database", "on"},
    "dataset": {
        *_OF_STORE, "dataset", "server", "split", "snapshot", "parameters", "threads",
    },
}  # fmt: skip
"""What is read where this is evaluated, beside what always is."""


@click.command("evaluate")
@click.option(
    "--task",
    help="Of --records and --truth: classification, detection, oriented, segmentation or image-text.",
)
@click.option(
    "--records",
    type=_PATH,
    help="JSON lines or Parquet with predictions and ground truth; - for the standard input.",
)
@click.option("--truth", type=_PATH, help="COCO's file of instances.")
@click.option("--predictions", type=_PATH, help="COCO's file of results, for --truth.")
@click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the images of --records or --truth, for the page.",
)
@click.option(
    "--model",
    metavar="NAME[@VERSION]",
    help="Whose stored answers are evaluated; with --dataset also a model folder.",
)
@click.option("--where", default="", metavar="FILTER", help="Which of its answers, as of a query.")
@click.option(
    "--compare",
    multiple=True,
    metavar="NAME[@VERSION]",
    help="Another model, on the same images; repeat for more.",
)
@click.option(
    "--slice",
    "slices",
    multiple=True,
    metavar="NAME=FILTER",
    help="A part to look at by itself; repeat for more.",
)
@click.option(
    "--by",
    multiple=True,
    metavar="FIELD",
    help="What to slice by: meta.<path>, hour, day, month; repeat for more.",
)
@click.option(
    "--dataset",
    type=_PATH,
    help="Folder or zip that --model is run over first: annotations.jsonl, COCO, or a folder a label.",
)
@click.option(
    "--server",
    metavar="URL",
    help="Server that runs --model over --dataset. [default: http://127.0.0.1:8080, or one of its own for a model folder]",
)
@click.option(
    "--split",
    metavar="NAME",
    help="Which split of --dataset; where it has none, what it is called.",
)
@click.option(
    "--snapshot", metavar="NAME", help="What --dataset is called. [default: a hash of its images]"
)
@click.option(
    "--parameters",
    default="{}",
    metavar="JSON",
    help='Of each request over --dataset, such as {"score_threshold": 0.001}.',
)
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Requests over --dataset at once.",
)
@click.option(
    "--on",
    metavar="CLUSTER",
    help="Read --model, or Parquet, on a Ray cluster: ray for one here, or its address, such as ray://head:10001.",
)
@click.option(
    "--resamples",
    type=click.IntRange(0, 1000),
    default=200,
    show_default=True,
    help="Of the bootstrap, for intervals; 0 for none.",
)
@report_options
@store_options
def evaluate_command(**flags: Any) -> None:
    """Say how good a model's answers are: in files, in a store, or over a dataset.

    \b
    quadriga evaluate --task detection --records answers.jsonl
    quadriga evaluate --truth instances.json --predictions results.json
    quadriga evaluate --model NAME --where 'ts=ge:-7d' --by meta.camera_id
    quadriga evaluate --model NAME --dataset FOLDER --output report.html
    """  # noqa: D301 - click leaves lines after a backspace as they are
    from monitor.evaluation.state import EvaluationError  # noqa: PLC0415 - loads numpy
    from store.errors import StoreError  # noqa: PLC0415 - loads the database

    options = Options(**flags)
    check_output(options.output)
    form = _form(options)
    try:
        report, page = _EVALUATE[form](options)
        tell("")
        put_out(report, as_json=options.as_json, output=options.output, page=page)
    except (EvaluationError, StoreError, SettingsError, OSError) as error:
        tell("")
        fail(error)


def _form(options: Options) -> str:
    """Tell what is to be evaluated, and see that no option goes unread."""
    given = [name for name in ("records", "truth", "model") if getattr(options, name) is not None]
    if len(given) != 1:
        raise click.UsageError(f"expected one of {_SOURCES}, got {' and '.join(given) or 'none'}")
    form = "dataset" if given == ["model"] and options.dataset is not None else given[0]
    for name, needed in (("records", "task"), ("truth", "predictions")):
        if form == name and getattr(options, needed) is None:
            raise click.UsageError(f"expected --{needed} with --{name}, got none")
    context = get_current_context()
    for name in Options.__struct_fields__:
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name not in _READ[form] | _ALWAYS:
            flag = {"slices": "slice"}.get(name, name)
            raise click.UsageError(f"expected no --{flag} with --{form}, got one")
    return form


def _records(options: Options) -> tuple[Report, Page]:
    from monitor.evaluation.files import evaluate_records  # noqa: PLC0415 - loads numpy

    def show(lines: int) -> None:
        tell(f"{lines} images")

    place, asked = options.records or Path("-"), _asked(options)
    if place.suffix == ".parquet":
        return _parquet(options, place, show), page_of(options.images)
    if options.on is not None:
        raise click.UsageError(f"expected --on with --model or with Parquet, got it with {place}")
    name = "standard input" if str(place) == "-" else place.name
    with TemporaryFile() if str(place) == "-" else place.open("rb") as file:
        if str(place) == "-":  # it is read twice
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.seek(0)
        task = options.task or ""
        report = evaluate_records(file, task, name=name, by=options.by, asked=asked, tell=show)
    return report, page_of(options.images)


def _parquet(options: Options, path: Path, show: Callable[[int], None]) -> Report:
    from monitor.evaluation.files import evaluate_parquet  # noqa: PLC0415 - loads numpy

    asked = {"by": options.by, "asked": _asked(options), "tell": show}
    with _cluster(options.on) as cluster:
        each = map if cluster is None else cluster.map
        return evaluate_parquet(path.absolute(), options.task or "", each=each, **asked)


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Give a Ray cluster, None where none is wanted."""
    if address is None:
        yield None
        return
    from monitor.evaluation.on_ray import Cluster  # noqa: PLC0415 - it is an extra

    cluster = Cluster(address)
    try:
        yield cluster
    finally:
        cluster.close()


def _coco(options: Options) -> tuple[Report, Page]:
    from monitor.evaluation.files import evaluate_coco  # noqa: PLC0415 - loads numpy

    truth, predictions = options.truth or Path(), options.predictions or Path()
    report = evaluate_coco(truth, predictions, options.task, by=options.by, asked=_asked(options))
    return report, page_of(options.images)


def _asked(options: Options) -> Any:
    from monitor.evaluation.reporting import Asked  # noqa: PLC0415 - loads numpy

    return Asked(options.resamples, options.seed)


def _stored(options: Options) -> tuple[Report, Page]:
    from monitor.evaluation.parameters import EvaluationParameters, check  # noqa: PLC0415 - loads numpy
    from monitor.evaluation.stored import evaluate_stored  # noqa: PLC0415 - as above
    from store.blobs.files import open_blobs  # noqa: PLC0415 - loads the database
    from store.inferences import Inferences  # noqa: PLC0415 - as above
    from store.jobs import QUERY_S  # noqa: PLC0415 - as above

    parameters = msgspec.convert(evaluation_parameters(options), EvaluationParameters)
    check(parameters)
    settings = store_settings({"data": options.data, "database": options.database})
    blobs = open_blobs(settings.blob_place, settings.blob_grace_s)
    inferences = Inferences(
        settings.database_url, settings.journal_directory, blobs, timeout_s=QUERY_S
    )

    def show(done: int, total: int | None) -> None:
        tell(
            f"read {done} of {total} answers" + ", computing" * (done == total)
            if total
            else "choosing"
        )

    def make(report: Report) -> str:
        from monitor.page import page  # noqa: PLC0415 - loads matplotlib

        return page(report, lambda key: blobs.get(key) if key.startswith("blake3:") else None)

    with _cluster(options.on) as cluster:
        places = None
        if cluster is not None:
            from monitor.evaluation.on_ray import StoredOnCluster  # noqa: PLC0415 - it is an extra

            places = StoredOnCluster(cluster, settings.database_url)
        return evaluate_stored(inferences, parameters, show, places=places), make


def _dataset(options: Options) -> tuple[Report, Page]:
    from engine.commands.dataset_evaluation import evaluate_dataset  # noqa: PLC0415 - loads numpy

    return evaluate_dataset(options)


_EVALUATE: dict[str, Callable[[Options], tuple[Report, Page]]] = {
    "records": _records,
    "truth": _coco,
    "model": _stored,
    "dataset": _dataset,
}
