"""The command `quadriga drift`: of files, or of what is stored."""

import sys
from pathlib import Path
from typing import Any

import rich_click as click
from click import get_current_context
from click.core import ParameterSource

from engine.commands.drift_options import Options
from engine.commands.report_output import Page, check_output, page_of, put_out, report_options, tell
from engine.commands.store import fail, store_options
from engine.settings import SettingsError
from monitor.report import Report

_ALWAYS = {
    "baseline", "ignore", "source_key", "alpha", "windows", "kernel", "seed", "as_json",
    "output", "fail_on_drift",
}  # fmt: skip
_READ = {
    "current": {"current", "numeric", "categorical", "embedding", "time"},
    "model": {
        "model", "start", "end", "where", "baseline_start", "baseline_end", "by", "server", "data",
        "database", "on",
    },
}  # fmt: skip
"""What is read where this is compared, beside what always is."""

_ELSEWHERE = ("data", "database", "on")
"""What --server has of its own."""


@click.command("drift")
@click.option(
    "--baseline",
    metavar="FILE|NAME",
    help="What is usual: CSV, JSON lines or Parquet; of --model the name of a baseline. [default: default]",
)
@click.option(
    "--current",
    type=click.Path(path_type=Path),
    help="The file that is compared with it, in any of these formats.",
)
@click.option("--model", metavar="NAME[@VERSION]", help="Whose stored inferences are compared.")
@click.option("--from", "start", metavar="TIME", help="Since when: RFC 3339, or as -24h.")
@click.option("--to", "end", metavar="TIME", help="Until when. [default: now]")
@click.option("--where", default="", metavar="FILTER", help="Which of them, as of a query.")
@click.option(
    "--baseline-from",
    "baseline_start",
    metavar="TIME",
    help="In place of --baseline: since when inferences of --model are what is usual.",
)
@click.option("--baseline-to", "baseline_end", metavar="TIME", help="And until when.")
@click.option(
    "--by",
    multiple=True,
    metavar="KEY",
    help="A key of the metadata in whose values an alarm is looked for; repeat for more.",
)
@click.option(
    "--server",
    metavar="URL",
    help="Server that compares. [default: it is done here, on the database]",
)
@click.option(
    "--on",
    metavar="CLUSTER",
    help="Read --model on a Ray cluster: ray for one here, or its address, such as ray://head:10001.",
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
@click.option(
    "--kernel",
    type=click.Choice(["energy", "mmd"]),
    default="energy",
    show_default=True,
    help="Distance of embeddings.",
)
@report_options
@store_options
@click.option("--fail-on-drift", is_flag=True, help="Exit with 1 where there is drift.")
def drift_command(**flags: Any) -> None:
    """Say whether anything has changed: in files with a row an inference, or in what is stored.

    \b
    quadriga drift --baseline march.csv --current april.csv
    quadriga drift --baseline usual.parquet --current today.jsonl --output report.html
    quadriga drift --model NAME --from -24h --baseline-from -8d --baseline-to -1d
    """  # noqa: D301 - click leaves lines after a backspace as they are
    from monitor.drift.samples import DriftError  # noqa: PLC0415 - loads numpy
    from monitor.evaluation.state import EvaluationError  # noqa: PLC0415 - as above
    from store.errors import StoreError  # noqa: PLC0415 - loads the database

    options = Options(**flags)
    check_output(options.output)
    form = _form(options)
    try:
        report, page = _of_files(options) if form == "current" else _of_store(options)
        tell("")
        put_out(report, as_json=options.as_json, output=options.output, page=page)
    except (DriftError, EvaluationError, StoreError, SettingsError, OSError) as error:
        tell("")
        fail(error)
    sys.exit(1 if options.fail_on_drift and report.status == "drift" else 0)


def _form(options: Options) -> str:
    """Tell what is to be compared, and see that no option goes unread."""
    given = [name for name in _READ if getattr(options, name) is not None]
    if len(given) != 1:
        raise click.UsageError(
            f"expected one of --current FILE and --model NAME, got {' and '.join(given) or 'none'}"
        )
    form = given[0]
    if form == "current" and options.baseline is None:
        raise click.UsageError("expected --baseline with --current, got none")
    context = get_current_context()
    flags = {one.name: one.opts[0] for one in context.command.params}
    named = {
        name
        for name in Options.__struct_fields__
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    for name in sorted(named - _READ[form] - _ALWAYS):
        raise click.UsageError(f"expected no {flags[name]} with --{form}, got one")
    if options.server is not None:
        for name in sorted(named & {*_ELSEWHERE}):
            raise click.UsageError(f"expected no {flags[name]} with --server, got one")
    if named & {"baseline_start", "baseline_end"} and "baseline" in named:
        raise click.UsageError("expected --baseline, or --baseline-from and -to, got both")
    return form


def _of_files(options: Options) -> tuple[Report, Page]:
    from monitor.drift.decision import Settings  # noqa: PLC0415 - loads numpy
    from monitor.drift.files import Asked, compare_files  # noqa: PLC0415 - as above

    asked = Asked(
        options.numeric,
        options.categorical,
        options.embedding,
        options.ignore,
        options.source_key,
        options.time,
    )
    settings = Settings(
        alpha=options.alpha, windows=options.windows, kernel=options.kernel, seed=options.seed
    )
    baseline, current = Path(options.baseline or ""), options.current or Path()
    return compare_files(baseline, current, asked, settings), page_of(None)


def _of_store(options: Options) -> tuple[Report, Page]:
    from engine.commands.stored_drift import compared  # noqa: PLC0415 - loads the database

    return compared(options)
