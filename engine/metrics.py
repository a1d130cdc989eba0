"""Prometheus metrics, read from the counters that the workers maintain anyway."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from quadriga.proto.errors import ProtocolError
from quadriga.proto.messages import (
    Duration,
    ModelStatistics,
    ProcessHealth,
    QueueStatistics,
    Serving,
)

_LABELS = ("model", "version")
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Bounds of the buckets of the sizes of runs."""
_OF_REQUESTS = {
    "body_bytes": "Bytes of request bodies, and of answers over gRPC, that this worker holds.",
    "bodies_refused_total": "Requests refused as the bodies of all together were too large.",
    "bodies_late_total": "Requests refused as their bodies did not arrive in time.",
    "models_refused": "Versions of models that are refused as they ended their process too often.",
    "connections_refused_total": "Connections refused as there were too many.",
    "connections_displaced_total": "Idle connections, and gRPC calls without their message, ended as others needed their places.",
    "queries_waiting": "Searches of the store that wait for a thread of this worker.",
    "queries_refused_total": "Searches of the store refused as too many waited.",
    "jobs_waiting": "Submitted jobs that wait or run.",
    "audit_lines_total": "Lines written to the audit log.",
    "audit_lost_total": "Lines that the audit log could not take.",
    "audit_refusals_total": "Accesses refused with 401, 403 or 429.",
    "audit_failing": "Whether this worker cannot write the audit log, and so refuses changes.",
    "jobs_refused_total": "Jobs refused as too many waited.",
}
"""Help texts of the numbers that are not the store's."""


class PrometheusMetrics(Collector):
    """The state of a server, summed over all its workers, as metrics.

    `numbers` returns further numbers by name, without prefix; those that end in `_total` only rise.
    """

    def __init__(
        self, serving: Serving, server_version: str, numbers: Callable[[], Mapping[str, float]]
    ) -> None:
        self._serving = serving
        self._version = server_version
        self._numbers = numbers

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its current value."""
        build = GaugeMetricFamily(
            "quadriga_build_info", "The engine's version.", labels=["version"]
        )
        build.add_metric([self._version], 1)
        yield build
        ready = self._serving.unready_reason() is None
        yield GaugeMetricFamily("quadriga_ready", "Whether requests are answered.", float(ready))
        yield from _process_metrics(self._serving.health_report().processes)
        yield from _model_metrics(self._serving.statistics(None, None))
        yield self._providers()
        yield from _queue_metrics(self._serving.queue_statistics())
        for name, value in self._numbers().items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            if name in _OF_REQUESTS:
                yield kind(f"quadriga_{name}", _OF_REQUESTS[name], value)
            else:
                text = "Of the inference store; see the page on the store."
                yield kind(f"quadriga_store_{name}", text, value)

    def _providers(self) -> Metric:
        """Return which execution providers run each model that is ready, if they are not the default."""
        places = GaugeMetricFamily(
            "quadriga_model_providers",
            "Place of each execution provider of a model, from 1; none for the default.",
            labels=[*_LABELS, "provider"],
        )
        for status in self._serving.model_statuses():
            if status.state != "READY":
                continue
            with suppress(ProtocolError):  # it may be unloaded at this moment
                info = self._serving.model_info(status.name, status.version)
                for place, provider in enumerate(info.providers, 1):
                    places.add_metric([status.name, status.version, provider], place)
        return places


def _process_metrics(processes: Iterable[ProcessHealth]) -> Iterable[Metric]:
    restarts = CounterMetricFamily(
        "quadriga_process_restarts", "Processes started again.", labels=["process"]
    )
    hangs = CounterMetricFamily(
        "quadriga_process_hangs", "Processes killed as they hung.", labels=["process"]
    )
    for process in processes:
        name = process.name.replace(" ", "-")
        restarts.add_metric([name], process.restarts)
        hangs.add_metric([name], process.hangs)
    yield from (restarts, hangs)


def _model_metrics(statistics: Iterable[ModelStatistics]) -> Iterable[Metric]:
    images = CounterMetricFamily("quadriga_images", "Images, or rows of tensors.", labels=_LABELS)
    runs = CounterMetricFamily("quadriga_executions", "Runs of a model's graph.", labels=_LABELS)
    sizes = HistogramMetricFamily(
        "quadriga_batch_size", "Images, or rows, of each run of a model's graph.", labels=_LABELS
    )
    requests = SummaryMetricFamily(
        "quadriga_request_duration_seconds",
        "Requests, from their parsed body to their answer.",
        labels=[*_LABELS, "outcome"],
    )
    stages = SummaryMetricFamily(
        "quadriga_stage_duration_seconds",
        "Of requests that succeeded: waiting for a thread, preparing input, running, reading output.",
        labels=[*_LABELS, "stage"],
    )

    def add(
        family: SummaryMetricFamily, model: ModelStatistics, name: str, duration: Duration
    ) -> None:
        family.add_metric([model.name, model.version, name], duration.count, duration.ns / 1e9)

    for model in statistics:
        images.add_metric([model.name, model.version], model.inference_count)
        runs.add_metric([model.name, model.version], model.execution_count)
        _add_sizes(sizes, model)
        add(requests, model, "success", model.success)
        add(requests, model, "failure", model.fail)
        add(stages, model, "queue", model.queue)
        add(stages, model, "input", model.compute_input)
        add(stages, model, "infer", model.compute_infer)
        add(stages, model, "output", model.compute_output)
    yield from (images, runs, sizes, requests, stages)


def _add_sizes(sizes: HistogramMetricFamily, model: ModelStatistics) -> None:
    """Add the sizes of a model's runs, each bucket with those below it."""
    counts = {batch.batch_size: batch.compute_infer.count for batch in model.batches}
    buckets = [
        (str(bound), float(sum(count for size, count in counts.items() if size <= bound)))
        for bound in _BATCH_SIZES
    ]
    buckets.append(("+Inf", float(sum(counts.values()))))
    total = sum(size * count for size, count in counts.items())
    sizes.add_metric([model.name, model.version], buckets, total)


def _queue_metrics(statistics: Iterable[QueueStatistics]) -> Iterable[Metric]:
    waiting = GaugeMetricFamily(
        "quadriga_requests_waiting", "Requests that wait for a thread.", labels=["model"]
    )
    running = GaugeMetricFamily(
        "quadriga_requests_running", "Requests that run in a thread.", labels=["model"]
    )
    refused = CounterMetricFamily(
        "quadriga_requests_refused", "Requests refused on arrival.", labels=["model", "reason"]
    )
    stopped = CounterMetricFamily(
        "quadriga_requests_stopped",
        "Requests stopped before their answer.",
        labels=["model", "reason"],
    )
    for queue in statistics:
        waiting.add_metric([queue.model], queue.waiting)
        running.add_metric([queue.model], queue.running)
        for reason, count in queue.refused.items():
            refused.add_metric([queue.model, reason], count)
        for reason, count in queue.stopped.items():
            stopped.add_metric([queue.model, reason], count)
    yield from (waiting, running, refused, stopped)
