"""Reports of stored inferences that a command computes: the data folder keeps them, as it keeps those of the server's jobs."""

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import msgspec

from quadriga.engine.commands.output import print_warnings
from quadriga.engine.config.settings import Settings
from quadriga.monitor.executors import OnProgress
from quadriga.monitor.report.saved import save_report
from quadriga.monitor.report.schema import Report
from quadriga.store.blobs.interface import Blobs
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.jobs.runner import JobRun, run_here
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import StoreError

Compute = Callable[[Path, OnProgress], Report]
"""Computes a report; gets a folder for what belongs to it, and what shows progress."""


def compute_and_keep(
    compute: Compute,
    show: OnProgress,
    options: SimpleNamespace,
    *,
    settings: Settings,
    job: tuple[str, msgspec.Struct],
    store: tuple[InferenceReader, Blobs],
) -> Report:
    """Compute a report, and keep it in the data folder; where it cannot be kept, a warning says why.

    Args:
        compute: Computes it.
        show: Shows progress.
        options: Values of the options; `is_kept` is set where the report is kept.
        settings: Settings of the store.
        job: Kind and parameters of the job that makes the same report on the server.
        store: Inferences and images.
    """
    with ExitStack() as stack:
        run = None
        if options.keep:
            stack.callback(os.umask, os.umask(0o077))  # as the files of the server
            try:
                check_keepable(options, settings)
                run = stack.enter_context(run_here(Jobs(settings.jobs_directory), *job, *store))
            except StoreError as error:
                _warn(str(error))
        if run is None:
            return compute(Path(stack.enter_context(TemporaryDirectory())), show)
        return _compute_within(run, compute, show, options)


def _compute_within(
    run: JobRun, compute: Compute, show: OnProgress, options: SimpleNamespace
) -> Report:
    def show_and_note(done: int, total: int | None) -> None:
        show(done, total)
        with suppress(OSError):  # a full disk is met again when the report is saved
            run.report_progress(done, total)

    report = compute(run.directory, show_and_note)
    saved = msgspec.structs.replace(report, id=run.job.id)
    try:
        run.end("succeeded", result=run.result(save_report(run, saved)))
    except OSError as error:
        _warn(str(error.strerror))
        return report
    options.is_kept = True
    return saved


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
