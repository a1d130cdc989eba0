"""Opens the store of a server and its worker's source of ids, and makes the routes that find and change what is stored."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from quadriga.engine.access.tls import RenewedFiles
from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.jobs import job_routes, model_job_routes
from quadriga.engine.api.models import ModelEntries, ModelEntry, model_routes
from quadriga.engine.api.monitoring.drift import drift_alarm_routes, drift_routes
from quadriga.engine.api.monitoring.evaluations import evaluation_routes
from quadriga.engine.api.monitoring.schedules import evaluation_schedule_routes, schedule_routes
from quadriga.engine.api.store_queries import StoreQueries
from quadriga.engine.api.stored.changes import change_routes, ground_truth_routes
from quadriga.engine.api.stored.event_streams import EventStreams
from quadriga.engine.api.stored.inference_tables import table_routes
from quadriga.engine.api.stored.inferences import browsing_routes, inference_routes
from quadriga.engine.api.stored.logged_inferences import logged_inference_routes
from quadriga.engine.api.stored.tail import tail_route
from quadriga.engine.api.stored.thumbnails import Thumbnails
from quadriga.engine.api.views import view_routes
from quadriga.engine.assembly.store_access import open_reader
from quadriga.engine.config import extras
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.services import ConsoleStore
from quadriga.engine.external.descriptions import DescribedModels
from quadriga.engine.external.event_pairs import EventPairs
from quadriga.engine.external.log_service import LogRecorder, LogService, known_model_name
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.engine.models.runners.session import LoadError
from quadriga.engine.serving.pipeline import Pipeline
from quadriga.engine.serving.recording import Embed, Recorder
from quadriga.monitor.drift.baselines import BaselineStore
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.drift.watch.current import CurrentDrift
from quadriga.monitor.drift.watch.schedules import drift_schedules
from quadriga.monitor.model_files import rename_aliases
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.watch.mutes import MuteStore
from quadriga.monitor.watch.webhooks import parse_webhook_hosts
from quadriga.proto.http.chariot import parse_metadata_value
from quadriga.store.changes.erasures import Erasures
from quadriga.store.changes.service import ChangeService
from quadriga.store.database.partitions import PastMonths
from quadriga.store.external.event_halves import EventHalves
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.jobs.runner import JOB_TIMEOUT_S
from quadriga.store.journal.journal import Journal
from quadriga.store.journal.journal import latest_seq as latest_journaled
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.names import ModelNames
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError, StoreError
from quadriga.store.records.ids import (
    LARGEST_ID,
    MAX_LEAD_MS,
    Clock,
    IdSource,
    read_lease,
    smallest_id_at,
    time_ms,
)
from quadriga.store.records.records import timestamp_text

LATEST_ID_TIMEOUT_S = 5.0
"""Maximum time that a worker's start waits for a database that does not respond."""

NO_NUMBER = "expected worker numbers from the database, got no answer: a new data folder has none"
"""Why a worker is not ready whose number the database has to give."""

_POLL_INTERVAL_S = 0.05
_log = logging.getLogger(__name__)


CHANGE_THREADS, WAITING_CHANGES, CHANGE_WAIT_S = 8, 256, 60.0
"""Changes of the store that a worker makes at once, that wait for that, and how long each waits at most."""

LOG_THREADS, WAITING_LOGS, LOG_WAIT_S = 2, 64, 30.0
"""Requests with inferences from elsewhere that a worker reads at once, that wait for that, and how long each waits at most."""

QUERY_THREADS = 4
"""Searches of the store that a worker runs at once: more would take the processor from inference."""

CHEAP_READS = 4
"""Reads of the store that find a connection beside all searches."""


def assign_number(
    ids: IdSource,
    inferences: InferenceReader,
    settings: Settings,
    worker: int,
    on_wait: Callable[[], object],
    *,
    run_id: str,
) -> None:
    """Wait for the number of a worker, and assign it to its source of ids.

    In a database of the data folder itself nobody else writes: its numbers need no claim.

    Args:
        ids: Source of ids of the worker.
        inferences: Reads the newest stored id.
        settings: Settings of the server.
        worker: Which of the server's workers this is, from 0.
        on_wait: Called if that takes longer than a database should.
        run_id: Id of the run of the server; empty without a writer.
    """
    number, directory = worker, settings.journal_directory
    if settings.database and run_id:
        number = _claimed_number(Path(settings.data), worker, run_id, on_wait)
    limit = smallest_id_at(_clock(settings).now_ms() + MAX_LEAD_MS)
    latest = latest_id(inferences, directory)
    if latest <= limit:
        ids.assign(number, latest)
        return
    _log.error(
        "ids until %s are stored, which the clock has not reached: new ids do not follow them",
        timestamp_text(time_ms(latest)),
    )
    ids.assign(number, latest_id(inferences, directory, limit), is_behind=True)


def _clock(settings: Settings) -> Clock:
    """Return the clock that ids are made of; a database of the data folder itself has none of its own."""
    return Clock(Path(settings.data) if settings.database else None)


def _claimed_number(data: Path, worker: int, run_id: str, on_wait: Callable[[], object]) -> int:
    wait_until_s: float | None = time.monotonic() + LATEST_ID_TIMEOUT_S
    while True:
        lease = read_lease(data)
        if lease is not None and lease.run == run_id:
            return lease.numbers[worker]
        if wait_until_s is not None and time.monotonic() > wait_until_s:
            wait_until_s = None
            _log.warning("the worker waits for its number, which the database gives")
            on_wait()
        time.sleep(_POLL_INTERVAL_S)


def latest_id(inferences: InferenceReader, journal_directory: Path, until: int = LARGEST_ID) -> int:
    """Return the largest stored id up to a limit, or the largest journaled one while the database is unavailable.

    A new database does not respond before its first migration. If it stays unavailable, the worker starts
    anyway: its ids repeat no others as long as the clock was not set back.
    """
    deadline_s = time.monotonic() + LATEST_ID_TIMEOUT_S
    while True:
        try:
            return inferences.latest_seq(until)
        except (NotReadyError, QueryTimeoutError) as error:
            if time.monotonic() > deadline_s:
                _log.error(
                    "new ids follow the clock alone, the newest stored is unknown: %s", error
                )
                return latest_journaled(journal_directory, until)
        time.sleep(_POLL_INTERVAL_S)


class OpenedStore(msgspec.Struct, frozen=True, kw_only=True):
    """The store of a worker, and what finds, takes and changes inferences."""

    recorder: Recorder
    journal: Journal
    ids: IdSource
    assign_number: Callable[[Callable[[], object]], None]
    """Waits for the number of the worker and assigns it to `ids`; the function given is called if that takes long."""
    inferences: InferenceReader
    routes: list[Any]
    console: ConsoleStore
    models: Callable[..., list[ModelEntry]]
    """Returns the models that the caller may see."""
    events: EventPairs


def open_store(
    settings: Settings,
    worker: int,
    run_id: str,
    *,
    embed: Embed,
    repository: ModelRepository,
    jobs: Jobs,
    query_threads: BoundedThreads,
    streams: EventStreams,
    tls_files: RenewedFiles | None,
    runs: Callable[[], Pipeline],
) -> OpenedStore:
    """Open the store, and make its routes.

    Raises:
        quadriga.engine.models.runners.session.LoadError: Images cannot be stored at their location.
    """
    try:
        inferences, blobs = open_reader(
            settings, connections=QUERY_THREADS + CHEAP_READS, served=repository.names
        )
    except StoreError as error:
        raise LoadError(str(error)) from error
    for folder in (
        settings.baselines_directory,
        settings.drift_directory,
        settings.evaluation_directory,
    ):
        rename_aliases(folder, repository.names())
    ids = IdSource(clock=_clock(settings))
    journal = Journal(settings.journal_directory, worker)
    recorder = Recorder(
        ids,
        journal,
        blobs,
        settings=settings,
        engine_version=version("quadriga"),
        embed=embed,
    )

    def served_name(name: str) -> str:
        return ModelNames(set, repository.names).resolve(name)

    def stored_name(name: str) -> str:
        return inferences.within(caller_scope()).names.resolve(name)

    service = LogService(
        LogRecorder(ids, journal, blobs, recorder=recorder, settings=settings),
        DescribedModels(Path(settings.data) / "descriptions"),
        lambda name: known_model_name(name, served_name, stored_name),
        settings,
        version=version("quadriga"),
        has_place=PastMonths(inferences.snapshot).has_place,
    )
    halves = EventHalves(Path(settings.data) / "events", is_synced=settings.durability == "power")
    events = EventPairs(service, halves)
    log_threads = BoundedThreads("logged inferences", LOG_THREADS, WAITING_LOGS, LOG_WAIT_S)
    changes = ChangeService(
        inferences,
        journal,
        ids,
        read_metadata=parse_metadata_value,
        erasures=Erasures(settings.erasures_directory),
        labels_of=partial(_labels_of, repository, service.described),
    )
    queries = StoreQueries(inferences, query_threads)
    reports = ReportStore(jobs)
    drift = DriftService(jobs, inferences, BaselineStore(settings.baselines_directory))
    mutes = MuteStore(settings.drift_directory)
    current_drift = CurrentDrift(reports, drift_schedules(settings.drift_directory))
    models = ModelEntries(
        repository.served_versions,
        inferences,
        reports=reports,
        drift=drift,
        mutes=mutes,
        current_drift=current_drift,
        labels=service.described.labels,
    )
    console = ConsoleStore(
        queries=queries,
        inferences=inferences,
        jobs=jobs,
        reports=reports,
        mutes=mutes,
        drift=drift,
        current_drift=current_drift,
    )
    hosts = parse_webhook_hosts(settings.webhook_hosts)
    threads = BoundedThreads("changes", CHANGE_THREADS, WAITING_CHANGES, CHANGE_WAIT_S)
    thumbnails = Thumbnails(inferences, settings.max_pixels)
    evaluations = settings.evaluation_directory
    routes = [
        *logged_inference_routes(service, events, log_threads, settings.max_body_bytes),
        *browsing_routes(queries),
        tail_route(queries, streams),
        *table_routes(queries, streams, JOB_TIMEOUT_S),
        *inference_routes(inferences, queries, thumbnails, public_url=settings.public_url),
        *change_routes(changes, threads),
        *ground_truth_routes(changes, threads, settings.max_body_bytes),
        *job_routes(jobs, inferences, hosts),
        *model_job_routes(
            jobs,
            inferences,
            repository.served_versions,
            folder=settings.bulk_folder,
            way_in_problem=lambda: "" if tls_files is None else tls_files.own_problem,
            hosts=hosts,
        ),
        *evaluation_routes(jobs, inferences, reports, hosts),
        *drift_routes(drift, hosts),
        *model_routes(models),
        *schedule_routes(settings.drift_directory, inferences, hosts, drift=drift),
        *drift_alarm_routes(reports, mutes, inferences),
        *view_routes(settings.views_directory),
        *evaluation_schedule_routes(evaluations, inferences, reports, hosts=hosts),
    ]
    with suppress(extras.MissingExtra):
        label_studio_routes = extras.load("label_studio", "/label-studio")
        routes += label_studio_routes(settings, runs, inferences, changes, threads=threads)
    return OpenedStore(
        recorder=recorder,
        journal=journal,
        ids=ids,
        assign_number=partial(assign_number, ids, inferences, settings, worker, run_id=run_id),
        inferences=inferences,
        routes=routes,
        console=console,
        models=models.all,
        events=events,
    )


def _labels_of(
    repository: ModelRepository, described: DescribedModels, model: str, team: str
) -> set[str]:
    """Return the labels of all loaded versions of a model, or of its description; none if those of a version are not known."""
    versions = [version for version in repository.served_versions() if version.name == model]
    if not versions:
        return set(described.labels(model, team))
    loaded = [version.labels for version in versions if version.sha256 is not None]
    return set().union(*loaded) if loaded and all(loaded) else set()
