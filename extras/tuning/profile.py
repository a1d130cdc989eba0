"""The command `quadriga profile`: where the time of an image goes, and what would be gained."""

from pathlib import Path
from typing import Any

import rich_click as click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quadriga.engine.commands.checks import extensions_option, prepare_models
from quadriga.engine.commands.options import PATH, option
from quadriga.engine.commands.output import echo_json

IMAGE = click.Path(exists=True, dir_okay=False, path_type=Path)
SECONDS = click.FloatRange(0.1, 600)


@click.command("profile")
@click.argument("model", type=PATH)
@option("--image", "Image file, such as your server gets.", required=True, type=IMAGE)
@option("--load", "Also measure so many callers at once.", type=click.IntRange(1, 256))
@option("--seconds", "Longest time of each measurement.", type=SECONDS, default=5.0)
@extensions_option
@option("--json as_json", "Print JSON.", is_flag=True)
def profile_command(*, extensions: str | None, as_json: bool, **options: Any) -> None:
    """Measure where the time of an image goes in MODEL, and what threads, batches and providers would gain.

    MODEL is a folder or an ONNX file. It is run in this process, without a server: let nothing else run beside it.
    """
    from quadriga.extras.tuning.profiling import profile_model

    prepare_models(extensions)
    profile = profile_model(**options)
    if as_json:
        echo_json(profile)
    else:
        _print(profile, Console())


def _print(profile: Any, console: Console) -> None:
    title = f"{profile.model}, {profile.width} x {profile.height}"
    stages = Table("stage", "ms", "share", title=title)
    for stage in profile.stages:
        stages.add_row(stage.name, f"{stage.ms:.3f}", f"{stage.share:.0%}")
    stages.add_row("sum", f"{profile.total_ms:.3f}", "")
    console.print(stages)
    if profile.batching:
        click.echo(f"Requests share runs of up to {profile.batching}.")
    threads = f"{profile.threads} thread" + ("s" if profile.threads != 1 else "")
    title = f"a run of the graph, beside {threads} and {profile.providers[0]}"
    variants = Table("", "", "ms an image", "CPU ms", "times as fast", title=title)
    for variant in profile.variants:
        cells: list[str | Text] = ["", "", Text(variant.problem)]
        if variant.ms is not None:
            low, high = variant.factor_ci95 or (variant.factor, variant.factor)
            factor = f"{variant.factor:.2f} ({low:.2f} to {high:.2f})"
            cells = [f"{variant.ms:.3f}", f"{variant.cpu_ms:.3f}", factor]
        variants.add_row(variant.kind, variant.value, *cells)
    if profile.variants:
        console.print(variants)
    if (load := profile.load) is not None:
        click.echo(
            f"{load.callers} callers: {load.images_per_s:.1f} images a second, p50 {load.p50_ms:.2f} ms, p99 "
            f"{load.p99_ms:.2f} ms, {load.cpu_ms:.2f} CPU ms an image"
        )
    click.echo(f"Recommendation: {profile.recommendation}")
