"""From a whole state to a report: headlines with their intervals, slices, another model beside."""

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
"""Values of one key, those with the most images first; the rest is not shown."""

_MOST_WORST = 8
"""Images shown of each reason."""

_WEIGHTS_AT_ONCE = 500_000
"""Weights of images that an evaluation is handed in one step."""

Weights = UInt8Array
"""(B, I) how often each image counts in each weighting; never 256 times."""

CheckCancelled = Callable[[], None]
"""Is called again and again; may raise to end the work."""


class EvaluationOptions(NamedTuple):
    """What is to be computed."""

    resamples: int = 200
    """Of the bootstrap; 0 for no intervals."""
    seed: int = 0


DEFAULT_OPTIONS = EvaluationOptions()
_NO_MODEL, _NO_WINDOW = ReportedModel(), Window()


def evaluate_state(
    evaluation: Evaluator,
    state: EvaluationState,
    *,
    task: str,
    model: ReportedModel = _NO_MODEL,
    window: Window = _NO_WINDOW,
    asked: EvaluationOptions = DEFAULT_OPTIONS,
    others: Sequence[tuple[ReportedModel, EvaluationState]] = (),
    step: CheckCancelled = lambda: None,
) -> Report:
    """Write the report of a whole state.

    Args:
        evaluation: Of the task.
        state: As `merge` returns it.
        task: Its full name.
        model: That answered.
        window: What was looked at; its `n` is filled in.
        asked: See `Asked`.
        others: Other models, that are compared on the images that both answered.
        step: See `Step`.
    """
    started = time.monotonic()
    evaluated = evaluation.evaluate(state)
    weights = bootstrap_weights(len(state.ids), asked)
    found = _headlines(evaluated, weights, step)
    findings = evaluated.details()
    metrics = [*_metrics(_overall(found), len(state.ids)), *_with_intervals(findings, found)]
    comparisons = [_compared(evaluation, state, *other, asked=asked, step=step) for other in others]
    return Report(
        kind="evaluation",
        task=task,
        created=timestamp_text(time.time_ns() // 1_000_000),
        status="ok" if state.ids else "insufficient",
        model=model,
        data=Data(
            msgspec.structs.replace(window, n=len(state.ids)),
            excluded=state.excluded | findings.excluded,
        ),
        parameters={**findings.parameters, "resamples": asked.resamples, "seed": asked.seed},
        metrics=metrics,
        curves=findings.curves,
        confusion=findings.confusion,
        confusion_pixels=findings.confusion_pixels,
        errors_tide=findings.errors_tide,
        slices=_slices(evaluation, state, weights, step),
        worst=_worst(state, findings.badness),
        comparisons=comparisons,
        provenance=provenance(started),
    )


def bootstrap_weights(images: int, asked: EvaluationOptions) -> Weights:
    """Return how often each image counts (1 + B, I): once, then as drawing with replacement has it."""
    source = np.random.default_rng(asked.seed)
    weights = np.ones((1 + asked.resamples, images), np.uint8)
    for row in weights[1:]:
        if images:
            row[:] = np.bincount(source.integers(0, images, images), minlength=images)
    return weights


def _headlines(evaluated: TaskMetrics, weights: Weights, step: CheckCancelled) -> list[Headline]:
    """Return the headlines of all weightings, which are computed some at a time."""
    at_once = max(1, _WEIGHTS_AT_ONCE // max(1, weights.shape[1]))
    parts = []
    for first in range(0, len(weights), at_once):
        step()
        parts.append(evaluated.headlines(weights[first : first + at_once].astype(np.float64)))
    return [
        some[0]._replace(values=np.concatenate([one.values for one in some]))
        for some in zip(*parts, strict=True)
    ]


def _metrics(headlines: Sequence[Headline], n: int) -> list[Metric]:
    """Return headlines whose first values are those of the whole, the others a bootstrap's."""
    return [
        Metric(
            one.type,
            finite_or_none(one.values[0]),
            one.parameters,
            confidence_interval(one.values),
            n,
        )
        for one in headlines
    ]


def _overall(headlines: Sequence[Headline]) -> list[Headline]:
    """Leave out the headlines of single labels."""
    return [one for one in headlines if one.parameters.get("label") is None]


def _with_intervals(findings: EvaluationDetails, headlines: Sequence[Headline]) -> list[Metric]:
    """Return the findings' metrics, those of labels with the intervals of their headlines."""
    intervals = {
        (one.type, str(one.parameters)): confidence_interval(one.values)
        for one in headlines
        if one.parameters.get("label") is not None
    }
    return [
        msgspec.structs.replace(one, ci95=intervals.get((one.type, str(one.parameters)), one.ci95))
        for one in findings.metrics
    ]


def finite_or_none(value: float) -> float | None:
    """Return a number as a report has it: None where it is undefined."""
    return float(value) if np.isfinite(value) else None


def confidence_interval(values: Float64Array) -> tuple[float | None, float | None] | None:
    """Return the middle 95 % of what a bootstrap gave, wide enough to hold the number itself.

    Drawing images again lifts some numbers (calibration errors, average precision of many labels), at times
    all of their resamples. The values are (1 + B,) the number, then those of the resamples.
    """
    known = values[1:][np.isfinite(values[1:])]
    if not known.size:
        return None
    low, high = np.percentile(known, [2.5, 97.5])
    return float(np.fmin(low, values[0])), float(np.fmax(high, values[0]))


def _slices(
    evaluation: Evaluator, state: EvaluationState, weights: Weights, step: CheckCancelled
) -> list[Slice]:
    slices = []
    for by, values in state.slices.items():
        counts = Counter(values)
        common = sorted(counts, key=lambda value: (-counts[value], value is None, value or ""))
        for value in common[:MAX_SLICES]:
            inside = [at for at, one in enumerate(values) if one == value]
            evaluated = evaluation.evaluate(select_images(state, inside))
            found = _overall(_headlines(evaluated, weights[:, inside], step))
            slices.append(Slice(by, value, len(inside), _metrics(found, len(inside))))
    return slices


def _worst(state: EvaluationState, badness: dict[str, Float64Array]) -> list[Worst]:
    found = []
    for reason, scores in badness.items():
        order = np.argsort(-scores, kind="stable")[:_MOST_WORST]
        for at in order[scores[order] > 0]:
            width, height = (int(side) or None for side in state.sizes[at])
            found.append(
                Worst(state.ids[at], reason, float(scores[at]), state.images[at], width, height)
            )
    return found


def with_image_items(report: Report, images: Iterable[EvaluatedImage]) -> Report:
    """Give the worst images of a report what is drawn on them, from those of `images` that they are."""
    shown = {one.inference_id for one in report.worst}
    known = {one.id: (one.predictions, one.ground_truth) for one in images if one.id in shown}
    worst = []
    for one in report.worst:
        predictions, truth = known.get(one.inference_id, (one.predictions, one.ground_truth))
        worst.append(msgspec.structs.replace(one, predictions=predictions, ground_truth=truth))
    return msgspec.structs.replace(report, worst=worst)


def _compared(
    evaluation: Evaluator,
    state: EvaluationState,
    model: ReportedModel,
    other: EvaluationState,
    *,
    asked: EvaluationOptions,
    step: CheckCancelled,
) -> Comparison:
    """Compare on the images that both answered, resampled alike."""
    ours = {image: at for at, image in enumerate(state.images)}
    theirs = {image: at for at, image in enumerate(other.images)}
    both = ours.keys() & theirs.keys()
    mine = select_images(state, sorted(ours[image] for image in both))
    its = select_images(other, sorted(theirs[image] for image in both))
    # In the same order, which decides between equal scores.
    its = merge_states([its._replace(ids=[state.ids[ours[image]] for image in its.images])])
    weights = bootstrap_weights(len(both), asked)
    found, theirs_found = (
        _overall(_headlines(evaluation.evaluate(part), weights, step)) for part in (mine, its)
    )
    differences = [  # a model that gives several labels an image has other headlines
        one._replace(values=one.values - another.values)
        for another in theirs_found
        for one in found
        if one[:2] == another[:2]
    ]
    excluded = Counter(
        not_answered=len(ours) - len(both),
        duplicate=len(state.images) - len(ours) + len(other.images) - len(theirs),
    )
    excluded.update(other.excluded)
    return Comparison(
        model,
        len(both),
        _metrics(theirs_found, len(both)),
        _metrics(differences, len(both)),
        nonzero_counts(**excluded),
    )
