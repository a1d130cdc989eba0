"""Prometheus metrics of a source of models."""

import time
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quadriga.engine.measures.metric_texts import TEXTS
from quadriga.extras.object_stores.source_watch import SourceStatus


class SourceMetrics(Collector):
    """Age of the last look at a source, and what could not be served of it.

    Args:
        status: Returns what is known of the source; None for a server without one.
        clock: Returns the time in seconds since 1970.
    """

    def __init__(
        self,
        status: Callable[[], SourceStatus] | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._status = status
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its current value; none without a source."""
        if self._status is None:
            return
        status = self._status()
        if status.seen_at:
            name = "quadriga_model_source_age_seconds"
            yield GaugeMetricFamily(name, TEXTS[name], max(self._clock() - status.seen_at, 0.0))
        name = "quadriga_model_source_failed_looks"
        yield CounterMetricFamily(name, TEXTS[name], status.failed_looks)
        name = "quadriga_model_source_unserved"
        yield GaugeMetricFamily(name, TEXTS[name], len(status.failures))
