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
from collections.abc import Callable
from typing import NoReturn

import msgspec

from quadriga.engine.processes.supervisor import EXIT_UNUSABLE, ChildTask
from quadriga.engine.settings import Settings, SettingsError, add_extensions
from quadriga.store.errors import StoreError

_POLL_INTERVAL_S = 0.2
_log = logging.getLogger("quadriga")


def configure_logging(role: str) -> None:
    """Send log lines to standard error, with the process that wrote them."""
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)s {role}[{os.getpid()}] %(name)s: %(message)s",
        force=True,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("clickhouse_connect").setLevel(
        logging.CRITICAL
    )  # the sender logs an error once
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # as above


def main() -> None:
    """Run as a child of the supervisor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends these to the whole group, but
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the supervisor decides the order of the end
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=ChildTask)
    configure_logging(f"{task.role}-{task.number}" if task.role == "worker" else task.role)
    if task.role == "jobs":
        _run_jobs(task.settings)
    elif task.role == "writer":
        try:
            _run_writer(task.settings)
        except StoreError as error:  # the tables of another version, no driver, another writer
            _end_unusable(error)
    else:
        _run_worker(task)


def _end_unusable(error: Exception) -> NoReturn:
    _log.error("%s", error)
    sys.exit(EXIT_UNUSABLE)


def _call_on_stop(stop: Callable[[], object]) -> None:
    """Call `stop` in a thread once standard input ends."""

    def wait() -> None:
        while os.read(0, 1024):  # a lock on sys.stdin would abort the exit of the process
            pass
        stop()

    threading.Thread(target=wait, name="supervisor", daemon=True).start()


def _run_worker(task: ChildTask) -> None:
    from quadriga.engine.processes.serving import serve
    from quadriga.engine.session import LoadError

    try:
        add_extensions(task.settings)
        serve(task, _call_on_stop)
    except (LoadError, SettingsError) as error:
        _end_unusable(error)


def _run_writer(settings: Settings) -> None:
    from quadriga.store.blobs.files import open_blobs
    from quadriga.store.blobs.unreferenced import sweep_periodically
    from quadriga.store.maintenance.retention import RetentionCleaner
    from quadriga.store.writer import Writer

    stop = threading.Event()
    _call_on_stop(stop.set)
    blobs = open_blobs(settings.blob_location, settings.blob_grace_s)
    retention = RetentionCleaner(blobs, settings.journal_directory, settings.max_input_bytes)
    sweep_arguments = (blobs, settings.database_url, settings.journal_directory, stop)
    threading.Thread(
        target=sweep_periodically, args=sweep_arguments, name="sweep", daemon=True
    ).start()
    if not settings.clickhouse:
        Writer(settings.journal_directory, settings.database_url, retention).run(stop)
        return
    try:
        from quadriga.store.replication.clickhouse import ClickHouseSender
    except ImportError as error:
        raise StoreError(
            f"clickhouse-connect is required ({error}): pip install quadriga[clickhouse]"
        ) from error
    sender = ClickHouseSender(settings.journal_directory, settings.clickhouse)
    writer = Writer(
        settings.journal_directory,
        settings.database_url,
        retention,
        is_segment_needed=sender.has_unsent,
    )
    sending = threading.Thread(target=sender.run, args=(stop,), name="clickhouse")
    sending.start()
    try:
        writer.run(stop)
    finally:
        stop.set()  # a writer that failed is started again, and so this process has to end
        sending.join()
    writer.run(stop)  # removes the segments that ClickHouse had yet to take


def _run_jobs(settings: Settings) -> None:
    stop = threading.Event()
    _call_on_stop(stop.set)
    watching = threading.Thread(
        target=_run_schedules, args=(settings, stop), name="watch", daemon=True
    )
    watching.start()
    while not settings.jobs_directory.is_dir():  # until there was a job, this takes little memory
        if stop.wait(_POLL_INTERVAL_S):
            return
    from quadriga.engine.job_kinds import JOB_KINDS
    from quadriga.engine.store_access import open_reader
    from quadriga.store.jobs import QUERY_TIMEOUT_S, JobRunner, Jobs

    inferences, blobs = open_reader(settings, QUERY_TIMEOUT_S)
    jobs = Jobs(settings.jobs_directory)
    JobRunner(jobs, JOB_KINDS, inferences, blobs, keep_days=settings.job_days).run(stop)


def _run_schedules(settings: Settings, stop: threading.Event) -> None:
    """Submit the jobs of schedules and deliver alerts, once there is a schedule."""
    while not any(settings.drift_directory.glob("*.schedule.json")):  # as the jobs
        if stop.wait(_POLL_INTERVAL_S):
            return
    from quadriga.monitor.drift.watch.alerts import Outbox, run_deliveries
    from quadriga.monitor.drift.watch.schedules import ScheduleStore, run_scheduler
    from quadriga.store.jobs import Jobs

    outbox = Outbox(settings.drift_directory)
    alerts = threading.Thread(target=run_deliveries, args=(outbox, stop), daemon=True)
    alerts.start()  # it ends with the process: a receiver may take long to answer
    run_scheduler(ScheduleStore(settings.drift_directory), Jobs(settings.jobs_directory), stop)


if __name__ == "__main__":
    main()
    gc.freeze()  # memory ends with the process: a search for cycles would take a quarter of a second
