"""Prometheus metrics, read from the counters that the workers maintain anyway."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from quadriga.proto.messages import Duration, ModelStatistics, Serving

_LABELS = ("model", "version")


class PrometheusMetrics(Collector):
    """The state of a server, summed over all its workers, as metrics.

    `store` returns the store's numbers by name, without prefix; those that end in `_total` only rise.
    """

    def __init__(
        self, serving: Serving, server_version: str, store: Callable[[], Mapping[str, float]]
    ) -> None:
        self._serving = serving
        self._version = server_version
        self._store = store

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its current value."""
        build = GaugeMetricFamily(
            "quadriga_build_info", "The engine's version.", labels=["version"]
        )
        build.add_metric([self._version], 1)
        yield build
        ready = self._serving.unready_reason() is None
        yield GaugeMetricFamily("quadriga_ready", "Whether requests are answered.", float(ready))
        yield from _model_metrics(self._serving.statistics(None, None))
        for name, value in self._store().items():
            text = "Of the inference store; see the page on the store."
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(f"quadriga_store_{name}", text, value)


def _model_metrics(statistics: Iterable[ModelStatistics]) -> Iterable[Metric]:
    images = CounterMetricFamily("quadriga_images", "Images, or rows of tensors.", labels=_LABELS)
    runs = CounterMetricFamily("quadriga_executions", "Runs of a model's graph.", labels=_LABELS)
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
        add(requests, model, "success", model.success)
        add(requests, model, "failure", model.fail)
        add(stages, model, "queue", model.queue)
        add(stages, model, "input", model.compute_input)
        add(stages, model, "infer", model.compute_infer)
        add(stages, model, "output", model.compute_output)
    yield from (images, runs, requests, stages)
