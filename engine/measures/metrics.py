"""Prometheus metrics of the server: what its workers count, and what is so at this moment."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from quadriga.engine.measures.model_counts import (
    BATCH_SIZES,
    BOUNDS_S,
    IMAGES,
    REQUEST,
    RUNS,
    SIZE_SUM,
    STAGE,
    SUM,
)
from quadriga.engine.measures.shared_counts import (
    ENDS,
    REDIRECTED,
    REFUSED,
    REQUESTS,
    STOPPED,
    RowTotals,
    SharedCounts,
    outcomes_of,
)
from quadriga.proto.errors import ProtocolError
from quadriga.proto.messages import ProcessHealth, Serving
from quadriga.proto.request import QueueStatistics

TEXTS = {
    "quadriga_build_info": "Version of the engine, as a label; always 1.",
    "quadriga_ready": "Whether requests are answered (1) or not (0). At 0, GET /ready?verbose says which part is not ready and why.",
    "quadriga_process_restarts": "Times that a process was started again. If it rises, quadriga_process_ends_total has the cause, and the log what was running.",
    "quadriga_process_hangs": "Times that a process was killed because it showed no sign of life for 60 s. Look in the log for what it did before.",
    "quadriga_process_ends": "Ends of a process that the supervisor did not ask for, by cause: a signal, exit-<status> or hang. SIGKILL is mostly the system's out-of-memory killer; SIGSEGV mostly a model, see quadriga_models_refused.",
    "quadriga_images": "Images, or rows of tensors, of requests that were answered.",
    "quadriga_executions": "Runs of a model's graph for requests that were answered. Far fewer than images means that requests share runs.",
    "quadriga_batch_size": "Images, or rows, of each run of a model's graph. All in the lowest bucket under load means that max_batch or batching is not used.",
    "quadriga_request_duration_seconds": "Time of requests to a model from their parsed body to their answer, waiting included; outcome failure includes mistakes of clients, which quadriga_requests_total tells apart. If it rises, see which stage does.",
    "quadriga_requests_redirected": "Requests that the shares of a model give to this version, and that another one answered, as this one was not ready. If it rises, GET /v2/repository/index says why it is not.",
    "quadriga_stage_duration_seconds": "Time that requests that were answered spent waiting for a thread or a shared run (queue), preparing input (input), running the graph (infer) and reading its output (output). queue high: more workers or replicas; infer high: another provider or model; input high: larger images than before.",
    "quadriga_model_providers": "Place of each execution provider of a model, from 1; none for the default. A GPU that is missing here is not used.",
    "quadriga_requests": "All requests by protocol and by how they ended, those that never reached a model included. refused: add workers or replicas, or raise limits; deadline: see the stages; model_failure and server_error: see the log; client_error: tell whoever sends them.",
    "quadriga_requests_waiting": "Requests that wait for a thread now. Above 0 for long, the model is asked for more than it can do.",
    "quadriga_requests_running": "Requests that run in a thread now; at most the threads of all workers.",
    "quadriga_requests_expected_wait_seconds": "Expected wait of a further request of a new client, in the worker where it is longest. Requests are refused beyond max_wait_s: add replicas before.",
    "quadriga_requests_refused": "Requests refused on arrival as a queue was full or its wait too long. If it rises, add workers or replicas, or send less at once.",
    "quadriga_requests_stopped": "Requests stopped before their answer, as their deadline passed or their client left. If it rises, compare the clients' timeouts with the durations.",
    "quadriga_body_bytes": "Bytes of request bodies, and of answers over gRPC, that all workers hold now. Near max_inflight_bytes times the workers, further bodies are refused.",
    "quadriga_bodies_refused": "Requests refused because the bodies of all together were too large. Raise max_inflight_bytes if there is memory, or send fewer large bodies at once.",
    "quadriga_bodies_late": "Requests refused because their bodies did not arrive in time: slow networks or clients, or an attack. See body_timeout_s.",
    "quadriga_models_refused": "Versions of models that are refused now because they ended their process too often. POST /v2/repository/index names them; load another version, or run them with isolation.",
    "quadriga_model_source_age_seconds": "Time since the source of the models was last seen as it is. Far above models_poll_s, the source does not answer, or holds what is refused: GET /ready?verbose and the log say why.",
    "quadriga_model_source_failed_looks": "Looks at the source of the models that failed. What is served stays; the log has the reason.",
    "quadriga_model_source_unserved": "Models whose newest files are not served, as they failed to load. Above 0, the versions before are served: GET /ready?verbose says why.",
    "quadriga_tls_certificate_end_timestamp_seconds": "When the certificate in use ends, in seconds since 1970; left out without TLS. If it is near, renew the files of tls_certificate and tls_key: they are read again by themselves.",
    "quadriga_key_end_timestamp_seconds": "When a key ends, in seconds since 1970, of the keys that end within 30 days. If it is near, give its client a new one: quadriga keys rotate.",
    "quadriga_key_requests": "Requests admitted with the key. A key that does far more than others may need limits.",
    "quadriga_key_requests_running": "Requests of the key that are answered now. At the number its limits allow, further ones are refused.",
    "quadriga_key_requests_refused": "Requests refused by a limit of the key. If it rises, its client should send less, or an administrator raise the limit.",
    "quadriga_connections_refused": "Connections refused because there were more than max_connections. Look for clients that open one for each request.",
    "quadriga_connections_displaced": "Idle connections, and gRPC calls without their message, ended because others needed their places. If it rises, raise max_connections.",
    "quadriga_queries_waiting": "Searches of the store that wait for a thread, in all workers. Above 0 for long, searches are slow: narrow them, or add workers.",
    "quadriga_queries_refused": "Searches of the store refused because too many waited. The console and the API are slow then; see quadriga_queries_waiting.",
    "quadriga_jobs_waiting": "Submitted jobs that wait or run. If it only grows, one job blocks the others: see quadriga_jobs and GET /api/jobs.",
    "quadriga_jobs_refused": "Jobs refused because 100 waited or ran. Cancel jobs that nobody needs, or submit fewer.",
    "quadriga_audit_lines": "Lines written to the audit log.",
    "quadriga_audit_lost": "Lines that the audit log could not take. Any is a gap in the log: look at the disk of the data folder.",
    "quadriga_audit_refusals": "Accesses refused with 401, 403 or 429. A sudden rise is a key that has ended, or somebody who tries keys: the audit log has their addresses.",
    "quadriga_audit_failing": "Workers that cannot write the audit log now, and so refuse changes. Above 0, look at the disk of the data folder.",
    "quadriga_store_lag_bytes": "Bytes of the journal that are not in the database yet. If it grows, the database is away or too slow: see the oldest record's age and the writer's state in GET /ready?verbose.",
    "quadriga_store_lag_soft_limit_bytes": "Lag from which on clients are told that the database falls behind.",
    "quadriga_store_lag_limit_bytes": "Lag from which on journal_full decides what happens to requests: refused, by default. Raise journal_hard_bytes if the disk has room.",
    "quadriga_store_oldest_waiting_seconds": "Age of the oldest record or change that is not in the database; 0 if all are. Above a minute, the database is away, or the writer is behind: see GET /ready?verbose.",
    "quadriga_store_dead_records": "Records that the database rejected, in dead.jsonl of the data folder. Any is an inference that no query finds: report it with its error.",
    "quadriga_store_dead_segments": "Damaged parts of the journal, in the folder dead of the data folder. Any means that a disk or its memory is faulty.",
    "quadriga_store_database_bytes": "Size of the database: SQLite's file with its log, or what a PostgreSQL has of it, indexes included, as of some minute. Near what its disk has free, shorten retention; beyond some 100 GB of SQLite, use PostgreSQL.",
    "quadriga_store_images": "Images that are stored, each once whatever its inferences, as counted each hour. If they fill the disk, shorten retention or store a sample; far more than the inferences with an image: see the log for sweeps that fail.",
    "quadriga_store_image_bytes": "Bytes of the images that are stored, as counted each hour. If they fill the disk, shorten retention or store a sample.",
    "quadriga_store_measured_timestamp_seconds": "When a size was measured, in seconds since 1970: of the images, each hour, and of a PostgreSQL, each minute. Long ago: the database is away, or the writer is, see GET /ready?verbose.",
    "quadriga_disk_free_bytes": "Free bytes of the disk of a folder: the data folder, and that of the images. Low: shorten retention, or enlarge the disk, before inferences are refused.",
    "quadriga_jobs": "Jobs by kind and state, 0 included, as of at most 15 s ago. failed: GET /api/jobs/{id} has the reason; queued for long: a job before them runs long.",
    "quadriga_drift_alarm": "Whether the newest drift report of a model, of its schedule if it has one, says drift (1) or not (0). At 1, open the report and look at the signals with the largest effects.",
    "quadriga_drift_alarmed_signals": "Signals with an alarm in the newest drift report of a model. Many at once mostly have one cause, such as another camera.",
    "quadriga_drift_report_timestamp_seconds": "When the newest drift report of a model was made, in seconds since 1970. Long ago: its schedule does not run, see GET /api/jobs.",
    "quadriga_evaluation_metric": "First metric of the newest evaluation of a model, by its type. If it falls, compare the slices of the report with the one before.",
    "quadriga_evaluation_timestamp_seconds": "When the newest evaluation of a model was made, in seconds since 1970. Long ago: its schedule does not run, or there is no ground truth.",
    "quadriga_store_journal_bytes": "Bytes written to the journal, which is what storing inferences costs the disk.",
    "quadriga_store_stored": "Inferences that were acknowledged as stored.",
    "quadriga_store_failed": "Records of requests that the model failed to answer. The filter status=500 finds them, each with its reason.",
    "quadriga_store_shed": "Inferences answered without being stored, as the journal was full. Their records are missing: look at the database and the disk.",
    "quadriga_store_refused": "Requests refused because they could not be stored. Look at the database, the disk, and the journal's limit.",
    "quadriga_store_blocked": "Requests that waited for room in the journal. A sign that the database is too slow for the load.",
    "quadriga_store_behind": "Requests answered while the journal was beyond its soft limit. The database falls behind: act before the hard limit.",
    "quadriga_store_lost": "Inferences acknowledged with durability none that were lost, as the disk took no more. Free disk space.",
    "quadriga_store_logged": "Inferences of models that are served elsewhere, one for each image, that were stored.",
    "quadriga_store_logged_repeated": "Logged inferences that were stored before, by their keys, and so were not stored again.",
    "quadriga_store_logged_refused": "Logged inferences that were refused as invalid. The response to each has the reason.",
    "quadriga_store_events": "Events of KServe's logger that were kept: a request or a response each.",
    "quadriga_store_events_repeated": "Events that had come before.",
    "quadriga_store_events_paired": "Pairs of a request and its response that were stored as one inference.",
    "quadriga_store_events_alone": "Events that were stored alone, as the other half did not come in time. Many: the model fails, or the logger drops events.",
    "quadriga_store_events_late": "Events that came after the other half was stored alone, and were dropped. Many: the gateway delivers them more than five minutes apart.",
    "quadriga_store_events_unread": "Pairs that were stored without predictions, as these cannot be read. standard_metadata.unread has the reason of each.",
    "quadriga_store_events_waiting": "Events that wait for their other half now.",
    "quadriga_store_events_waiting_bytes": "Bytes of the events that wait for their other half now. A team may have 1 GiB.",
    "quadriga_store_clock_jumps": "Times that the clock jumped by more than a minute. Look at the machine's time synchronisation.",
    "quadriga_store_clock_ahead_seconds": "How far the clock is from the time that ids follow, in seconds; 0 if they follow it. Not 0 for long: the clock was wrong before, or is now.",
    "quadriga_store_damaged_databases": "Damaged databases that were set aside beside the new one. Above 0, salvage what they hold, as the page on the store says, then remove them.",
    "quadriga_store_signals": "Images whose signals for drift were stored.",
    "quadriga_store_signals_skipped": "Images that were not chosen for signals, by the sampling of the settings.",
    "quadriga_store_signals_dropped": "Images that found no room in the queue of signals. If it rises, drift reports see fewer images: sample less, or add processors.",
}

_PROC = Path("/proc")

_THREADS = "process_threads"

_THREADS_TEXT = (
    "Number of threads of the process. If it only grows, report it with the server's log."
)


class ProcessMetrics(Collector):
    """CPU time, memory, open files and threads of a server's processes, each with its name as the label `process`.

    Args:
        worker: Number of the worker that collects.
        supervisor: Process id of the supervisor, whose children are collected too; None for a single process.
    """

    def __init__(self, worker: int, supervisor: int | None = None) -> None:
        self._worker = worker
        self._supervisor = supervisor

    def collect(self) -> Iterable[Metric]:
        """Yield every metric, with a sample for each process; none where the system has no /proc."""
        metrics: dict[str, Metric] = {}
        for name, pid in self._processes().items():
            with suppress(OSError, ValueError):  # it has ended since it was listed
                for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                    labelled = metrics.setdefault(
                        metric.name, Metric(metric.name, metric.documentation, metric.type)
                    )
                    for sample in metric.samples:
                        labelled.add_sample(sample.name, {"process": name}, sample.value)
                threads = metrics.setdefault(_THREADS, Metric(_THREADS, _THREADS_TEXT, "gauge"))
                count = sum(1 for _ in (_PROC / str(pid) / "task").iterdir())
                threads.add_sample(_THREADS, {"process": name}, count)
        return metrics.values()

    def _processes(self) -> dict[str, int]:
        """Return the ids of all processes by their names, such as `worker-0`."""
        processes = {f"worker-{self._worker}": os.getpid()}
        if self._supervisor is not None:
            processes["supervisor"] = self._supervisor
            with suppress(OSError):
                tasks = _PROC / str(self._supervisor) / "task"
                for children in tasks.glob("*/children"):
                    for pid in map(int, children.read_text().split()):
                        processes |= _child(pid)
        return processes


def _child(pid: int) -> dict[str, int]:
    """Return the id of a child of the supervisor by its name, the last word of its command line."""
    with suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        if b"quadriga.engine.processes.worker" in words:
            return {words[-1].decode(errors="replace"): pid}
    return {}


_MODEL = ("model", "version")

_INFINITE = "+Inf"


def request_metrics(rows: Iterable[RowTotals]) -> Iterable[Metric]:
    """Yield the metrics of requests, models and processes that are in rows of the shared counts."""
    requests = counter("quadriga_requests", "protocol", "outcome")
    durations = _histogram("quadriga_request_duration_seconds", *_MODEL, "outcome", "protocol")
    stages = _histogram("quadriga_stage_duration_seconds", *_MODEL, "stage")
    images = counter("quadriga_images", *_MODEL)
    runs = counter("quadriga_executions", *_MODEL)
    sizes = _histogram("quadriga_batch_size", *_MODEL)
    single = {
        REFUSED: counter("quadriga_requests_refused", "model", "reason"),
        STOPPED: counter("quadriga_requests_stopped", "model", "reason"),
        ENDS: counter("quadriga_process_ends", "process", "cause"),
        REDIRECTED: counter("quadriga_requests_redirected", *_MODEL),
    }
    for row in rows:
        kind, *labels = row.name
        if kind == REQUESTS:
            for outcome, count in outcomes_of(row).items():
                requests.add_metric([*labels, outcome], count)
        elif kind == REQUEST:
            _add_durations(durations, labels, row.cells)
        elif kind == STAGE:
            _add_durations(stages, labels, row.cells)
        elif kind == RUNS:
            images.add_metric(labels, row.cells[IMAGES])
            runs.add_metric(labels, sum(row.cells[:SIZE_SUM]))
            bounds = [*map(str, BATCH_SIZES), _INFINITE]
            _add(sizes, labels, bounds, row.cells, sum_value=row.cells[SIZE_SUM])
        elif kind in single:
            single[kind].add_metric(labels, row.cells[0])
    yield from (requests, durations, stages, images, runs, sizes, *single.values())


def counter(name: str, *labels: str, value: float | None = None) -> CounterMetricFamily:
    """Return a counter with labels, or with a value, with its text."""
    return CounterMetricFamily(name, TEXTS[name], value, labels=labels or None)


def gauge(name: str, *labels: str, value: float | None = None) -> GaugeMetricFamily:
    """Return a gauge with labels, or with a value, with its text."""
    return GaugeMetricFamily(name, TEXTS[name], value, labels=labels or None)


def _histogram(name: str, *labels: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, TEXTS[name], labels=labels)


def _add_durations(
    family: HistogramMetricFamily, labels: Sequence[str], cells: Sequence[int]
) -> None:
    bounds = [*map(floatToGoString, BOUNDS_S), _INFINITE]
    _add(family, labels, bounds, cells, sum_value=cells[SUM] / 1e9)


def _add(
    family: HistogramMetricFamily,
    labels: Sequence[str],
    bounds: Sequence[str],
    cells: Sequence[int],
    *,
    sum_value: float,
) -> None:
    """Add a histogram, each bucket with those below it; none before the first observation, as most models wait for one."""
    if not any(cells[: len(bounds)]):
        return
    counts = accumulate(cells[: len(bounds)])
    family.add_metric(
        labels, list(zip(bounds, map(float, counts), strict=True)), sum_value=sum_value
    )


class PrometheusMetrics(Collector):
    """The state of a server, summed over all its workers, as metrics.

    `numbers` returns further numbers by name, without prefix; those that end in `_total` only rise.
    """

    def __init__(
        self,
        serving: Serving,
        server_version: str,
        numbers: Callable[[], Mapping[str, float]],
        counts: SharedCounts,
    ) -> None:
        self._serving = serving
        self._version = server_version
        self._numbers = numbers
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its current value."""
        build = gauge("quadriga_build_info", "version")
        build.add_metric([self._version], 1)
        yield build
        yield gauge("quadriga_ready", value=float(self._serving.unready_reason() is None))
        numbers = self._numbers()  # first, as it publishes what this worker counted
        yield from _process_metrics(self._serving.health_report().processes)
        yield from request_metrics(self._counts.totals())
        yield self._providers()
        yield from _queue_metrics(self._serving.queue_statistics())
        for name, value in numbers.items():
            yield _number_metric(name, value)

    def _providers(self) -> Metric:
        """Return which execution providers run each model that is ready, if they are not the default."""
        places = gauge("quadriga_model_providers", "model", "version", "provider")
        for status in self._serving.model_statuses():
            if status.state != "READY":
                continue
            with suppress(ProtocolError):  # it may be unloaded at this moment
                info = self._serving.model_info(status.name, status.version)
                for place, provider in enumerate(info.providers, 1):
                    places.add_metric([status.name, status.version, provider], place)
        return places


def _number_metric(name: str, value: float) -> Metric:
    """Return the metric of a number, which is the store's where nothing else has it."""
    bare = name.removesuffix("_total")
    metric_name = f"quadriga_{bare}"
    if metric_name not in TEXTS:
        metric_name = f"quadriga_store_{bare}"
    return (counter if name.endswith("_total") else gauge)(metric_name, value=value)


def _process_metrics(processes: Iterable[ProcessHealth]) -> Iterable[Metric]:
    restarts = counter("quadriga_process_restarts", "process")
    hangs = counter("quadriga_process_hangs", "process")
    for process in processes:
        name = process.name.replace(" ", "-")
        restarts.add_metric([name], process.restarts)
        hangs.add_metric([name], process.hangs)
    yield from (restarts, hangs)


def _queue_metrics(statistics: Iterable[QueueStatistics]) -> Iterable[Metric]:
    waiting = gauge("quadriga_requests_waiting", "model")
    running = gauge("quadriga_requests_running", "model")
    expected = gauge("quadriga_requests_expected_wait_seconds", "model")
    for queue in statistics:
        waiting.add_metric([queue.model], queue.waiting)
        running.add_metric([queue.model], queue.running)
        expected.add_metric([queue.model], queue.expected_wait_s)
    yield from (waiting, running, expected)
