"""Builds the report of a merged state: headlines with intervals, slices, comparisons with other models."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import finite_or_none
from quadriga.monitor.evaluation.evaluators import (
    EvaluationDetails,
    Evaluator,
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
from quadriga.monitor.evaluation.metric_settings import DEFAULT_SETTINGS, MetricSettings
from quadriga.monitor.evaluation.state import (
    MAX_NAMED,
    EvaluatedImage,
    EvaluationState,
    merge_states,
    nonzero_counts,
    select_images,
    with_one_label,
)
from quadriga.monitor.report.cells import PairedLabels
from quadriga.monitor.report.metric_texts import excluded_text
from quadriga.monitor.report.schema import (
    ComparedSlice,
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
from quadriga.quoting import listed, near_names, quoted
from quadriga.store.records.records import now_text
from quadriga.tasks.arrays import Float64Array, UInt8Array

_WEIGHTS_AT_ONCE = 500_000
"""Maximum number of weights that are processed at once: bounds the memory."""

Weights = UInt8Array
"""How often each image counts in each weighting (B, I); below 256."""

CheckCancelled = Callable[[], None]
"""Called repeatedly during the work; may raise to end it."""

Withheld = dict[tuple[str, str], str]
"""Reasons why headlines of all images have no value, by type and parameters: those of a part have none either."""


HeadlinesAt = Callable[[EvaluationState, Sequence[int], Weights], list[Headline]]
"""Computes the headlines of the images of a state at some positions, without those of single labels."""


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
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(headline, name) for headline in batch])
        for name in ("values", "noise", "optimistic")
        if getattr(batch[0], name) is not None
    }
    return batch[0]._replace(**arrays)


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
    return [
        msgspec.structs.replace(
            metric, ci95=interval.bounds, ci_method=interval.method, ci_reason=interval.reason
        )
        if (interval := intervals.get((metric.type, str(metric.parameters))))
        else metric
        for metric in details.metrics
    ]


MAX_SLICES = 50
"""Maximum number of values reported per key, those with the most images."""

_MAX_UNKNOWN = 10
"""Maximum number of labels that a warning names."""

_SAID_EXCLUSIONS = (
    "no_truth", "truth_rejected", "unreadable", "unlisted_annotation", "failed", "deleted",
)  # fmt: skip
"""Reasons why images or annotations do not count that a warning names; those left out have warnings of their own."""

_MOST_WORST = 8
"""Maximum number of images shown per reason."""

OnPairs = Callable[[EvaluationState, PairedLabels], None]
"""Called with the state that was evaluated and the pairs of its confusion matrix, if there is one."""


class EvaluationOptions(NamedTuple):
    """Options of an evaluation."""

    resamples: int = 200
    """Number of resamples of the bootstrap; 0 for no intervals."""
    seed: int = 0
    metrics: MetricSettings = DEFAULT_SETTINGS


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
    on_pairs: OnPairs = lambda *_: None,
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
        on_pairs: See `OnPairs`.
    """
    started_s = time.monotonic()
    chosen, odd_images = options.metrics.chosen, ""
    if options.metrics.single_label:
        state, odd_images = with_one_label(state)
    task_metrics = evaluator.evaluate(state, options.metrics)
    weights = bootstrap_weights(len(state.ids), resamples=options.resamples, seed=options.seed)
    headlines = headlines_of(task_metrics, weights, check_cancelled)
    details = task_metrics.details()
    if details.pairs is not None:
        on_pairs(state, details.pairs)
    if (is_multi := details.parameters.get("multi_label")) is not None:
        # Slices and other models are judged as the whole is, or their numbers could not be compared.
        judged = msgspec.structs.replace(options.metrics, single_label=not is_multi)
        options = options._replace(metrics=judged)
        if not is_multi:
            other_models = [(other, with_one_label(answers)[0]) for other, answers in other_models]
    metrics = [
        *headline_metrics(without_labels(headlines), len(state.ids)),
        *detailed_metrics(details, headlines, len(state.ids)),
    ]
    withheld = withheld_headlines(headlines)

    def headlines_at(
        part: EvaluationState, positions: Sequence[int], weights: Weights
    ) -> list[Headline]:
        part_metrics = evaluator.evaluate(select_images(part, positions), options.metrics)
        return without_labels(headlines_of(part_metrics, weights[:, positions], check_cancelled))

    comparisons = []
    for other, answers in other_models:
        states = _on_shared_images(state, answers)
        shared = len(states[0].ids)
        comparison = _compared(
            headlines_at,
            other,
            states,
            weights=bootstrap_weights(shared, resamples=options.resamples, seed=options.seed),
            own_withheld=withheld,
        )
        excluded = _not_shared(state, answers, shared)
        comparisons.append(msgspec.structs.replace(comparison, excluded=excluded))
    return Report(
        kind="evaluation",
        task=task,
        created=now_text(),
        status="ok" if state.ids else "insufficient",
        model=model,
        warnings=[
            *_truth_warnings(state, details, odd_images),
            *_missing_value_warnings(metrics, comparisons),
            *details.warnings,
        ],
        data=Data(
            msgspec.structs.replace(window, n=len(state.ids)),
            excluded=state.excluded | details.excluded,
        ),
        parameters={
            **details.parameters,
            **chosen,
            "resamples": options.resamples,
            "seed": options.seed,
        },
        metrics=metrics,
        curves=details.curves,
        confusion=details.confusion,
        confusion_pixels=details.confusion_pixels,
        errors_tide=details.errors_tide,
        slices=_slices(headlines_at, state, weights, withheld),
        worst=_worst(state, details.badness),
        comparisons=comparisons,
        provenance=provenance(started_s),
    )


def _truth_warnings(
    state: EvaluationState, details: EvaluationDetails, odd_images: str
) -> list[str]:
    """Say which images or labels bear on every number: those that do not count, or cannot be right."""
    counts = {reason: state.excluded.get(reason, 0) for reason in _SAID_EXCLUSIONS}
    not_counted = ", ".join(f"{count} {text}" for count, text in excluded_text(counts))
    warnings = [f"not evaluated: {not_counted}"] if not_counted else []
    if odd_images:
        warnings.append(f"left out by single_label: {odd_images}")
    if not state.ids:
        missing = (
            "no image has one true label"
            if odd_images
            else "no image has ground truth for this task: state it, or choose images that have it, and evaluate again"
        )
        return [missing, *warnings]
    predictions, truths = (state.tables.get(name, {}) for name in ("predictions", "truths"))
    if "label" not in predictions or "label" not in truths:
        return warnings
    unanswered = sorted({*truths["image"].tolist()} - {*predictions["image"].tolist()})
    if not len(predictions["label"]):
        return [*warnings, *["no image has any prediction"] * bool(len(truths["label"]))]
    if unanswered and "multi_label" in details.parameters:
        ids = listed([f"{state.ids[position]:.40}" for position in unanswered], MAX_NAMED)
        warnings.append(f"{len(unanswered):,} images have no prediction and count as wrong: {ids}")
    return [
        *_unknown_label_warnings(state, names_all_labels=details.names_all_labels),
        *warnings,
    ]


def _missing_value_warnings(
    metrics: Sequence[Metric], comparisons: Sequence[Comparison]
) -> Iterator[str]:
    """Yield a warning for each reason why metrics of all labels have no value, with their names."""
    yield from _missing_of(metrics)
    for comparison in comparisons:
        name = f"{comparison.model.name} {comparison.model.version}".strip()
        yield from (f"{name}: {text}" for text in _missing_of(comparison.metrics))


def _missing_of(metrics: Sequence[Metric]) -> Iterator[str]:
    names_by_reason: dict[str, list[str]] = {}
    for metric in metrics:
        if metric.reason and metric.parameters.get("label") is None:
            k = metric.parameters.get("k")
            name = metric.type if k is None else f"{metric.type} of k = {k}"
            names_by_reason.setdefault(metric.reason, []).append(name)
    for reason, names in names_by_reason.items():
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        yield f"{listed} {'has' if len(names) == 1 else 'have'} no value: {reason}"


def _unknown_label_warnings(state: EvaluationState, *, names_all_labels: bool) -> list[str]:
    """Say which labels of the ground truth no prediction has, with their numbers of images and what may be meant."""
    predictions, truths = state.tables["predictions"], state.tables["truths"]
    counts: Counter[int] = Counter()
    for _, label in {*zip(truths["image"].tolist(), truths["label"].tolist(), strict=True)}:
        counts[label] += 1
    true = {*counts}
    predicted = {*predictions["label"].tolist()}
    for label in predicted:
        del counts[label]
    if not counts:
        return []

    # A label that the truth has, too, is another one unless they differ in case or spaces alone.
    known = {state.labels[label]: label in true for label in predicted}
    spellings = {label: _spelling(label) for label in known}

    def describe(label: str, count: int) -> str:
        names = [name for name in known if not known[name] or spellings[name] == _spelling(label)]
        near = near_names(label, names, 1)
        hint = f"; predictions have {quoted(near[0], 40)}" if near else ""
        return f"{label:.40} ({count:,} image{'s' * (count != 1)}{hint})"

    texts = [
        describe(state.labels[label], count) if position < _MAX_UNKNOWN else ""
        for position, (label, count) in enumerate(sorted(counts.items()))
    ]
    noun = f"label{'s' * (len(counts) != 1)}"
    reason = (
        "not known to the model"
        if names_all_labels
        else "of the ground truth that no prediction has"
    )
    return [f"{noun} {reason}: {listed(texts, _MAX_UNKNOWN)}"]


def _spelling(label: str) -> str:
    """Return the letters and digits of a label, by which labels that differ in case or spaces are alike."""
    return "".join(filter(str.isalnum, label.casefold()))


def _slices(
    headlines_at: HeadlinesAt, state: EvaluationState, weights: Weights, withheld: Withheld
) -> list[Slice]:
    slices = []
    for key, value, positions in _slice_positions(state):
        headlines = withhold(headlines_at(state, positions, weights), withheld)
        metrics = headline_metrics(headlines, len(positions))
        slices.append(Slice(key, value, len(positions), metrics))
    return slices


def _slice_positions(state: EvaluationState) -> Iterator[tuple[str, str | None, list[int]]]:
    """Yield key, value and the positions of the images of each slice, those with the most images first."""
    for key, values in state.slices.items():
        counts = Counter(values)
        common = sorted(counts, key=lambda value: (-counts[value], value is None, value or ""))
        for value in common[:MAX_SLICES]:
            yield key, value, [index for index, other in enumerate(values) if other == value]


def _worst(state: EvaluationState, badness: dict[str, Float64Array]) -> list[Worst]:
    """Return the worst images by each reason, each image once: of several inferences on it, the worst."""
    worst = []
    for reason, scores in badness.items():
        order = np.argsort(-scores, kind="stable")
        indices: dict[str, int] = {}
        for index in order[: np.count_nonzero(scores > 0)].tolist():
            indices.setdefault(state.images[index], index)
            if len(indices) == _MOST_WORST:
                break
        for index in indices.values():
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
    """Add times, and predictions and ground truth, which are drawn, to the worst images of a report, if `images` has them."""
    shown_ids = {image.inference_id for image in report.worst}
    images_by_id = {image.id: image for image in images if image.id in shown_ids}
    worst = [
        msgspec.structs.replace(
            shown,
            predictions=image.predictions,
            ground_truth=image.ground_truth,
            created_at=image.created_at,
        )
        if (image := images_by_id.get(shown.inference_id))
        else shown
        for shown in report.worst
    ]
    return msgspec.structs.replace(report, worst=worst)


def _compared(
    headlines_at: HeadlinesAt,
    model: ReportedModel,
    states: tuple[EvaluationState, EvaluationState],
    *,
    weights: Weights,
    own_withheld: Withheld,
) -> Comparison:
    """Compare two models on the images that both have predictions for, with the same resamples."""

    def compare(
        positions: Sequence[int], withheld: tuple[Withheld, Withheld]
    ) -> tuple[list[Headline], list[Headline]]:
        """Return the headlines of the other model on some images, and those of this model less the other's."""
        own_headlines, other_headlines = (headlines_at(s, positions, weights) for s in states)
        differences = [  # multi-label models have other headlines than single-label models
            own._replace(values=own.values - other.values, reason=own.reason or other.reason)
            for other in other_headlines
            for own in own_headlines
            if own[:2] == other[:2]
        ]
        return withhold(other_headlines, withheld[0]), withhold(differences, withheld[1])

    n = len(states[0].ids)
    other_headlines, differences = compare(range(n), ({}, own_withheld))
    withheld = withheld_headlines(other_headlines), withheld_headlines(differences)
    slices = []
    for key, value, positions in _slice_positions(states[0]):
        headlines, slice_differences = compare(positions, withheld)
        slices.append(
            ComparedSlice(
                key,
                value,
                len(positions),
                difference_metrics(slice_differences, len(positions)),
                headline_metrics(headlines, len(positions)),
            )
        )
    return Comparison(
        model,
        n,
        headline_metrics(other_headlines, n),
        differences=difference_metrics(differences, n),
        slices=slices,
    )


def _not_shared(state: EvaluationState, other: EvaluationState, shared: int) -> dict[str, int]:
    """Count what does not count in a comparison of two models that share so many images, by reason."""
    own_images, other_images = len({*state.images}), len({*other.images})
    excluded = Counter(
        not_answered=own_images - shared,
        duplicate=len(state.images) - own_images + len(other.images) - other_images,
    )
    excluded.update(other.excluded)
    return nonzero_counts(**excluded)


def _on_shared_images(
    state: EvaluationState, other: EvaluationState
) -> tuple[EvaluationState, EvaluationState]:
    """Return both states with the images that both have, in one order: it decides between equal scores."""
    own_index = {image: index for index, image in enumerate(state.images)}
    other_index = {image: index for index, image in enumerate(other.images)}
    shared = own_index.keys() & other_index.keys()
    own_state = select_images(state, sorted(own_index[image] for image in shared))
    other_state = select_images(other, sorted(other_index[image] for image in shared))
    ids = [state.ids[own_index[image]] for image in other_state.images]
    return own_state, merge_states([other_state._replace(ids=ids)])
