"""The child processes of the server: a worker, which answers requests, the store's writer, and jobs.

A child reads its task as one line of JSON from standard input. It stops, gracefully, when standard
input ends: then its supervisor has asked it to, or has died.
"""

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from quadriga.engine.access.tls import RenewedFiles, TlsFiles
from quadriga.engine.config import extras
from quadriga.engine.config.settings import Settings, SettingsError, add_extensions
from quadriga.engine.measures.accounting import open_tracing
from quadriga.engine.measures.readiness import (
    BEAT_INTERVAL_S,
    DATABASE_AWAY,
    JOBS,
    WRITER,
    ProcessStates,
    retry_until_done,
)
from quadriga.engine.processes.logs import configure_logging
from quadriga.engine.processes.supervisor import EXIT_UNUSABLE, ChildTask
from quadriga.store.records.errors import MissingPartitionError, OtherVersionError, StoreError

_POLL_INTERVAL_S = 0.2
_log = logging.getLogger("quadriga")


def main() -> None:
    """Run as a child of the supervisor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends these to the whole group, but
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the supervisor decides the order of the end
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=ChildTask)
    role = f"{task.role}-{task.number}" if task.role == "worker" else task.role
    configure_logging(role, task.settings)
    if task.role == "worker":
        _run_worker(task)
        return
    mark = _show_life(task)
    if task.role == "jobs":
        mark("")
        _run_jobs(task.settings, task.http_url, task.internal_key, task.tls)
        return
    try:
        _run_writer(task.settings, task.run_id, mark)
    except (
        StoreError,
        extras.MissingExtra,
    ) as error:  # the tables of another version, no driver, another writer
        _end_unusable(error)


def _show_life(task: ChildTask) -> Callable[[str], None]:
    """Show the supervisor, from a thread, that the process runs.

    Returns:
        A function that notes for which reason the process waits; or that it works, if that is empty.
    """
    states = ProcessStates(task.processes_fd, task.settings.workers)
    states.mark(task.role, "starting")

    def beat() -> None:
        while True:
            states.beat(task.role)
            time.sleep(BEAT_INTERVAL_S)

    _start_thread("beat", beat)
    return lambda reason: states.mark(task.role, "waiting" if reason else "ready", reason)


def _end_unusable(error: Exception) -> NoReturn:
    _log.error("%s", error)
    sys.exit(EXIT_UNUSABLE)


def _call_on_stop(stop: Callable[[], object]) -> None:
    """Call `stop` in a thread once standard input ends."""

    def wait() -> None:
        while os.read(0, 1024):  # a lock on sys.stdin would abort the exit of the process
            pass
        stop()

    _start_thread("supervisor", wait)


def _run_worker(task: ChildTask) -> None:
    gc.disable()  # until all is there: looking for garbage in what is loaded takes a tenth of the start
    from quadriga.engine.models.runners.session import LoadError
    from quadriga.engine.processes.serving import serve

    try:
        add_extensions(task.settings)
        serve(task, _call_on_stop)
    except (LoadError, SettingsError, extras.MissingExtra) as error:
        _end_unusable(error)
    logging.shutdown()
    # The interpreter's own end would abort if a thread is in a native library, as it is while a model is loaded.
    os._exit(0)


def _run_writer(
    settings: Settings, run_id: str = "", mark: Callable[[str], object] = lambda _: None
) -> None:
    from quadriga.store.blobs.files import open_blobs
    from quadriga.store.blobs.unreferenced import sweep_periodically
    from quadriga.store.database.sizes import measure_periodically
    from quadriga.store.maintenance.eraser import ErasedReplica
    from quadriga.store.maintenance.retention import RetentionCleaner
    from quadriga.store.writing.writer import Writer

    stop = threading.Event()
    _call_on_stop(stop.set)
    blobs = open_blobs(settings.blob_location)
    retention = RetentionCleaner(blobs, settings.journal_directory, settings.max_input_bytes)
    url, journal_directory = settings.database_url, settings.journal_directory
    _start_thread("sweep", sweep_periodically, blobs, url, journal_directory, stop)
    if not url.startswith("sqlite"):  # metrics read the size of SQLite's file
        _start_thread("sizes", measure_periodically, url, Path(settings.data), stop)
    lease = None  # a database of the data folder has no other server
    if settings.database:
        from quadriga.store.database.lease import Lease

        lease = Lease(Path(settings.data), url, settings.workers, run=run_id)
    tracing = open_tracing(WRITER)

    def on_wait(failure: Exception | None) -> None:
        if isinstance(failure, OtherVersionError | MissingPartitionError):
            mark(f"{failure}: records wait in the journal")
        else:
            mark("" if failure is None else DATABASE_AWAY)

    def pause(seconds: float) -> None:
        if stop.wait(seconds):
            sys.exit(0)

    sender = replica = None
    if clickhouse := settings.of_extra("clickhouse", "url"):
        sender = extras.load("clickhouse", "extras.clickhouse.url")(journal_directory, clickhouse)
        replica = ErasedReplica(sender.sent_until, sender.erase)
    make = partial(
        Writer,
        journal_directory,
        url,
        retention,
        lease=lease,
        eraser=_eraser(settings, blobs, replica),
        on_wait=on_wait,
        on_commit=None if tracing is None else tracing.note_batch,
        **({} if sender is None else {"is_segment_needed": sender.has_unsent}),
    )
    writer = retry_until_done("open the store", make, mark, errors=OSError, sleep=pause)
    if sender is None:
        writer.run(stop)
    else:
        sending = threading.Thread(target=sender.run, args=(stop,), name="clickhouse")
        sending.start()
        try:
            writer.run(stop)
        finally:
            stop.set()  # a writer that failed is started again, and so this process has to end
            sending.join()
        writer.run(stop)  # removes the segments that ClickHouse had yet to take
    _close(tracing)


def _start_thread(name: str, work: Callable[..., object], *arguments: Any) -> None:
    """Start a thread that ends with the process."""
    threading.Thread(target=work, args=arguments, name=name, daemon=True).start()


def _close(tracing: Any) -> None:
    """Send the last spans."""
    if tracing is not None:
        tracing.close()


def _eraser(settings: Settings, blobs: Any, replica: Any) -> Any:
    """Return what carries out erasures, also in an `ErasedReplica`."""
    from quadriga.store.changes.erasures import Erasures
    from quadriga.store.jobs.jobs import Jobs
    from quadriga.store.maintenance.eraser import Eraser

    others = (
        settings.baselines_directory,
        settings.drift_directory,
        settings.evaluation_directory,
        settings.views_directory,
    )
    return Eraser(
        Erasures(settings.erasures_directory),
        settings.journal_directory,
        blobs,
        jobs=Jobs(settings.jobs_directory),
        others=others,
        replica=replica,
    )


def _run_jobs(
    settings: Settings, url: str = "", internal_key: str = "", tls: TlsFiles | None = None
) -> None:
    stop = threading.Event()
    _call_on_stop(stop.set)
    tracing = open_tracing(JOBS)
    _start_thread("watch", _run_schedules, settings, stop, tracing)
    while not settings.jobs_directory.is_dir():  # until there was a job, this takes little memory
        if stop.wait(_POLL_INTERVAL_S):
            return
    from quadriga.engine.assembly.store_access import open_reader
    from quadriga.engine.jobs.job_kinds import JOB_KINDS, model_jobs
    from quadriga.store.jobs.jobs import Jobs
    from quadriga.store.jobs.runner import (
        JOB_TIMEOUT_S,
        MAX_JOB_BYTES,
        QUERY_TIMEOUT_S,
        JobLimits,
        JobRunner,
    )

    inferences, blobs = open_reader(settings, QUERY_TIMEOUT_S)
    jobs = Jobs(settings.jobs_directory)
    long_jobs = model_jobs(
        url,
        settings.bulk_folder,
        settings.max_body_bytes,
        internal_key,
        tls=None if tls is None else RenewedFiles(settings, tls).trusting_context,
    )
    options: Any = {
        "keep_days": settings.job_days,
        "limits": JobLimits(JOB_TIMEOUT_S, MAX_JOB_BYTES),
        "span": None if tracing is None else tracing.job,
        "on_end": partial(_queue_end, settings),
    }
    long_runner = JobRunner(jobs, long_jobs, inferences, blobs, leave=JOB_KINDS, **options)
    thread = threading.Thread(target=long_runner.run, args=(stop,), name="model-jobs")
    thread.start()
    runner = JobRunner(jobs, JOB_KINDS, inferences, blobs, leave=long_jobs, **options)
    runner.run(stop)
    thread.join()
    _close(tracing)


def _queue_end(settings: Settings, job: Any) -> None:
    """Queue the message about the end of a job beside the alerts of its team."""
    from quadriga.monitor.drift.watch.schedules import drift_schedules
    from quadriga.monitor.watch.alerts import Outbox
    from quadriga.store.jobs.jobs import scope_of

    schedules = drift_schedules(settings.drift_directory)
    Outbox(schedules.within(scope_of(job))).queue_end(job)


def _run_schedules(settings: Settings, stop: threading.Event, tracing: Any = None) -> None:
    """Submit the jobs of schedules and deliver alerts and ends of jobs, once there is one of them."""
    from quadriga.monitor.model_files import TEAMS_FOLDER

    folders = (settings.drift_directory, settings.evaluation_directory)
    while not any(
        True
        for folder in folders
        for file in ("*.schedule.json", "outbox/*.json")
        for pattern in (file, f"{TEAMS_FOLDER}/*/{file}")
        for _ in folder.glob(pattern)
    ):  # as the jobs
        if stop.wait(_POLL_INTERVAL_S):
            return
    from quadriga.monitor.drift.watch.schedules import drift_schedules
    from quadriga.monitor.evaluation.schedules import evaluation_schedules
    from quadriga.monitor.watch.alerts import Outbox
    from quadriga.monitor.watch.deliveries import WebhookClient, run_deliveries
    from quadriga.monitor.watch.schedules import run_scheduler
    from quadriga.monitor.watch.webhooks import parse_webhook_hosts
    from quadriga.store.jobs.jobs import Jobs

    drift = drift_schedules(settings.drift_directory)
    evaluations = evaluation_schedules(settings.evaluation_directory)
    jobs = Jobs(settings.jobs_directory)
    client = WebhookClient(parse_webhook_hosts(settings.webhook_hosts))
    outboxes = Outbox(drift), Outbox(evaluations)
    span = None if tracing is None else tracing.delivery
    _start_thread("deliveries", run_deliveries, outboxes, client, stop, span)
    _start_thread("evaluations", run_scheduler, evaluations, jobs, stop)
    run_scheduler(drift, jobs, stop)


if __name__ == "__main__":
    main()
    gc.freeze()  # memory ends with the process: a search for cycles would take a quarter of a second
