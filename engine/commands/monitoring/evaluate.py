"""The command `quadriga evaluate`: evaluates files, stored inferences, or a model over a dataset."""

import shutil
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import msgspec
import rich_click as click

from quadriga.engine.commands.options import (
    PATH,
    SERVER_NAMES,
    connect,
    dataset_options,
    option,
    parse_filter,
    ray_cluster,
    report_options,
    select_form,
)
from quadriga.engine.commands.output import ReportAndPage, print_progress
from quadriga.engine.commands.store_options import store_options

_METRIC_OPTIONS = ("top_k", "iou", "score", "bins", "single_label")
_COMMON_OPTIONS = {
    "by", "resamples", "seed", "as_json", "output", "fail_under", "fail_if_worse_than",
    *_METRIC_OPTIONS,
}  # fmt: skip
_STORE_OPTIONS = _COMMON_OPTIONS | {"model", "where", "compare", "slices"}
_OPTIONS_BY_FORM = {
    "records": _COMMON_OPTIONS | {"records", "task", "images", "on", "no_keep"},
    "truth": _COMMON_OPTIONS | {"truth", "predictions", "task", "images", "no_keep"},
    "model": _STORE_OPTIONS | {"data", "database", "on", "no_keep"},
    "server": _STORE_OPTIONS | {"server"},
    "dataset": _STORE_OPTIONS
    | {"data", "dataset", "server", "split", "snapshot", "parameters", "threads"},
}
"""Options that each form of the command reads, by the option that selects it."""
_REQUIRED = {"records": "task", "truth": "predictions"}


@click.command("evaluate")
@option(
    "--task",
    "Task of --records or --truth: classification, detection, oriented, segmentation or image-text.",
)
@option(
    "--records",
    "JSON lines or Parquet with predictions and ground truth; - for standard input.",
    type=PATH,
)
@option("--truth", "COCO file of instances.", type=PATH)
@option("--predictions", "COCO file of results, for --truth.", type=PATH)
@option(
    "--images",
    "Folder with the images of --records or --truth, for the page.",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@option(
    "--model",
    "Model whose stored predictions are evaluated; with --dataset also a model folder.",
    "NAME[@VERSION]",
)
@option("--where", "Filter of its inferences, as of a query.", "FILTER")
@option(
    "--compare",
    "Another model to compare on the same images; repeat for more.",
    "NAME[@VERSION]",
    multiple=True,
)
@option(
    "--slice slices",
    "Slice with a filter of its own; repeat for more.",
    "NAME=FILTER",
    multiple=True,
)
@option(
    "--by",
    "Field to slice by: meta.<path>, hour, day, month; repeat for more.",
    "FIELD",
    multiple=True,
)
@option(
    "--dataset",
    "Folder or zip to run --model over first: annotations.jsonl, COCO, or one folder per label.",
    type=PATH,
)
@option(
    SERVER_NAMES,
    "Server that evaluates --model. [default: evaluate here, on the database; with --dataset http://127.0.0.1:8080, or an "
    "own server for a model folder]",
    "URL",
)
@option("--split", "Split of --dataset to use; names the split if the dataset has none.", "NAME")
@option(
    "--parameters",
    'Parameters of each request over --dataset, such as {"score_threshold": 0.001}. '
    "[default: all scores of classifiers]",
    "JSON",
)
@dataset_options
@option(
    "--on",
    "Read --model, or Parquet, on a Ray cluster: ray for one here, or its address, such as ray://head:10001.",
    "CLUSTER",
)
@option(
    "--top-k",
    "k of TopKAccuracy; repeat for more. [default: 5, and 3 among all numbers]",
    type=click.IntRange(1, 1000),
    multiple=True,
)
@option(
    "--iou",
    "Match threshold of objects; repeat for more. AP is the mean over all, other metrics are at the first. "
    "[default: those of COCO and DOTA]",
    type=click.FloatRange(0.1, 0.99),
    multiple=True,
)
@option(
    "--score",
    "Score from which predictions count for precision, recall and F1, the first also for the confusion matrix; "
    "repeat for more. [default: 0.5; confusion matrix of objects: 0.3]",
    type=click.FloatRange(0, 1),
    multiple=True,
)
@option("--bins", "Bins of ECE and MCE. [default: 15]", type=click.IntRange(1, 100))
@option(
    "--single-label",
    "Leave images with none or several true labels out of a classification. "
    "[default: one such image makes the set multi-label]",
    is_flag=True,
)
@option(
    "--resamples",
    "Bootstrap resamples for confidence intervals; 0 for none.",
    type=click.IntRange(0, 1000),
    default=200,
)
@option(
    "--fail-under",
    "Exit with 1 where a metric is worse than this; repeat for more, such as AP[iou=0.5,label=star]=0.7.",
    "METRIC=NUMBER",
    multiple=True,
)
@option(
    "--fail-if-worse-than",
    "Exit with 1 where the main metric is worse than in this JSON report by more than chance.",
    "REPORT",
    type=PATH,
)
@report_options
@store_options
def evaluate_command(**values: Any) -> None:
    """Measure how good a model's predictions are: in files, in a store, or over a dataset.

    \b
    quadriga evaluate --task detection --records predictions.jsonl
    quadriga evaluate --truth instances.json --predictions results.json
    quadriga evaluate --model NAME --where 'ts=ge:-7d' --by meta.camera_id
    quadriga evaluate --model NAME --dataset FOLDER --output report.html
    quadriga evaluate --model NAME --dataset FOLDER --fail-under mAP=0.5
    """  # noqa: D301 - click leaves lines after a backspace as they are
    from quadriga.engine.commands.monitoring.reports import write_report
    from quadriga.monitor.evaluation.limits import limit_failure, regression
    from quadriga.monitor.evaluation.metric_settings import MetricSettings, check_settings
    from quadriga.monitor.evaluation.state import EvaluationError
    from quadriga.monitor.report.checks import Check

    options = SimpleNamespace(**values)
    form = select_form(options, _OPTIONS_BY_FORM, _REQUIRED, "dataset", "server")
    limits, earlier = _limits(options)
    chosen = {name: getattr(options, name) or None for name in _METRIC_OPTIONS}
    options.metrics = MetricSettings(**chosen)
    check_settings(options.metrics)
    report, page = _EVALUATE[form](options)
    try:
        checks = [
            Check(f"{limit.metric.text}={limit.value:g}", limit_failure(report, limit))
            for limit in limits
        ]
        if earlier is not None:
            checks.append(Check(f"not worse than report {earlier.id}", regression(report, earlier)))
    except EvaluationError as error:
        # What was measured is not lost, and its warnings may say why the metric is another.
        write_report(report, page, options, [Check("limits", str(error))])
        raise
    write_report(report, page, options, checks)
    failures = [check.failure for check in checks if check.failure is not None]
    for failure in failures:
        click.echo(f"quadriga: {failure}", err=True)
    sys.exit(1 if failures else 0)


def _limits(options: SimpleNamespace) -> tuple[list[Any], Any]:
    """Read the limits and the earlier report before anything is evaluated."""
    from quadriga.monitor.evaluation.limits import parse_limit
    from quadriga.monitor.report.schema import Report

    path: Path | None = options.fail_if_worse_than
    earlier = None
    if path is not None:
        try:
            earlier = msgspec.json.decode(path.read_bytes(), type=Report)
        except (OSError, msgspec.MsgspecError) as error:
            raise click.BadParameter(
                f"expected a report that --output wrote as JSON: {error}",
                param_hint="--fail-if-worse-than",
            ) from error
    return [parse_limit(text) for text in options.fail_under], earlier


def _evaluate_files(options: SimpleNamespace) -> ReportAndPage:
    from quadriga.engine.commands.monitoring.reports import image_from_folder, page_writer
    from quadriga.monitor.evaluation.files.evaluate_files import evaluate_coco
    from quadriga.monitor.evaluation.reporting import EvaluationOptions

    chosen = EvaluationOptions(options.resamples, options.seed, options.metrics)
    arguments: dict[str, Any] = {"by": options.by, "options": chosen}
    if options.truth is None:
        report = _evaluate_records(options, arguments)
    else:
        report = evaluate_coco(options.truth, options.predictions, options.task, **arguments)
    return report, page_writer(image_from_folder(options.images))


def _evaluate_records(options: SimpleNamespace, arguments: dict[str, Any]) -> Any:
    from quadriga.monitor.evaluation.files.evaluate_files import evaluate_parquet, evaluate_records

    path, task = options.records, options.task
    arguments["on_lines_read"] = lambda lines: print_progress(f"{lines} images")
    if path.suffix == ".parquet":
        with ray_cluster(options.on) as ray:
            map_shards = map if ray is None else ray.map
            return evaluate_parquet(path.absolute(), task, map_shards=map_shards, **arguments)
    if options.on is not None:
        raise click.UsageError(f"--on can only be used with --model or Parquet, got {path}")
    if str(path) != "-":
        with path.open("rb") as file:
            return evaluate_records(file, task, name=path.name, **arguments)
    with TemporaryFile() as file:  # records are read twice
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.seek(0)
        return evaluate_records(file, task, name="standard input", **arguments)


def _evaluate_stored(options: SimpleNamespace) -> ReportAndPage:
    from quadriga.client.versions import model_body
    from quadriga.engine.commands.monitoring.reports import report_of_store
    from quadriga.monitor.evaluation.parameters import (
        EvaluationParameters,
        check_parameters,
        with_model_names,
    )
    from quadriga.monitor.evaluation.stored import evaluate_stored
    from quadriga.monitor.report.cells import save_cells

    body = model_body(options.model, _to_parameters(options))
    parameters = msgspec.convert(body, EvaluationParameters)
    check_parameters(parameters)

    def resolve(inferences: Any, _: Any) -> Any:
        return with_model_names(parameters, inferences)

    def compute(inferences: Any, _: Any, named: Any, folder: Path, **reading: Any) -> Any:
        on_cells = partial(save_cells, folder)
        return evaluate_stored(inferences, named, on_cells=on_cells, **reading)

    return report_of_store(options, "evaluation", resolve, compute)


def _evaluate_on_server(options: SimpleNamespace) -> ReportAndPage:
    from quadriga.engine.commands.monitoring.reports import wait_for_report

    client = connect(options.server)
    options.is_kept = True
    job = client.evaluate(options.model, wait=False, **_to_parameters(options))
    return wait_for_report(client, job)


def _evaluate_dataset(options: SimpleNamespace) -> ReportAndPage:
    from quadriga.engine.commands.monitoring.datasets import evaluate_dataset

    return evaluate_dataset(options, _to_parameters(options))


def _to_parameters(options: SimpleNamespace) -> dict[str, Any]:
    """Return the parameters of an evaluation of stored inferences, but for the model, as the client takes them."""
    slices = {}
    for text in options.slices:
        name, _, filter_text = text.partition("=")
        if not name or not filter_text:
            raise click.BadParameter(f"expected NAME=FILTER, got {text}", param_hint="--slice")
        slices[name] = parse_filter(filter_text, "--slice")
    return {
        "where": parse_filter(options.where, "--where"),
        "by": options.by,
        "slices": slices,
        "compare": options.compare,
        "resamples": options.resamples,
        "seed": options.seed,
        **options.metrics.chosen,  # a server of an earlier version does not know the others
    }


_EVALUATE = {
    "records": _evaluate_files,
    "truth": _evaluate_files,
    "model": _evaluate_stored,
    "server": _evaluate_on_server,
    "dataset": _evaluate_dataset,
}
