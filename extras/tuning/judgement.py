"""Two versions of a model on the same images: how good, how fast, and whether the new one may take the old one's place."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.model import Model
from quadriga.engine.serving.image_inference import ImageModel, infer_images
from quadriga.extras.tuning.paired_times import median_factor, time_in_turns
from quadriga.extras.tuning.quantizer import Feeds
from quadriga.extras.tuning.stored_images import ImageToRun, read_images
from quadriga.monitor.evaluation.evaluators import build_state, find_unreadable, load_evaluator
from quadriga.monitor.evaluation.intervals import MIN_UNITS
from quadriga.monitor.evaluation.limits import find_metric, is_error, name_of, written
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import EvaluatedImage
from quadriga.monitor.report.schema import Metric, Report, ReportedModel
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.image import MAX_PIXELS

MAX_PAIRS = 200
"""Maximum pairs of runs that are timed."""

MAX_TIMING_S = 20.0


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """The headline metric of both versions on the same images."""

    metric: str
    original: float | None
    candidate: float | None
    difference: float | None
    """The new version's value less the original's."""
    ci95: tuple[float | None, float | None] | None
    """Interval of the difference; images are paired."""
    images: int
    excluded: dict[str, int] = {}


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one run of the graph, alternating between the versions, on this machine."""

    original_ms: float
    candidate_ms: float
    original_cpu_ms: float
    candidate_cpu_ms: float
    factor: float
    """Median over pairs of the original's CPU time over the new version's: 2 is twice as fast."""
    factor_ci95: tuple[float, float] | None
    pairs: int


class Acceptance(NamedTuple):
    """Whether a version may take the place of another."""

    accepted: bool
    reason: str


def predict_images(
    model: Model,
    images: Sequence[ImageToRun],
    parameters: Mapping[str, Any],
    on_image: Callable[[int], None] = lambda _: None,
) -> tuple[list[EvaluatedImage], int]:
    """Answer images as the server would; those that cannot be read are left out and counted."""
    assert model.image_predictor is not None
    images_model = ImageModel(model.image_predictor, MAX_PIXELS, max_images=1)
    evaluated: list[EvaluatedImage] = []
    for image, data in read_images(images):
        tensor = Tensor("image", "BYTES", (1,), data=[data], parameters=dict(parameters))
        try:
            _, (result,) = infer_images(images_model, InferRequest(model.name, None, "", [tensor]))
        except InvalidRequest:
            if parameters and not evaluated:
                raise  # the parameters may be at fault, and then they are in every request
            continue
        evaluated.append(
            EvaluatedImage(
                image.name,
                msgspec.Raw(msgspec.json.encode(result.predictions)),
                image.ground_truth or msgspec.Raw(b"null"),
                width=result.width,
                height=result.height,
            )
        )
        on_image(len(evaluated))
    return evaluated, len(images) - len(evaluated)


def compare_quality(
    original: tuple[Model, Sequence[EvaluatedImage]],
    candidate: tuple[Model, Sequence[EvaluatedImage]],
    options: EvaluationOptions,
) -> tuple[Quality, Report]:
    """Evaluate both versions on the images that both have answered.

    Raises:
        EvaluationError: The ground truth of no image fits the task.
    """
    task = original[0].recognition.task
    evaluator = load_evaluator(task, options.metrics)
    unreadable = find_unreadable(evaluator, candidate[1], ())
    bad = {candidate[1][position].id for position in unreadable}
    if bad and len(bad) == len(candidate[1]):
        raise next(iter(unreadable.values()))
    states = [
        build_state(evaluator, [image for image in images if image.id not in bad], ())
        for _, images in (original, candidate)
    ]
    reported = [
        ReportedModel(model.name, model.version, model.sha256) for model, _ in (original, candidate)
    ]
    report = evaluate_state(
        evaluator,
        states[1],
        task=task,
        model=reported[1],
        options=options,
        other_models=[(reported[0], states[0])],
    )
    (comparison,) = report.comparisons
    metric = report.metrics[0]
    difference = find_metric(comparison.differences, name_of(metric))
    quality = Quality(
        metric=written(metric),
        original=find_metric(comparison.metrics, name_of(metric)).value,
        candidate=metric.value,
        difference=difference.value,
        ci95=difference.ci95,
        images=comparison.n,
        excluded=report.data.excluded | ({"unreadable": len(bad)} if bad else {}),
    )
    return quality, report


def judge(quality: Quality, tolerance: float) -> Acceptance:
    """Accept a version whose loss is within the tolerance, also at the worse end of the interval of the difference."""
    metric = Metric(quality.metric.partition("[")[0], quality.candidate)
    if quality.difference is None:
        return Acceptance(False, f"{quality.metric} is undefined on {quality.images} images")
    sign = -1.0 if is_error(metric) else 1.0
    loss = -sign * quality.difference
    bounds = quality.ci95 or (None, None)
    worst = bounds[0] if sign > 0 else bounds[1]
    if loss > tolerance:
        return Acceptance(False, f"it loses {loss:.4f} {quality.metric}, more than {tolerance:g}")
    if worst is None and not loss and quality.images >= MIN_UNITS:
        return Acceptance(True, f"it gives the same {quality.metric} on every resample")
    if worst is None:
        return Acceptance(
            False,
            f"{quality.images} images are too few for an interval: give more with ground truth",
        )
    at_most = -sign * worst
    if at_most > tolerance:
        return Acceptance(
            False,
            f"it loses {loss:.4f} {quality.metric}, but up to {at_most:.4f} cannot be ruled out with {quality.images} "
            f"images, more than {tolerance:g}: give more images with ground truth, or a larger --tolerance",
        )
    return Acceptance(True, f"it loses {loss:.4f} {quality.metric}, at most {max(at_most, 0):.4f}")


def compare_speed(original: ImageGraph, candidate: ImageGraph, feeds: Sequence[Feeds]) -> Speed:
    """Time runs of two graphs on the same inputs, at least one, in turns."""
    before, after = time_in_turns(
        [partial(_run_one, graph, feeds) for graph in (original, candidate)],
        max_rounds=MAX_PAIRS,
        max_s=MAX_TIMING_S,
    )
    factor, interval = median_factor(before.cpu_s, after.cpu_s)
    return Speed(
        original_ms=before.ms,
        candidate_ms=after.ms,
        original_cpu_ms=before.cpu_ms,
        candidate_cpu_ms=after.cpu_ms,
        factor=factor,
        factor_ci95=interval,
        pairs=len(before.cpu_s),
    )


def _run_one(graph: ImageGraph, feeds: Sequence[Feeds], number: int) -> None:
    graph.run_feeds(feeds[number % len(feeds)])
