"""The command `quadriga profile`: where the time of an image goes, and what would be gained."""

from pathlib import Path
from typing import Any

import rich_click as click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quadriga.engine.commands.options import PATH, model_options, option, prepare_models
from quadriga.engine.commands.output import echo_json


@click.command("profile")
@click.argument("model", type=PATH)
@option(
    "--image",
    "Image file, such as your server gets.",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@option(
    "--load",
    "Also measure so many callers at once, each with one image after the other.",
    type=click.IntRange(1, 256),
)
@option(
    "--seconds",
    "Longest time of each measurement.",
    type=click.FloatRange(0.1, 600),
    default=5.0,
)
@model_options
@option("--json as_json", "Print JSON.", is_flag=True)
def profile_command(
    *,
    model: Path,
    image: Path,
    load: int | None,
    seconds: float,
    extensions: str | None,
    as_json: bool,
) -> None:
    """Measure where the time of an image goes in MODEL, and what threads, batches and providers would gain.

    MODEL is a folder or an ONNX file. It is run in this process, without a server: let nothing else run beside it.
    """
    from quadriga.extras.tuning.profiling import profile_model

    prepare_models(extensions)
    profile = profile_model(model, image, callers=load or 0, seconds=seconds)
    if as_json:
        echo_json(profile)
    else:
        _print(profile, Console())


def _print(profile: Any, console: Console) -> None:
    stages = Table(
        "stage", "ms", "share", title=f"{profile.model}, {profile.width} x {profile.height}"
    )
    for stage in profile.stages:
        stages.add_row(stage.name, f"{stage.ms:.3f}", f"{stage.share:.0%}")
    stages.add_row("sum", f"{profile.total_ms:.3f}", "")
    console.print(stages)
    threads = f"{profile.threads} thread" + ("s" if profile.threads != 1 else "")
    if profile.batching:
        console.print(f"Requests share runs of up to {profile.batching}.", soft_wrap=True)
    title = f"a run of the graph, beside {threads} and {profile.providers[0]}"
    variants = Table("", "", "ms an image", "CPU ms", "times as fast", title=title)
    for variant in profile.variants:
        if variant.ms is None:
            variants.add_row(variant.kind, variant.value, "", "", Text(variant.problem))
            continue
        low, high = variant.factor_ci95 or (variant.factor, variant.factor)
        factor = f"{variant.factor:.2f} ({low:.2f} to {high:.2f})"
        variants.add_row(
            variant.kind, variant.value, f"{variant.ms:.3f}", f"{variant.cpu_ms:.3f}", factor
        )
    if profile.variants:
        console.print(variants)
    if profile.load is not None:
        load = profile.load
        console.print(
            f"{load.callers} callers: {load.images_per_s:.1f} images a second, p50 {load.p50_ms:.2f} ms, p99 "
            f"{load.p99_ms:.2f} ms, {load.cpu_ms:.2f} CPU ms an image",
            soft_wrap=True,
        )
    console.print(f"Recommendation: {profile.recommendation}", soft_wrap=True, markup=False)
