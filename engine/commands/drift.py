"""The command `quadriga drift`: of files, or of what is stored, here or by a running server."""

import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import rich_click as click

from quadriga.engine.commands.options import (
    PATH,
    name_and_version,
    option,
    parse_filter,
    report_options,
    select_form,
    shard_executor,
    store_options,
    store_settings,
)
from quadriga.engine.commands.output import (
    RenderPage,
    image_from_folder,
    image_from_store,
    page_writer,
    print_progress,
    write_report,
)
from quadriga.engine.commands.server_client import ServerClient, wait_for_report
from quadriga.monitor.report.schema import Report

_COMMON_OPTIONS = {
    "baseline", "ignore", "source_key", "alpha", "windows", "kernel", "seed", "as_json",
    "output", "fail_on_drift",
}  # fmt: skip
_STORE_OPTIONS = _COMMON_OPTIONS | {
    "model", "start", "end", "where", "baseline_start", "baseline_end", "by",
}  # fmt: skip
_OPTIONS_BY_FORM = {
    "current": _COMMON_OPTIONS | {"current", "numeric", "categorical", "embedding", "time"},
    "model": _STORE_OPTIONS | {"data", "database", "on"},
    "server": _STORE_OPTIONS | {"server"},
}
"""What is read where this is compared."""


@click.command("drift")
@option(
    "--baseline",
    "What is usual: CSV, JSON lines or Parquet; of --model the name of a baseline. [default: default]",
    "FILE|NAME",
)
@option("--current", "The file that is compared with it, in any of these formats.", type=PATH)
@option("--model", "Whose stored inferences are compared.", "NAME[@VERSION]")
@option("--from start", "Since when: RFC 3339, or as -24h.", "TIME")
@option("--to end", "Until when. [default: now]", "TIME")
@option("--where", "Which of them, as of a query.", "FILTER")
@option(
    "--baseline-from baseline_start",
    "In place of --baseline: since when inferences of --model are what is usual.",
    "TIME",
)
@option("--baseline-to baseline_end", "And until when.", "TIME")
@option(
    "--by",
    "A key of the metadata in whose values an alarm is looked for; repeat for more.",
    "KEY",
    multiple=True,
)
@option("--server", "Server that compares. [default: it is done here, on the database]", "URL")
@option(
    "--on",
    "Read --model on a Ray cluster: ray for one here, or its address, such as ray://head:10001.",
    "CLUSTER",
)
@option("--numeric", "A column of numbers; repeat for more.", "NAME", multiple=True)
@option("--categorical", "A column of labels; repeat for more.", "NAME", multiple=True)
@option(
    "--embedding",
    "A column of lists of numbers, or the columns NAME_0, NAME_1 and so on; repeat for more.",
    "NAME",
    multiple=True,
)
@option("--ignore", "No signal; repeat for more.", "NAME", multiple=True)
@option(
    "--source-key",
    "What rows that resemble each other have in common. [default: camera_id, stream or recording]",
    "NAME",
)
@option(
    "--time",
    "What rows are sorted by. [default: created_at or timestamp, otherwise as they are]",
    "NAME",
)
@option(
    "--alpha",
    "Share of days with a false alarm, at most.",
    type=click.FloatRange(0.001, 0.5),
    default=0.05,
)
@option(
    "--windows", "Comparisons a day, which share alpha.", type=click.IntRange(1, 1440), default=1
)
@option(
    "--kernel", "Distance of embeddings.", type=click.Choice(["energy", "mmd"]), default="energy"
)
@report_options
@store_options
@option("--fail-on-drift", "Exit with 1 where there is drift.", is_flag=True)
def drift_command(**given: Any) -> None:
    """Say whether anything has changed: in files with a row an inference, or in what is stored.

    \b
    quadriga drift --baseline march.csv --current april.csv
    quadriga drift --baseline usual.parquet --current today.jsonl --output report.html
    quadriga drift --model NAME --from -24h --baseline-from -8d --baseline-to -1d
    """  # noqa: D301 - click leaves lines after a backspace as they are
    options = SimpleNamespace(**given)
    form = select_form(options, _OPTIONS_BY_FORM, {"current": "baseline"}, more="server")
    if options.baseline is not None and (options.baseline_start or options.baseline_end):
        raise click.UsageError("expected --baseline, or --baseline-from and -to, got both")
    report, page = _COMPARE[form](options)
    write_report(report, page, options)
    sys.exit(1 if options.fail_on_drift and report.status == "drift" else 0)


def _compare_files(options: SimpleNamespace) -> tuple[Report, RenderPage]:
    from quadriga.monitor.drift.files.compare_files import Asked, compare_files
    from quadriga.monitor.drift.significance.decision import Settings

    columns = (options.numeric, options.categorical, options.embedding, options.ignore)
    asked = Asked(*columns, options.source_key, options.time)
    settings = Settings(
        alpha=options.alpha, windows=options.windows, kernel=options.kernel, seed=options.seed
    )
    report = compare_files(Path(options.baseline), options.current, asked, settings)
    return report, page_writer(image_from_folder(None))


def _compare_on_server(options: SimpleNamespace) -> tuple[Report, RenderPage]:
    server = ServerClient(options.server)
    return wait_for_report(
        server, server.request_json("POST", "/api/drift", _to_parameters(options)), _print_read
    )


def _compare_stored(options: SimpleNamespace) -> tuple[Report, RenderPage]:
    from quadriga.engine.store_access import open_reader
    from quadriga.monitor.drift.baselines import Baselines
    from quadriga.monitor.drift.parameters import DriftParameters, absolute
    from quadriga.monitor.drift.stored import compare_stored
    from quadriga.store.jobs import QUERY_TIMEOUT_S

    parameters = msgspec.convert(_to_parameters(options), DriftParameters)
    now_us = time.time_ns() // 1000
    settings = store_settings(options.data, options.database)
    baselines = Baselines(settings.baselines_directory)
    parameters = baselines.resolved(absolute(parameters, now_us))
    inferences, blobs = open_reader(settings, QUERY_TIMEOUT_S)
    named = parameters.baseline
    baseline = baselines.read(parameters.model, named) if isinstance(named, str) else None
    with closing(inferences), shard_executor(options.on, settings.database_url) as there:
        report = compare_stored(
            inferences, parameters, baseline, _print_read, executor=there, now_us=now_us
        )
    return report, page_writer(image_from_store(blobs))


def _print_read(read: int, total: int | None) -> None:
    print_progress(f"read {read} of {total} inferences" if total else "choosing")


def _to_parameters(options: SimpleNamespace) -> dict[str, Any]:
    """Return what is asked of a drift report of stored inferences, as its API takes it."""
    model, version = name_and_version(options.model)
    where = parse_filter(options.where, "--where")
    same = ("ignore", "by", "alpha", "windows", "kernel", "seed")
    asked: dict[str, Any] = {name: getattr(options, name) for name in same}
    asked |= {"model": model, "version": version, "where": where}
    asked |= {"from": options.start, "to": options.end}
    if options.source_key is not None:
        asked["source_keys"] = [options.source_key]
    if options.baseline_start is not None or options.baseline_end is not None:
        window = {"from": options.baseline_start, "to": options.baseline_end}
        asked["baseline"] = {**window, "version": version, "where": where}
    elif options.baseline is not None:
        asked["baseline"] = options.baseline
    return asked


_COMPARE = {"current": _compare_files, "model": _compare_stored, "server": _compare_on_server}
