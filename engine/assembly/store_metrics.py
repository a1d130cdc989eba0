"""Prometheus metrics of the store, and of what jobs said last: read from files when somebody asks, or a little before."""

import logging
import math
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from quadriga.engine.config.settings import Settings
from quadriga.engine.jobs.job_kinds import BULK_INFERENCE, JOB_KINDS, REPLAY
from quadriga.engine.measures.metrics import gauge
from quadriga.monitor.drift.watch.current import comparisons_that_count
from quadriga.monitor.drift.watch.schedules import drift_schedules
from quadriga.monitor.report.saved import ReportStore, ReportSummary
from quadriga.store.database.damaged_files import damaged_files
from quadriga.store.database.sizes import read_size
from quadriga.store.database.sqlite import database_path
from quadriga.store.jobs.jobs import JOB_STATES, Jobs
from quadriga.store.journal.dead_records import DeadRecords
from quadriga.store.journal.journal_lag import oldest_waiting_id
from quadriga.store.records.errors import JSON_ERRORS, StoreError
from quadriga.store.records.ids import time_ms
from quadriga.store.records.scope import EVERYTHING, Scope, Scoped

_log = logging.getLogger(__name__)

REPORTS_S = 15.0
"""Seconds for which the states of jobs and the newest reports are kept."""

MAX_REPORTED = 1000
"""Models, of all teams, whose newest reports are shown: the first by name."""

_REPORTED = ("model", "team")


class _AlarmedSignal(msgspec.Struct, frozen=True):
    alarm: bool = False


class _Drift(msgspec.Struct, frozen=True):
    """The part of a drift report that says which signals raise an alarm."""

    signals: list[_AlarmedSignal] = []


class StoreMetrics(Collector):
    """Metrics of a server that stores inferences; safe to use from several threads.

    Args:
        settings: Settings of the server.
        jobs: All jobs.
        reports: All reports.
        clock: Returns the time in seconds since 1970.
    """

    def __init__(
        self,
        settings: Settings,
        jobs: Jobs,
        reports: Scoped[ReportStore],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._data = Path(settings.data)
        self._jobs = jobs
        self._reports = reports.within(EVERYTHING)
        self._schedules = drift_schedules(settings.drift_directory)
        self._clock = clock
        self._dead = DeadRecords(self._data)
        self._lock = threading.Lock()
        self._reported: list[Metric] = []
        self._reported_until_s = -math.inf
        self._alarms: dict[str, int] = {}
        """Signals in alarm, by the id of a drift report."""

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its current value."""
        with suppress(OSError):
            oldest_id = oldest_waiting_id(self._settings.journal_directory)
            age_s = 0.0 if oldest_id is None else self._clock() - time_ms(oldest_id) / 1000
            yield gauge("quadriga_store_oldest_waiting_seconds", value=max(age_s, 0.0))
        with suppress(OSError):
            yield gauge("quadriga_store_dead_records", value=self._dead.records())
            yield gauge("quadriga_store_dead_segments", value=self._dead.segments())
        damaged = len(damaged_files(self._settings.database_url))
        yield gauge("quadriga_store_damaged_databases", value=damaged)
        yield from self._sizes()
        yield self._free_bytes()
        yield gauge("quadriga_jobs_waiting", value=self._jobs.waiting_count())
        yield from self._newest_reports()

    def _sizes(self) -> Iterable[Metric]:
        """Yield the sizes of database and images, some of them as measured a while ago."""
        measured = gauge("quadriga_store_measured_timestamp_seconds", "of")
        database_bytes = _database_bytes(self._settings.database_url)
        if (database := read_size(self._data, "database")) is not None and database_bytes is None:
            database_bytes = database.bytes
            measured.add_metric(["database"], database.measured_at)
        if database_bytes is not None:
            yield gauge("quadriga_store_database_bytes", value=database_bytes)
        if (images := read_size(self._data, "images")) is not None:
            measured.add_metric(["images"], images.measured_at)
            yield gauge("quadriga_store_images", value=images.count)
            yield gauge("quadriga_store_image_bytes", value=images.bytes)
        yield measured

    def _free_bytes(self) -> Metric:
        free = gauge("quadriga_disk_free_bytes", "folder")
        folders = {"data": self._settings.data}
        if "://" not in self._settings.blob_location:
            folders["images"] = self._settings.blob_location
        for label, folder in folders.items():
            with suppress(OSError):  # it is made when something is stored first
                free.add_metric([label], shutil.disk_usage(folder).free)
        return free

    def _newest_reports(self) -> list[Metric]:
        """Return the metrics of jobs and reports, as of at most `REPORTS_S` ago."""
        with self._lock:
            if time.monotonic() >= self._reported_until_s:
                self._reported = [*self._read_jobs()]
                try:
                    self._reported += self._read_reports()
                except (StoreError, msgspec.MsgspecError, OSError) as error:  # one is damaged
                    _log.error("metrics leave out the reports: %s", error)
                self._reported_until_s = time.monotonic() + REPORTS_S
            return self._reported

    def _read_jobs(self) -> Iterable[Metric]:
        states = gauge("quadriga_jobs", "kind", "state")
        # Those of no jobs too: Prometheus sees nothing rise in a series that begins with the first failure.
        kinds = (*JOB_KINDS, BULK_INFERENCE, REPLAY)
        counts = Counter({(kind, state): 0 for kind in kinds for state in JOB_STATES})
        counts.update((job.kind, job.state) for job in self._jobs.all())
        for labels, count in sorted(counts.items()):
            states.add_metric(labels, count)
        yield states

    def _read_reports(self) -> Iterable[Metric]:
        teams = {job.id: job.team for job in self._jobs.all()}
        alarm = gauge("quadriga_drift_alarm", *_REPORTED)
        signals = gauge("quadriga_drift_alarmed_signals", *_REPORTED)
        drift_at = gauge("quadriga_drift_report_timestamp_seconds", *_REPORTED)
        value = gauge("quadriga_evaluation_metric", *_REPORTED, "metric")
        evaluated_at = gauge("quadriga_evaluation_timestamp_seconds", *_REPORTED)
        newest = self._last_reports(teams)
        alarmed = {}
        for (kind, *labels), summary in sorted(newest.items())[:MAX_REPORTED]:
            created_s = _seconds(summary.created)
            if kind == "drift":
                count = alarmed[summary.id] = self._alarmed_signals(summary.id)
                alarm.add_metric(labels, float(summary.status == "drift"))
                signals.add_metric(labels, count)
                drift_at.add_metric(labels, created_s)
                continue
            evaluated_at.add_metric(labels, created_s)
            if summary.headline is not None and summary.headline.value is not None:
                value.add_metric([*labels, summary.headline.type], summary.headline.value)
        self._alarms = alarmed
        yield from (alarm, signals, drift_at, value, evaluated_at)

    def _last_reports(self, teams: Mapping[str, str]) -> dict[tuple[str, str, str], ReportSummary]:
        """Return the newest report by kind, model and team, given the team of each; of drift, the newest that counts."""
        listed: dict[tuple[str, str, str], list[ReportSummary]] = {}
        for summary in self._reports.all():  # the newest first
            key = (summary.kind, summary.model.name, teams.get(summary.id, ""))
            listed.setdefault(key, []).append(summary)
        scheduled = {team: {*self._schedules.within(Scope(team)).models()} for _, _, team in listed}
        return {
            (kind, model, team): comparisons_that_count(
                summaries, is_scheduled=model in scheduled[team]
            )[0]
            if kind == "drift"
            else summaries[0]
            for (kind, model, team), summaries in listed.items()
        }

    def _alarmed_signals(self, report_id: str) -> int:
        if report_id in self._alarms:  # a report does not change
            return self._alarms[report_id]
        with suppress(StoreError, *JSON_ERRORS):  # removed since, or damaged
            report = msgspec.json.decode(self._reports.read(report_id), type=_Drift)
            return sum(signal.alarm for signal in report.signals)
        return 0


def _seconds(time_text: str) -> float:
    """Return a time in seconds since 1970; NaN where a report has none."""
    with suppress(ValueError):
        return datetime.fromisoformat(time_text).timestamp()
    return math.nan


def _database_bytes(url: str) -> int | None:
    """Return the size of a database in files, with its log; None for a server, or while there is none."""
    path = database_path(url)
    if path is None:
        return None
    size_bytes = None
    with suppress(OSError):  # there is no log, or not even a file
        size_bytes = path.stat().st_size
        size_bytes += path.with_name(f"{path.name}-wal").stat().st_size
    return size_bytes
