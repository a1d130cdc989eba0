"""The work of `quadriga quantize`: quantize a version, judge it on the same images, and keep it or refuse it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import LoadError
from quadriga.engine.serving.image_inference import ImageModel, infer_images
from quadriga.extras.tuning.paired_times import median_factor, time_in_turns
from quadriga.extras.tuning.quantizer import (
    Feeds,
    QuantizationError,
    QuantizedGraph,
    quantize_graph,
)
from quadriga.extras.tuning.stored_images import ChosenImages, ImageToRun, read_images
from quadriga.extras.tuning.versions import SourceVersion, next_version, publish, staging_folder
from quadriga.monitor.evaluation.evaluators import build_state, find_unreadable, load_evaluator
from quadriga.monitor.evaluation.intervals import MIN_UNITS
from quadriga.monitor.evaluation.limits import find_metric, name_of, written
from quadriga.monitor.evaluation.reporting import DEFAULT_OPTIONS, EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import EvaluatedImage
from quadriga.monitor.report.metric_texts import is_less_better
from quadriga.monitor.report.schema import Metric, Report, ReportedModel
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.store.records.disk import check_writable
from quadriga.tasks.image import MAX_PIXELS, ImageError

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
    sign = -1.0 if is_less_better(metric) else 1.0
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


SUMMARY_FILE = "quantization.json"
"""File of a new version with what was measured when it was made."""

_TIMED_IMAGES = 8


class QuantizationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a quantization."""

    tolerance: float = 0.01
    """Largest loss of the headline metric."""
    exclude: Sequence[str] = ()
    """Patterns of the names of nodes that stay in floating point."""
    parameters: Mapping[str, Any] = {}
    """Parameters of each request by which it is judged."""
    keeps_refused: bool = False
    """Whether a refused version stays, in a folder that is not served."""
    evaluation: EvaluationOptions = DEFAULT_OPTIONS


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Images that the ranges of activations were measured on."""

    images: int
    requested: int


class Quantization(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a quantization."""

    model: str
    source: str
    """Version that was quantized."""
    version: str | None
    """New version; None if it was refused."""
    accepted: bool
    reason: str
    tolerance: float
    folder: str | None
    """Name of the new folder beside the source's; None if the refused version was removed."""
    calibration: Calibration
    original_bytes: int
    bytes: int
    graph: QuantizedGraph
    quality: Quality
    speed: Speed
    notes: list[str] = []
    """What to look at though it was accepted."""


OnStep = Callable[[str], None]
"""Called with what is being done."""


def open_original(source: SourceVersion) -> Model:
    """Load the version to quantize, as the server would.

    Raises:
        LoadError: It cannot be loaded.
        QuantizationError: It takes no images.
    """
    model = Model(source.name, source.version, source.path)
    if not isinstance(model.image_predictor, ImageGraph):
        raise QuantizationError(
            f"expected a model that takes images, got {source.name}: {model.recognition.task}"
        )
    return model


def quantize(
    source: SourceVersion,
    original: Model,
    images: ChosenImages,
    options: QuantizationOptions,
    *,
    samples: int,
    on_step: OnStep = lambda _: None,
) -> tuple[Quantization, Report]:
    """Write a version in int8 beside the others if it is as good within the tolerance.

    Args:
        source: The version to quantize.
        original: The same, loaded.
        images: Images to calibrate with, and to judge by.
        options: See `QuantizationOptions`.
        samples: Number of images that were requested to calibrate with.
        on_step: See `OnStep`.

    Raises:
        QuantizationError: It cannot be quantized, or is not read as the source is.
        EvaluationError: No ground truth fits the model's task.
        OSError: The disk has no room.
    """
    predictor = original.image_predictor
    assert isinstance(predictor, ImageGraph)
    with staging_folder(source) as staging:
        original_bytes = _model_bytes(source.path)
        check_writable(staging, min(original_bytes, 1 << 30))  # before minutes of work
        counter = _Counter(predictor, images.calibration)
        target = staging / "model.onnx"
        graph = quantize_graph(
            source.path,
            target,
            counter.feeds(),
            exclude=options.exclude,
            on_read=lambda _: on_step(f"calibrating: {counter.images} images"),
        )
        version = next_version(source.folder)
        candidate = _open_candidate(original, version, target)
        assert isinstance(candidate.image_predictor, ImageGraph)
        on_step("measuring speed")
        speed = compare_speed(predictor, candidate.image_predictor, counter.first)
        predicted: list[tuple[Model, list[EvaluatedImage]]] = []
        for model in (original, candidate):
            progress = _progress(on_step, f"judging version {model.version}", len(images.judged))
            evaluated, unread = predict_images(model, images.judged, options.parameters, progress)
            predicted.append((model, evaluated))
        if not predicted[0][1]:
            raise QuantizationError("no image to judge by could be read")
        on_step("computing metrics")
        quality, report = compare_quality(predicted[0], predicted[1], options.evaluation)
        if unread:
            quality = msgspec.structs.replace(
                quality, excluded=quality.excluded | {"unreadable_image": unread}
            )
        verdict = judge(quality, options.tolerance)
        folder = version if verdict.accepted else f"refused-{version}"
        result = Quantization(
            model=source.name,
            source=source.version,
            version=version if verdict.accepted else None,
            accepted=verdict.accepted,
            reason=verdict.reason,
            tolerance=options.tolerance,
            folder=folder if verdict.accepted or options.keeps_refused else None,
            calibration=Calibration(images=counter.images, requested=samples),
            original_bytes=original_bytes,
            bytes=_model_bytes(target),
            graph=graph,
            quality=quality,
            speed=speed,
            notes=list(_notes(counter.images, samples, speed)),
        )
        if result.folder is not None:
            text = msgspec.json.format(msgspec.json.encode(result))
            (staging / SUMMARY_FILE).write_bytes(text + b"\n")
            if not verdict.accepted:
                folder = _free_name(source.folder, folder)
                result = msgspec.structs.replace(result, folder=folder)
            publish(staging, folder)
    return result, report


class _Counter:
    """Reads images as inputs of a graph, counts them, and keeps the first inputs."""

    def __init__(self, predictor: ImageGraph, images: Sequence[ImageToRun]) -> None:
        self._predictor = predictor
        self._images = images
        self.images = 0
        self.first: list[Feeds] = []

    def feeds(self) -> Iterator[Feeds]:
        for _, data in read_images(self._images):
            try:
                image = self._predictor.decode(data, MAX_PIXELS)
            except ImageError:
                continue
            self.images += 1
            for feeds in self._predictor.feeds_of(image):
                if len(self.first) < _TIMED_IMAGES:
                    self.first.append(feeds)
                yield {name: np.ascontiguousarray(array) for name, array in feeds.items()}


def _open_candidate(original: Model, version: str, path: Path) -> Model:
    """Load the quantized graph as the server would, and check that it is the same model.

    Raises:
        QuantizationError: It does not load, or is read in another way.
    """
    try:
        candidate = Model(original.name, version, path)
    except LoadError as error:
        raise QuantizationError(f"the quantized graph does not load: {error}") from error
    if candidate.spec != original.spec:
        raise QuantizationError(
            "the quantized graph is not read as the original is: name its task, labels, [input] and [output] in "
            "model.toml, as `quadriga inspect` shows them"
        )
    return candidate


def _model_bytes(path: Path) -> int:
    """Return the size of a graph and of its weights in files beside it."""
    external = {part for part in path.parent.glob(f"{path.name}*") if part.is_file()}
    return sum(file.stat().st_size for file in {path, *external})


def _progress(on_step: OnStep, text: str, total: int) -> Callable[[int], None]:
    return lambda count: on_step(f"{text}: {count} of {total} images")


def _notes(images: int, samples: int, speed: Speed) -> Iterator[str]:
    if images < samples:
        yield f"calibrated on {images} images, fewer than the {samples} requested"
    low, _ = speed.factor_ci95 or (speed.factor, speed.factor)
    if low <= 1:
        yield f"it is not known to be faster here: {speed.factor:.2f} times as fast"


def _free_name(folder: Path, name: str) -> str:
    """Return a name that no file of a folder has, with a number at its end if need be."""
    number, free = 1, name
    while (folder / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free
