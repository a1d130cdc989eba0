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
from quadriga.engine.commands.server_client import ServerClient, reported
from quadriga.monitor.report.schema import Report

_ALWAYS = {
    "baseline", "ignore", "source_key", "alpha", "windows", "kernel", "seed", "as_json",
    "output", "fail_on_drift",
}  # fmt: skip
_OF_STORE = _ALWAYS | {
    "model", "start", "end", "where", "baseline_start", "baseline_end", "by",
}  # fmt: skip
_READ = {
    "current": _ALWAYS | {"current", "numeric", "categorical", "embedding", "time"},
    "model": _OF_STORE | {"data", "database", "on"},
    "server": _OF_STORE | {"server"},
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
    form = form_of(options, _READ, {"current": "baseline"}, more="server")
    if options.baseline is not None and (options.baseline_start or options.baseline_end):
        raise click.UsageError("expected --baseline, or --baseline-from and -to, got both")
    report, page = _COMPARE[form](options)
    put_out(report, page, options)
    sys.exit(1 if options.fail_on_drift and report.status == "drift" else 0)


def _of_files(options: SimpleNamespace) -> tuple[Report, Page]:
    from quadriga.monitor.drift.files.compare_files import ColumnOptions, compare_files
    from quadriga.monitor.drift.significance.decision import ComparisonSettings

    columns = (options.numeric, options.categorical, options.embedding, options.ignore)
    asked = ColumnOptions(*columns, options.source_key, options.time)
    settings = ComparisonSettings(
        alpha=options.alpha, windows=options.windows, kernel=options.kernel, seed=options.seed
    )
    report = compare_files(Path(options.baseline), options.current, asked, settings)
    return report, page_with(in_folder(None))


def _by_server(options: SimpleNamespace) -> tuple[Report, Page]:
    server = ServerClient(options.server)
    return reported(server, server.call("POST", "/api/drift", _parameters(options)), _show)


def _of_store(options: SimpleNamespace) -> tuple[Report, Page]:
    from quadriga.engine.stored import open_stored
    from quadriga.monitor.drift.baselines import BaselineStore
    from quadriga.monitor.drift.parameters import DriftParameters, resolve_times
    from quadriga.monitor.drift.stored import compare_stored
    from quadriga.store.jobs import QUERY_TIMEOUT_S

    parameters = msgspec.convert(_parameters(options), DriftParameters)
    now_us = time.time_ns() // 1000
    settings = store_settings(options.data, options.database)
    baselines = BaselineStore(settings.baselines_directory)
    parameters = baselines.resolve_rolling(resolve_times(parameters, now_us))
    inferences, blobs = open_stored(settings, QUERY_TIMEOUT_S)
    named = parameters.baseline
    baseline = baselines.read_summary(parameters.model, named) if isinstance(named, str) else None
    with closing(inferences), places(options.on, settings.database_url) as there:
        report = compare_stored(
            inferences, parameters, baseline, _show, executor=there, now_us=now_us
        )
    return report, page_with(in_store(blobs))


def _show(read: int, total: int | None) -> None:
    tell(f"read {read} of {total} inferences" if total else "choosing")


def _parameters(options: SimpleNamespace) -> dict[str, Any]:
    """Return what is asked of a drift report of stored inferences, as its API takes it."""
    model, version = name_and_version(options.model)
    where = filter_of(options.where, "--where")
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


_COMPARE = {"current": _of_files, "model": _of_store, "server": _by_server}
