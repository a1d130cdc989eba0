"""From a whole state to a report: headlines with their intervals, slices, another model beside."""

import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec
import numpy as np

from monitor.evaluation.evaluators import Evaluated, Evaluator, Headline
from monitor.evaluation.matching import Doubles
from monitor.evaluation.state import EvaluatedImage, State, select
from monitor.report import (
    Comparison,
    Data,
    Metric,
    Report,
    ReportedModel,
    Slice,
    Window,
    Worst,
)
from store.records import timestamp_text

MOST_SLICES = 50
"""Values of one key, those with the most images first; the rest is not shown."""

_WORST = 8
"""Images shown of each reason."""


class Asked(NamedTuple):
    """What is to be computed."""

    resamples: int = 200
    """Of the bootstrap; 0 for no intervals."""
    seed: int = 0
    worst: int = _WORST


def evaluate(
    evaluation: Evaluator,
    state: State,
    *,
    task: str,
    model: ReportedModel,
    window: Window,
    asked: Asked = Asked(),  # noqa: B008 - it is immutable
    others: Sequence[tuple[ReportedModel, State]] = (),
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
    """
    started = time.monotonic()
    evaluated = evaluation.evaluate(state)
    weights = resampled(len(state.ids), asked)
    metrics = _with_intervals(evaluated, weights, None)
    findings = evaluated.findings()
    comparisons = [_compared(evaluation, state, *other, asked) for other in others]
    return Report(
        kind="evaluation",
        task=task,
        created=timestamp_text(time.time_ns() // 1_000_000),
        status="ok" if state.ids else "insufficient",
        model=model,
        data=Data(
            Window(window.start, window.end, len(state.ids), None, window.filter),
            excluded=state.excluded | findings.excluded,
        ),
        parameters={
            **findings.parameters,
            "resamples": asked.resamples,
            "seed": asked.seed,
        },
        metrics=[*metrics, *findings.metrics],
        curves=findings.curves,
        confusion=findings.confusion,
        confusion_pixels=findings.confusion_pixels,
        errors_tide=findings.errors_tide,
        slices=_slices(evaluated, state, weights),
        worst=_worst(state, findings.badness, asked.worst),
        comparisons=comparisons,
        provenance={
            "code": version("quadriga"),
            "libs": {name: version(name) for name in ("numpy", "scipy")},
            "duration_s": round(time.monotonic() - started, 3),
        },
    )


def resampled(images: int, asked: Asked) -> Doubles:
    """Draw how often each image counts in each resample (B, I), as drawing with replacement does."""
    source = np.random.default_rng(asked.seed)
    shape = asked.resamples, images
    if not images or not asked.resamples:
        return np.zeros(shape)
    return np.stack(
        [
            np.bincount(source.integers(0, images, images), minlength=images)
            for _ in range(asked.resamples)
        ]
    ).astype(np.float64)


def _with_intervals(evaluated: Evaluated, weights: Doubles, mask: Doubles | None) -> list[Metric]:
    """Return the headlines over the images of a mask, all without one."""
    images = weights.shape[1]
    mask = np.ones(images) if mask is None else mask
    whole = evaluated.headlines(mask[None])
    drawn = evaluated.headlines(weights * mask) if len(weights) else []
    intervals = [interval(one.values) for one in drawn] or [None] * len(whole)
    n = int(np.count_nonzero(mask))
    return [
        Metric(one.type, number(one.values[0]), one.parameters, found, n)
        for one, found in zip(whole, intervals, strict=True)
    ]


def number(value: float) -> float | None:
    """Return a number as a report has it: None where it is undefined."""
    return float(value) if np.isfinite(value) else None


def interval(values: Doubles) -> tuple[float | None, float | None] | None:
    """Return the middle 95 % of what a bootstrap gave."""
    known = values[np.isfinite(values)]
    if not known.size:
        return None
    low, high = np.percentile(known, [2.5, 97.5])
    return float(low), float(high)


def _slices(evaluated: Evaluated, state: State, weights: Doubles) -> list[Slice]:
    slices = []
    for by, values in state.slices.items():
        counts: dict[str | None, int] = {}
        for value in values:
            counts[value] = counts.get(value, 0) + 1
        common = sorted(counts, key=lambda value: (-counts[value], value is None, value or ""))
        for value in common[:MOST_SLICES]:
            mask = np.array([one == value for one in values], np.float64)
            metrics = _with_intervals(evaluated, weights, mask)
            slices.append(Slice(by, value, counts[value], metrics))
    return slices


def _worst(state: State, badness: dict[str, Doubles], most: int) -> list[Worst]:
    found = []
    for reason, scores in badness.items():
        order = np.argsort(-scores, kind="stable")[:most]
        for at in order[scores[order] > 0]:
            width, height = (int(side) or None for side in state.sizes[at])
            found.append(
                Worst(state.ids[at], reason, float(scores[at]), state.images[at], width, height)
            )
    return found


def with_pictures(report: Report, images: Sequence[EvaluatedImage]) -> Report:
    """Give the worst images of a report what is drawn on them, from those of `images` that they are."""
    by_id = {image.id: image for image in images}
    worst = [
        msgspec.structs.replace(one, predictions=image.predictions, ground_truth=image.ground_truth)
        if (image := by_id.get(one.inference_id)) is not None
        else one
        for one in report.worst
    ]
    return msgspec.structs.replace(report, worst=worst)


def _compared(
    evaluation: Evaluator, state: State, model: ReportedModel, other: State, asked: Asked
) -> Comparison:
    """Compare on the images that both answered, resampled alike."""
    ours = {image: at for at, image in enumerate(state.images)}
    theirs = {image: at for at, image in enumerate(other.images)}
    both = [image for image in ours if image in theirs]
    parts = [
        select(one, sorted(places[image] for image in both))
        for one, places in ((state, ours), (other, theirs))
    ]
    weights = np.concatenate([np.ones((1, len(both))), resampled(len(both), asked)])
    at = {image: number for number, image in enumerate(both)}
    found: list[list[Headline]] = [
        evaluation.evaluate(part).headlines(weights[:, [at[image] for image in part.images]])
        for part in parts
    ]
    metrics, differences = [], []
    for its in found[1]:
        mine = next((one for one in found[0] if one[:2] == its[:2]), None)
        metrics.append(_metric(its, its.values, len(both)))
        if mine is not None:  # a set may have one label an image for one model, several for another
            differences.append(_metric(its, mine.values - its.values, len(both)))
    return Comparison(model, len(both), metrics, differences)


def _metric(headline: Headline, values: Doubles, n: int) -> Metric:
    parameters: dict[str, Any] = headline.parameters
    return Metric(headline.type, number(values[0]), parameters, interval(values[1:]), n)
