"""Reports of stored inferences that a command computes: the data folder keeps them, as it keeps those of the server's jobs."""

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import msgspec

from quadriga.engine.commands.monitoring.report_output import page_writer
from quadriga.engine.commands.options import ray_cluster
from quadriga.engine.commands.output import ReportAndPage, print_progress, print_warnings
from quadriga.engine.commands.store_options import open_store, store_settings
from quadriga.engine.config.settings import Settings
from quadriga.monitor.report.saved import save_report
from quadriga.monitor.report.schema import Report
from quadriga.store.blobs.interface import KEY_PREFIX
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.jobs.runner import JobRun, run_here
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import StoreError

Resolve = Callable[[InferenceReader, Settings], msgspec.Struct]
"""Returns the parameters of a report with what the store and its settings decide, as its job on the server has them."""


def report_of_store(
    options: SimpleNamespace, kind: str, resolve: Resolve, compute: Callable[..., Report]
) -> ReportAndPage:
    """Compute a report of a store, and keep it in the data folder; where it cannot be kept, a warning says why.

    Args:
        options: Values of the options; `is_kept` is set where the report is kept.
        kind: Kind of the job that makes the same report on the server.
        resolve: See `Resolve`.
        compute: Computes the report of the store, its settings, the parameters and a folder for what belongs to it;
            `on_progress` is an `OnProgress`, and `executor` that of --on.
    """
    settings = store_settings(options.data, options.database)
    with ExitStack() as stack:
        inferences, blobs = stack.enter_context(open_store(settings))
        executor = None
        if (ray := stack.enter_context(ray_cluster(options.on))) is not None:
            from quadriga.monitor.evaluation.ray_executor import RayExecutor

            executor = RayExecutor(ray, settings.database_url)
        parameters = resolve(inferences, settings)
        compute = partial(compute, inferences, settings, parameters, executor=executor)
        run = None
        if not options.no_keep:
            stack.callback(os.umask, os.umask(0o077))  # as the files of the server
            try:
                check_keepable(options, settings)
                jobs = Jobs(settings.jobs_directory)
                run = stack.enter_context(run_here(jobs, kind, parameters, inferences, blobs))
            except StoreError as error:
                _warn(str(error))
        if run is None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            report = compute(folder, on_progress=_print_read)
        else:
            report = compute(run.directory, on_progress=partial(_report_read, run))
            saved = msgspec.structs.replace(report, id=run.job.id)
            try:
                run.end("succeeded", result=run.result(save_report(run, saved)))
            except OSError as error:
                _warn(str(error.strerror))
            else:
                options.is_kept, report = True, saved
    return report, page_writer(lambda key: blobs.get(key) if key.startswith(KEY_PREFIX) else None)


def _report_read(run: JobRun, done: int, total: int | None) -> None:
    _print_read(done, total)
    with suppress(OSError):  # a full disk is met again when the report is saved
        run.report_progress(done, total)


def check_keepable(options: SimpleNamespace, settings: Settings) -> None:
    """Check that files can be kept in the data folder: it is that of the store, and of this user, as its server reads them.

    Raises:
        StoreError: It is not.
    """
    if options.database is not None and options.data is None:
        raise StoreError("--database names no data folder: add --data")
    parts = settings.journal_directory, Path(settings.data) / "store.db"
    part = next((part for part in parts if part.exists()), None)
    if part is None:
        raise StoreError(f"no store in {settings.data}")
    if part.stat().st_uid != os.geteuid():
        raise StoreError(f"{settings.data} belongs to another user: run the command as that user")


def _warn(reason: str) -> None:
    print_warnings([f"the report is not kept: {reason}"])


def _print_read(read: int, total: int | None) -> None:
    computing = ", computing" * (read == total)
    print_progress(f"read {read} of {total} inferences{computing}" if total else "choosing")
