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

from quadriga.engine.measures.metric_texts import TEXTS
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
from quadriga.engine.measures.server_numbers import (
    REDIRECTED,
    REFUSED,
    REQUESTS,
    STOPPED,
    outcomes_of,
)
from quadriga.engine.measures.shared_counts import ENDS, RowTotals, SharedCounts
from quadriga.proto.errors import ProtocolError
from quadriga.proto.messages import ProcessHealth, QueueStatistics, Serving

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
    requests = _counter("quadriga_requests", "protocol", "outcome")
    durations = _histogram("quadriga_request_duration_seconds", *_MODEL, "outcome", "protocol")
    stages = _histogram("quadriga_stage_duration_seconds", *_MODEL, "stage")
    images = _counter("quadriga_images", *_MODEL)
    runs = _counter("quadriga_executions", *_MODEL)
    sizes = _histogram("quadriga_batch_size", *_MODEL)
    refused = _counter("quadriga_requests_refused", "model", "reason")
    stopped = _counter("quadriga_requests_stopped", "model", "reason")
    ends = _counter("quadriga_process_ends", "process", "cause")
    redirected = _counter("quadriga_requests_redirected", *_MODEL)
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
        elif kind in (REFUSED, STOPPED):
            (refused if kind == REFUSED else stopped).add_metric(labels, row.cells[0])
        elif kind == REDIRECTED:
            redirected.add_metric(labels, row.cells[0])
        elif kind == ENDS:
            ends.add_metric(labels, row.cells[0])
    yield from (requests, durations, stages, images, runs, sizes, refused, stopped, ends)
    yield redirected


def _counter(name: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, TEXTS[name], labels=labels)


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
    """Add a histogram, each bucket with those below it."""
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
        build = _gauge("quadriga_build_info", "version")
        build.add_metric([self._version], 1)
        yield build
        ready = _gauge("quadriga_ready")
        ready.add_metric([], float(self._serving.unready_reason() is None))
        yield ready
        numbers = self._numbers()  # first, as it publishes what this worker counted
        yield from _process_metrics(self._serving.health_report().processes)
        yield from request_metrics(self._counts.totals())
        yield self._providers()
        yield from _queue_metrics(self._serving.queue_statistics())
        for name, value in numbers.items():
            yield _number_metric(name, value)

    def _providers(self) -> Metric:
        """Return which execution providers run each model that is ready, if they are not the default."""
        places = _gauge("quadriga_model_providers", "model", "version", "provider")
        for status in self._serving.model_statuses():
            if status.state != "READY":
                continue
            with suppress(ProtocolError):  # it may be unloaded at this moment
                info = self._serving.model_info(status.name, status.version)
                for place, provider in enumerate(info.providers, 1):
                    places.add_metric([status.name, status.version, provider], place)
        return places


def _gauge(name: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, TEXTS[name], labels=labels)


def _number_metric(name: str, value: float) -> Metric:
    """Return the metric of a number, which is the store's where nothing else has it."""
    bare = name.removesuffix("_total")
    metric_name = f"quadriga_{bare}"
    if metric_name not in TEXTS:
        metric_name = f"quadriga_store_{bare}"
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return kind(metric_name, TEXTS[metric_name], value)


def _process_metrics(processes: Iterable[ProcessHealth]) -> Iterable[Metric]:
    restarts, hangs = (
        CounterMetricFamily(name, TEXTS[name], labels=["process"])
        for name in ("quadriga_process_restarts", "quadriga_process_hangs")
    )
    for process in processes:
        name = process.name.replace(" ", "-")
        restarts.add_metric([name], process.restarts)
        hangs.add_metric([name], process.hangs)
    yield from (restarts, hangs)


def _queue_metrics(statistics: Iterable[QueueStatistics]) -> Iterable[Metric]:
    waiting = _gauge("quadriga_requests_waiting", "model")
    running = _gauge("quadriga_requests_running", "model")
    expected = _gauge("quadriga_requests_expected_wait_seconds", "model")
    for queue in statistics:
        waiting.add_metric([queue.model], queue.waiting)
        running.add_metric([queue.model], queue.running)
        expected.add_metric([queue.model], queue.expected_wait_s)
    yield from (waiting, running, expected)
