"""Builds the report of a merged state: headlines with intervals, slices, comparisons with other models."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from quadriga.monitor.evaluation.evaluators import (
    EvaluationDetails,
    Evaluator,
    Headline,
    TaskMetrics,
)
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationState,
    merge_states,
    nonzero_counts,
    select_images,
)
from quadriga.monitor.report.schema import (
    Comparison,
    Data,
    Metric,
    Report,
    ReportedModel,
    Slice,
    Window,
    Worst,
    provenance,
)
from quadriga.store.records import timestamp_text
from quadriga.tasks.arrays import Float64Array, UInt8Array

MAX_SLICES = 50
"""Maximum number of values reported per key, those with the most images."""

_MOST_WORST = 8
"""Maximum number of images shown per reason."""

_WEIGHTS_AT_ONCE = 500_000
"""Maximum number of weights that are processed at once: bounds the memory."""

Weights = UInt8Array
"""How often each image counts in each weighting (B, I); below 256."""

CheckCancelled = Callable[[], None]
"""Called repeatedly during the work; may raise to end it."""


class EvaluationOptions(NamedTuple):
    """Options of an evaluation."""

    resamples: int = 200
    """Number of resamples of the bootstrap; 0 for no intervals."""
    seed: int = 0


DEFAULT_OPTIONS = EvaluationOptions()
_NO_MODEL, _NO_WINDOW = ReportedModel(), Window()


def evaluate_state(
    evaluator: Evaluator,
    state: EvaluationState,
    *,
    task: str,
    model: ReportedModel = _NO_MODEL,
    window: Window = _NO_WINDOW,
    options: EvaluationOptions = DEFAULT_OPTIONS,
    other_models: Sequence[tuple[ReportedModel, EvaluationState]] = (),
    check_cancelled: CheckCancelled = lambda: None,
) -> Report:
    """Build the report of a merged state.

    Args:
        evaluator: Evaluator of the task.
        state: Merged state, as `merge_states` returns it.
        task: Full name of the task.
        model: Model of the predictions.
        window: The images that were selected; `n` is filled in here.
        options: See `EvaluationOptions`.
        other_models: Models to compare on the images that both have predictions for.
        check_cancelled: See `CheckCancelled`.
    """
    started_s = time.monotonic()
    task_metrics = evaluator.evaluate(state)
    weights = bootstrap_weights(len(state.ids), options)
    headlines = _headlines(task_metrics, weights, check_cancelled)
    details = task_metrics.details()
    metrics = [*_metrics(_overall(headlines), len(state.ids)), *_with_intervals(details, headlines)]
    comparisons = [
        _compared(evaluator, state, *compared, options=options, check_cancelled=check_cancelled)
        for compared in other_models
    ]
    return Report(
        kind="evaluation",
        task=task,
        created=timestamp_text(time.time_ns() // 1_000_000),
        status="ok" if state.ids else "insufficient",
        model=model,
        data=Data(
            msgspec.structs.replace(window, n=len(state.ids)),
            excluded=state.excluded | details.excluded,
        ),
        parameters={**details.parameters, "resamples": options.resamples, "seed": options.seed},
        metrics=metrics,
        curves=details.curves,
        confusion=details.confusion,
        confusion_pixels=details.confusion_pixels,
        errors_tide=details.errors_tide,
        slices=_slices(evaluator, state, weights, check_cancelled),
        worst=_worst(state, details.badness),
        comparisons=comparisons,
        provenance=provenance(started_s),
    )


def bootstrap_weights(images: int, options: EvaluationOptions) -> Weights:
    """Return how often each image counts (1 + B, I): once, then in B draws with replacement."""
    generator = np.random.default_rng(options.seed)
    weights = np.ones((1 + options.resamples, images), np.uint8)
    for row in weights[1:]:
        if images:
            row[:] = np.bincount(generator.integers(0, images, images), minlength=images)
    return weights


def _headlines(
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
    return [
        batch[0]._replace(values=np.concatenate([headline.values for headline in batch]))
        for batch in zip(*batches, strict=True)
    ]


def _metrics(headlines: Sequence[Headline], n: int) -> list[Metric]:
    """Convert headlines to metrics; the first value is that of all images, the others are resamples."""
    return [
        Metric(
            headline.type,
            finite_or_none(headline.values[0]),
            headline.parameters,
            ci95=confidence_interval(headline.values),
            n=n,
        )
        for headline in headlines
    ]


def _overall(headlines: Sequence[Headline]) -> list[Headline]:
    """Drop the headlines of single labels."""
    return [headline for headline in headlines if headline.parameters.get("label") is None]


def _with_intervals(details: EvaluationDetails, headlines: Sequence[Headline]) -> list[Metric]:
    """Return the metrics of the details; per-label metrics get the intervals of their headlines."""
    intervals = {
        (metric.type, str(metric.parameters)): confidence_interval(metric.values)
        for metric in headlines
        if metric.parameters.get("label") is not None
    }
    return [
        msgspec.structs.replace(
            metric, ci95=intervals.get((metric.type, str(metric.parameters)), metric.ci95)
        )
        for metric in details.metrics
    ]


def finite_or_none(value: float) -> float | None:
    """Return a number for a report: None if it is not finite."""
    return float(value) if np.isfinite(value) else None


def confidence_interval(values: Float64Array) -> tuple[float | None, float | None] | None:
    """Return the 95 % percentile interval of a bootstrap, widened to contain the metric itself.

    Resampling is biased upwards for some metrics (calibration errors, average precision of many labels): at times
    all resamples are above the metric. `values` is (1 + B,): the metric, then its resamples.
    """
    resampled = values[1:][np.isfinite(values[1:])]
    if not resampled.size:
        return None
    low, high = np.percentile(resampled, [2.5, 97.5])
    return float(np.fmin(low, values[0])), float(np.fmax(high, values[0]))


def _slices(
    evaluator: Evaluator, state: EvaluationState, weights: Weights, check_cancelled: CheckCancelled
) -> list[Slice]:
    slices = []
    for key, values in state.slices.items():
        counts = Counter(values)
        common = sorted(counts, key=lambda value: (-counts[value], value is None, value or ""))
        for value in common[:MAX_SLICES]:
            indices = [index for index, other_value in enumerate(values) if other_value == value]
            task_metrics = evaluator.evaluate(select_images(state, indices))
            headlines = _overall(_headlines(task_metrics, weights[:, indices], check_cancelled))
            slices.append(Slice(key, value, len(indices), _metrics(headlines, len(indices))))
    return slices


def _worst(state: EvaluationState, badness: dict[str, Float64Array]) -> list[Worst]:
    worst = []
    for reason, scores in badness.items():
        order = np.argsort(-scores, kind="stable")[:_MOST_WORST]
        for index in order[scores[order] > 0]:
            width, height = (int(side) or None for side in state.sizes[index])
            worst.append(
                Worst(
                    inference_id=state.ids[index],
                    reason=reason,
                    score=float(scores[index]),
                    image=state.images[index],
                    width=width,
                    height=height,
                )
            )
    return worst


def with_image_items(report: Report, images: Iterable[EvaluatedImage]) -> Report:
    """Add predictions and ground truth, which are drawn, to the worst images of a report, if `images` has them."""
    shown_ids = {image.inference_id for image in report.worst}
    items_by_id = {
        image.id: (image.predictions, image.ground_truth)
        for image in images
        if image.id in shown_ids
    }
    worst = []
    for image in report.worst:
        predictions, ground_truth = items_by_id.get(
            image.inference_id, (image.predictions, image.ground_truth)
        )
        worst.append(
            msgspec.structs.replace(image, predictions=predictions, ground_truth=ground_truth)
        )
    return msgspec.structs.replace(report, worst=worst)


def _compared(
    evaluator: Evaluator,
    state: EvaluationState,
    model: ReportedModel,
    other: EvaluationState,
    *,
    options: EvaluationOptions,
    check_cancelled: CheckCancelled,
) -> Comparison:
    """Compare two models on the images that both have predictions for, with the same resamples."""
    own_index = {image: index for index, image in enumerate(state.images)}
    other_index = {image: index for index, image in enumerate(other.images)}
    shared = own_index.keys() & other_index.keys()
    own_state = select_images(state, sorted(own_index[image] for image in shared))
    other_state = select_images(other, sorted(other_index[image] for image in shared))
    # Both states list the images in the same order, because the order decides between equal scores.
    other_state = merge_states(
        [other_state._replace(ids=[state.ids[own_index[image]] for image in other_state.images])]
    )
    weights = bootstrap_weights(len(shared), options)
    own_headlines, other_headlines = (
        _overall(_headlines(evaluator.evaluate(compared_state), weights, check_cancelled))
        for compared_state in (own_state, other_state)
    )
    differences = [  # multi-label models have other headlines than single-label models
        own._replace(values=own.values - other_headline.values)
        for other_headline in other_headlines
        for own in own_headlines
        if own[:2] == other_headline[:2]
    ]
    excluded = Counter(
        not_answered=len(own_index) - len(shared),
        duplicate=len(state.images) - len(own_index) + len(other.images) - len(other_index),
    )
    excluded.update(other.excluded)
    return Comparison(
        model,
        len(shared),
        _metrics(other_headlines, len(shared)),
        differences=_metrics(differences, len(shared)),
        excluded=nonzero_counts(**excluded),
    )
