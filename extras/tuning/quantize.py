"""The command `quadriga quantize`: an int8 version of a model, judged before it may be served."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import rich_click as click
from rich.console import Console
from rich.table import Table

from quadriga.engine.commands.checks import extensions_option, prepare_models
from quadriga.engine.commands.options import PATH, option, parse_filter, parse_object
from quadriga.engine.commands.output import echo_json, print_progress
from quadriga.engine.commands.store_options import open_store, store_options, store_settings
from quadriga.engine.config.extras import dataset_formats


@click.command("quantize")
@click.argument("model")
@option(
    "--calibrate",
    "Filter of the model's stored images that ranges are measured on. [default: all]",
    "FILTER",
)
@option(
    "--samples",
    "Maximum images to calibrate with, drawn at random.",
    type=click.IntRange(1, 100_000),
    default=500,
)
@option(
    "--where",
    "Filter of the model's stored images with ground truth that judge it. [default: all]",
    "FILTER",
)
@option(
    "--judge-on",
    "Maximum images to judge by, drawn at random.",
    type=click.IntRange(1, 100_000),
    default=1000,
)
@option(
    "--dataset",
    "Folder or zip of annotated images to judge by, in place of stored ones.",
    type=PATH,
)
@option("--split", "Split of --dataset to use.", "NAME")
@option(
    "--parameters",
    'Parameters of each request that judges, such as {"score_threshold": 0.001}.',
    "JSON",
    default="{}",
    show_default=False,
)
@option(
    "--tolerance",
    "Largest loss of the main metric, also at the worse end of its interval.",
    type=click.FloatRange(0, 1),
    default=0.01,
)
@option(
    "--exclude",
    "Pattern of the names of nodes that stay in floating point; repeat for more.",
    "PATTERN",
    multiple=True,
)
@option("--keep-refused", "Keep a refused version beside the others, unserved.", is_flag=True)
@option(
    "--resamples",
    "Bootstrap resamples for the interval of the difference.",
    type=click.IntRange(100, 1000),
    default=200,
)
@option("--seed", "Seed of random draws.", type=click.IntRange(0, (1 << 32) - 1), default=0)
@extensions_option
@store_options
@option("--json as_json", "Print JSON.", is_flag=True)
def quantize_command(**values: Any) -> None:
    """Write an int8 version of MODEL beside it, if it is as good. Exits with 1 if it is refused.

    MODEL is a folder, or a name in the setting models, such as shapes-detector@1. The new version is served after the
    model is loaded again, or the server starts again.

    \b
    quadriga quantize shapes-detector --calibrate 'ts=ge:-7d' --samples 500
    quadriga quantize MODELS/shapes-detector --dataset FOLDER --tolerance 0.005
    """  # noqa: D301 - click leaves lines after a backspace as they are
    from quadriga.extras.tuning.quantization import QuantizationOptions, open_original, quantize
    from quadriga.extras.tuning.quantizer import check_installed
    from quadriga.extras.tuning.versions import find_source
    from quadriga.monitor.evaluation.reporting import EvaluationOptions

    options = SimpleNamespace(**values)
    check_installed()
    prepare_models(options.extensions)
    parameters = parse_object(options.parameters, "--parameters")
    root = Path(store_settings(options.data, options.database).models)
    source = find_source(options.model, root)
    original = open_original(source)
    images = _choose(options, source.name, original.recognition.task)
    result, _ = quantize(
        source,
        original,
        images,
        QuantizationOptions(
            tolerance=options.tolerance,
            exclude=options.exclude,
            parameters=parameters,
            keeps_refused=options.keep_refused,
            evaluation=EvaluationOptions(options.resamples, options.seed),
        ),
        samples=options.samples,
        on_step=print_progress,
    )
    print_progress("")
    if options.as_json:
        echo_json(result)
    else:
        _print(result, Console())
    sys.exit(0 if result.accepted else 1)


def _choose(options: SimpleNamespace, name: str, task: str) -> Any:
    """Choose the images: stored ones, and those of --dataset to judge by."""
    from quadriga.extras.tuning.stored_images import ImageChoice, choose_images

    if options.split is not None and options.dataset is None:
        raise click.UsageError("--split can only be used with --dataset")
    dataset = None if options.dataset is None else _read_dataset(options, task)
    settings = store_settings(options.data, options.database)
    print_progress("choosing images")
    with open_store(settings) as (inferences, blobs):
        chosen = choose_images(
            inferences,
            blobs,
            ImageChoice(
                model=name,
                calibrate=parse_filter(options.calibrate, "--calibrate"),
                where=parse_filter(options.where, "--where"),
                samples=options.samples,
                max_judged=options.judge_on if dataset is None else 0,
                seed=options.seed,
            ),
        )
    return chosen if dataset is None else chosen._replace(judged=dataset)


def _read_dataset(options: SimpleNamespace, task: str) -> list[Any]:
    """Return the annotated images of --dataset, so many as --judge-on says."""
    import random

    import msgspec

    from quadriga.extras.tuning.quantizer import QuantizationError
    from quadriga.extras.tuning.stored_images import ImageToRun
    from quadriga.monitor.evaluation.files.datasets import read_dataset

    images = [
        image
        for image in read_dataset(options.dataset, task, dataset_formats())
        if image.annotations is not None and options.split in (None, image.split)
    ]
    if not images:
        part = f" in the split {options.split}" if options.split else ""
        raise QuantizationError(f"no annotated images{part} in {options.dataset}")
    chosen = random.Random(options.seed).sample(images, min(options.judge_on, len(images)))  # noqa: S311 - a sample
    return [
        ImageToRun(image.path, image.read, msgspec.Raw(msgspec.json.encode(image.annotations)))
        for image in chosen
    ]


def _print(result: Any, console: Console) -> None:
    quality, speed = result.quality, result.speed
    table = Table("", f"version {result.source}", "int8", "", title=result.model)
    ratio = result.bytes / result.original_bytes
    table.add_row("bytes", f"{result.original_bytes:,}", f"{result.bytes:,}", f"{ratio:.0%}")
    factor = f"{speed.factor:.2f} times as fast{_interval(speed.factor_ci95, '.2f')}"
    table.add_row(
        "CPU ms of a run", f"{speed.original_cpu_ms:.2f}", f"{speed.candidate_cpu_ms:.2f}", factor
    )
    table.add_row("ms of a run", f"{speed.original_ms:.2f}", f"{speed.candidate_ms:.2f}", "")
    difference = _number(quality.difference, "+.4f") + _interval(quality.ci95, "+.4f")
    table.add_row(
        quality.metric,
        _number(quality.original, ".4f"),
        _number(quality.candidate, ".4f"),
        difference,
    )
    console.print(table)
    graph = result.graph
    console.print(
        f"{graph.layers} layers in int8, {len(graph.excluded)} nodes in floating point; calibrated on "
        f"{result.calibration.images} images, judged on {quality.images}",
        soft_wrap=True,
    )
    for note in result.notes:
        console.print(note, style="yellow", soft_wrap=True, markup=False)
    if result.accepted:
        console.print(
            f"Yes: {result.reason}. Version {result.version} of {result.model} is written; it is served once the model "
            "is loaded again.",
            soft_wrap=True,
            markup=False,
        )
        return
    whereabouts = f"kept in {result.folder}, which is not served" if result.folder else "removed"
    console.print(f"No: {result.reason}. It was {whereabouts}.", soft_wrap=True, markup=False)


def _number(value: float | None, form: str) -> str:
    return "undefined" if value is None else format(value, form)


def _interval(bounds: Any, form: str) -> str:
    if bounds is None or None in bounds:
        return ""
    return f" ({bounds[0]:{form}} to {bounds[1]:{form}})"
