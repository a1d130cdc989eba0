"""The command `quadriga drift`: of files."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from engine.report_output import check_output, page_of, put_out, report_options
from engine.store_commands import fail

_PATH = click.Path(path_type=Path)


class _Options(msgspec.Struct, frozen=True):
    baseline: Path
    current: Path
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    embedding: tuple[str, ...]
    ignore: tuple[str, ...]
    source_key: str | None
    time: str | None
    alpha: float
    windows: int
    seed: int
    as_json: bool
    output: Path | None
    fail_on_drift: bool


@click.command("drift")
@click.option(
    "--baseline", type=_PATH, required=True, help="What is usual: CSV, JSON lines or Parquet."
)
@click.option(
    "--current",
    type=_PATH,
    required=True,
    help="What is compared with it, in any of these formats.",
)
@click.option(
    "--numeric", multiple=True, metavar="NAME", help="A column of numbers; repeat for more."
)
@click.option(
    "--categorical", multiple=True, metavar="NAME", help="A column of labels; repeat for more."
)
@click.option(
    "--embedding",
    multiple=True,
    metavar="NAME",
    help="A column of lists of numbers, or the columns NAME_0, NAME_1 and so on; repeat for more.",
)
@click.option("--ignore", multiple=True, metavar="NAME", help="No signal; repeat for more.")
@click.option(
    "--source-key",
    metavar="NAME",
    help="What rows that resemble each other have in common. [default: camera_id, stream or recording]",
)
@click.option(
    "--time",
    metavar="NAME",
    help="What rows are sorted by. [default: created_at or timestamp, otherwise as they are]",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0.001, 0.5),
    default=0.05,
    show_default=True,
    help="Share of days with a false alarm, at most.",
)
@click.option(
    "--windows",
    type=click.IntRange(1, 1440),
    default=1,
    show_default=True,
    help="Comparisons a day, which share alpha.",
)
@report_options
@click.option("--fail-on-drift", is_flag=True, help="Exit with 1 where there is drift.")
def drift_command(**flags: Any) -> None:
    r"""Say whether anything has changed: in files with a row an inference, a column a signal.

    \b
    quadriga drift --baseline march.csv --current april.csv
    quadriga drift --baseline usual.parquet --current today.jsonl --output report.html
    """
    from monitor.drift.decision import Settings  # noqa: PLC0415 - loads numpy
    from monitor.drift.files import Asked, compare_files  # noqa: PLC0415 - as above
    from monitor.drift.samples import DriftError  # noqa: PLC0415 - as above

    options = _Options(**flags)
    check_output(options.output)
    asked = Asked(
        options.numeric,
        options.categorical,
        options.embedding,
        options.ignore,
        options.source_key,
        options.time,
    )
    settings = Settings(alpha=options.alpha, windows=options.windows, seed=options.seed)
    try:
        report = compare_files(options.baseline, options.current, asked, settings)
        put_out(report, as_json=options.as_json, output=options.output, page=page_of(None))
    except (DriftError, OSError) as error:
        fail(error)
    sys.exit(1 if options.fail_on_drift and report.status == "drift" else 0)
