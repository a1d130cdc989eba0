"""Metrics of requests and models, from the counts that the processes share."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
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
from quadriga.engine.measures.shared_counts import ENDS, RowTotals

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
