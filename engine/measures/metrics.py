"""Prometheus metrics of the server: what its workers count, and what is so at this moment."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quadriga.engine.measures.metric_texts import TEXTS
from quadriga.engine.measures.model_metrics import request_metrics
from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.proto.errors import ProtocolError
from quadriga.proto.messages import ProcessHealth, QueueStatistics, Serving


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
