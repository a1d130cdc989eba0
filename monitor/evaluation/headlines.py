"""Headlines of all weightings of the images, and the metrics with intervals that a report shows of them."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import finite_or_none
from quadriga.monitor.evaluation.evaluators import (
    EvaluationDetails,
    Headline,
    TaskMetrics,
)
from quadriga.monitor.evaluation.intervals import (
    MIN_OBJECTS,
    Interval,
    difference_interval,
    noise_interval,
    resampled_interval,
    share_interval,
)
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import UInt8Array

_WEIGHTS_AT_ONCE = 500_000
"""Maximum number of weights that are processed at once: bounds the memory."""

Weights = UInt8Array
"""How often each image counts in each weighting (B, I); below 256."""

CheckCancelled = Callable[[], None]
"""Called repeatedly during the work; may raise to end it."""

Withheld = dict[tuple[str, str], str]
"""Reasons why headlines of all images have no value, by type and parameters: those of a part have none either."""


def bootstrap_weights(images: int, *, resamples: int, seed: int) -> Weights:
    """Return how often each image counts (1 + B, I): once, then in B draws with replacement."""
    generator = np.random.default_rng(seed)
    weights = np.ones((1 + resamples, images), np.uint8)
    for row in weights[1:]:
        if images:
            row[:] = np.bincount(generator.integers(0, images, images), minlength=images)
    return weights


def headlines_of(
    task_metrics: TaskMetrics, weights: Weights, check_cancelled: CheckCancelled
) -> list[Headline]:
    """Compute the headlines of all weightings, in batches."""
    batch_size = max(1, _WEIGHTS_AT_ONCE // max(1, weights.shape[1]))
    batches = []
    for start in range(0, len(weights), batch_size):
        check_cancelled()
        batches.append(
            task_metrics.headlines(weights[start : start + batch_size].astype(np.float64))
        )
    return [_concatenated(batch) for batch in zip(*batches, strict=True)]


def _concatenated(batch: Sequence[Headline]) -> Headline:
    """Join a headline's values over batches of weightings."""
    noise = [headline.noise for headline in batch if headline.noise is not None]
    optimistic = [headline.optimistic for headline in batch if headline.optimistic is not None]
    return batch[0]._replace(
        values=np.concatenate([headline.values for headline in batch]),
        noise=np.concatenate(noise) if noise else None,
        optimistic=np.concatenate(optimistic) if optimistic else None,
    )


def headline_metrics(headlines: Sequence[Headline], n: int) -> list[Metric]:
    """Convert headlines to metrics; the first value is that of all images, the others are resamples."""
    return [_metric(headline, n, _interval(headline, n)) for headline in headlines]


def _metric(headline: Headline, n: int, interval: Interval) -> Metric:
    return Metric(
        headline.type,
        finite_or_none(headline.values[0]),
        headline.parameters,
        ci95=interval.bounds,
        n=n,
        ci_method=interval.method,
        ci_reason=headline.reason or interval.reason,
        reason=headline.reason,
    )


def _interval(headline: Headline, images: int) -> Interval:
    """Return the interval of a headline's first value; none without resamples."""
    values = headline.values
    if len(values) == 1:
        return Interval()
    if headline.is_share:
        return share_interval(float(values[0]), images)
    if headline.objects is not None and headline.objects < MIN_OBJECTS:
        return Interval(reason=f"fewer than {MIN_OBJECTS} objects")
    if headline.noise is not None:
        return noise_interval(values, headline.noise, images)
    interval, *optimistic = (
        resampled_interval(
            array,
            images,
            upper=headline.upper,
            trials_per_image=headline.trials_per_image,
            objects=headline.objects_of_one_label,
        )
        for array in (values, headline.optimistic)
        if array is not None
    )
    if not optimistic or interval.bounds is None or optimistic[0].bounds is None:
        return interval
    low, high = interval.bounds
    return interval._replace(bounds=(low, max(high, optimistic[0].bounds[1])))


def difference_metrics(differences: Sequence[Headline], n: int) -> list[Metric]:
    """Convert differences of headlines to metrics, as `headline_metrics`."""
    return [
        _metric(
            difference, n, difference_interval(difference.values, n, is_share=difference.is_share)
        )
        for difference in differences
    ]


def without_labels(headlines: Sequence[Headline]) -> list[Headline]:
    """Drop the headlines of single labels."""
    return [headline for headline in headlines if headline.parameters.get("label") is None]


def withheld_headlines(headlines: Sequence[Headline]) -> Withheld:
    """Return why headlines have no value, of those that have none for a reason."""
    return {
        (headline.type, str(headline.parameters)): headline.reason
        for headline in headlines
        if headline.reason
    }


def withhold(headlines: Sequence[Headline], withheld: Withheld) -> list[Headline]:
    """Return headlines without the values of those that are withheld."""
    return [
        headline._replace(values=np.full_like(headline.values, np.nan), noise=None, reason=reason)
        if (reason := withheld.get((headline.type, str(headline.parameters))))
        else headline
        for headline in headlines
    ]


def detailed_metrics(
    details: EvaluationDetails, headlines: Sequence[Headline], images: int
) -> list[Metric]:
    """Return the metrics of the details; per-label metrics get the intervals of their headlines."""
    intervals = {
        (headline.type, str(headline.parameters)): _interval(headline, images)
        for headline in headlines
        if headline.parameters.get("label") is not None
    }
    metrics = []
    for metric in details.metrics:
        interval = intervals.get((metric.type, str(metric.parameters)))
        if interval is not None:
            metric = msgspec.structs.replace(  # noqa: PLW2901 - the same metric with its interval
                metric,
                ci95=interval.bounds,
                ci_method=interval.method,
                ci_reason=interval.reason,
            )
        metrics.append(metric)
    return metrics
