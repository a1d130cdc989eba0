"""The work of `quadriga validate`: run a model once on an image, check its predictions and draw them.

Doubts are signs that a model's outputs are read in a wrong way, with the family that reads them better.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.image_text.generation import TASK as IMAGE_TEXT
from quadriga.engine.models.inspection import describe_then, open_model
from quadriga.engine.models.model import Model, model_folder
from quadriga.engine.models.recognition.evidence import gather_evidence
from quadriga.engine.models.recognition.families import FAMILIES, family_named, line_naming
from quadriga.engine.models.recognition.recognise import recognise
from quadriga.engine.models.recognition.rules import by_shapes
from quadriga.engine.models.runners.session import LoadError, RunError
from quadriga.engine.serving.image_inference import ImageModel, infer_images
from quadriga.engine.serving.tensors.drawing import draw
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.decoders import Candidates
from quadriga.tasks.generation import PROMPTS
from quadriga.tasks.geometry import xywhr_to_corners
from quadriga.tasks.image import MAX_PIXELS, Image, decode
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import (
    Classification,
    Detection,
    OrientedDetection,
    OutputError,
    Prediction,
    Segment,
    TruncatedPredictions,
)
from quadriga.tasks.specification import ModelSpec

_MARGIN = 0.25
"""Share of the image's side by which a box may reach beyond it."""
_MAX_OUTSIDE, _MAX_TINY = 0.1, 0.5
"""Shares of boxes beyond that margin, and of boxes below the minimum side, from which a reading is doubtful."""
_MIN_SIDE_PX = 1.5
"""Side of a box, in pixels of the network's input, below which networks find no object."""
_CROWD = 20
"""Number of boxes that are hardly all of one label by chance."""


class Check(msgspec.Struct, frozen=True):
    """One property that predictions must have."""

    name: str
    holds: bool
    found: str


def check_reading(
    graph: ImageGraph, spec: ModelSpec, image: Image, parameters: Mapping[str, Any]
) -> list[Check]:
    """Check what a model's graph outputs for an image before it is clipped, sorted or cut."""
    if spec.task == "IMAGE_CLASSIFICATION":
        return list(_check_activation(graph.outputs_for(image), spec))
    if spec.output.decoder == "u2net":
        return list(_check_range(graph.outputs_for(image)))
    candidates = graph.detect(image, graph.read_options(parameters))
    if not isinstance(candidates, Candidates) or not len(candidates.scores):
        return []
    return list(_check_candidates(candidates, image, spec))


def _check_candidates(candidates: Candidates, image: Image, spec: ModelSpec) -> Iterator[Check]:
    boxes, count = candidates.boxes, len(candidates.boxes)
    sides = boxes[:, 2:4]
    if boxes.shape[1] == 5:
        corners = xywhr_to_corners(boxes)
        boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    else:
        sides = boxes[:, 2:] - boxes[:, :2]
    image_wh = np.array([image.width, image.height])
    beyond = (boxes[:, :2] < -_MARGIN * image_wh) | (boxes[:, 2:] > (1 + _MARGIN) * image_wh)
    outside = int(beyond.any(axis=1).sum())
    yield Check(
        "boxes inside the image",
        outside <= _MAX_OUTSIDE * count,
        f"{outside} of {count} far outside of {image.width} x {image.height}",
    )
    # an image may be reduced to the network's input by any factor, but objects are pixels there, too
    gain = np.minimum(np.array(spec.input.size_wh) / image_wh, 1)
    if spec.input.resize in ("none", "shortest_longest", "shortest_at_least"):
        gain = np.ones(2)
    tiny = int((sides * gain < _MIN_SIDE_PX).any(axis=1).sum())
    yield Check(
        "boxes have the size of objects",
        tiny <= _MAX_TINY * count,
        f"{tiny} of {count} smaller than {_MIN_SIDE_PX} px of the input",
    )


def _check_activation(outputs: Mapping[str, npt.NDArray[Any]], spec: ModelSpec) -> Iterator[Check]:
    scores = next(iter(outputs.values())).astype(np.float64).ravel()
    are_probabilities = bool((scores >= 0).all() and abs(scores.sum() - 1) < 1e-3)
    span = f"{scores.min():.3g} to {scores.max():.3g}, sum {scores.sum():.3g}"
    if spec.output.activation != "none" and len(scores) > 1:
        name = f"outputs are no probabilities yet, as activation is {spec.output.activation}"
        yield Check(name, not are_probabilities, span)


def _check_range(outputs: Mapping[str, npt.NDArray[Any]]) -> Iterator[Check]:
    """Check that a map, which is stretched from its lowest to its highest value, is not one of logits."""
    cells = next(iter(outputs.values()))
    low, high = float(cells.min()), float(cells.max())
    yield Check(
        "map of probabilities, as U²-Net's",
        low >= -1e-3 and high <= 1 + 1e-3,
        f'{low:.3g} to {high:.3g}; other networks are family = "binary-segmentation" or "birefnet"',
    )


def find_doubts(predictions: Sequence[Prediction], spec: ModelSpec, image: Image) -> list[str]:
    """Describe what may be right, but is also what a wrong reading looks like."""
    doubts = []
    if isinstance(predictions, TruncatedPredictions):
        doubts.append(
            f"exactly the limit of {len(predictions)} predictions: the image has more, or the outputs are read "
            "wrongly"
        )
    boxes = [p for p in predictions if isinstance(p, Detection | OrientedDetection)]
    labels = {box.label for box in boxes}
    if len(boxes) >= _CROWD and len(labels) == 1 and len(spec.labels) > 1:
        doubts.append(
            f"all {len(boxes)} boxes are of one label, {labels.pop()}: a crowd, or the classes are read wrongly"
        )
    segments = [p for p in predictions if isinstance(p, Segment)]
    if len(segments) == 1 and _covers(segments[0], image):
        doubts.append(
            f"one label everywhere, {segments[0].label}: right for an image of one thing, else a sign of wrong "
            "scale, mean, std or color in [input]"
        )
    return doubts


def _covers(segment: Segment, image: Image) -> bool:
    """Check whether a segment is the whole image: one ring through its four corners."""
    points = [(point.x, point.y) for ring in segment.contour for point in ring]
    right, bottom = image.width - 1, image.height - 1
    return sorted(points) == sorted({(0, 0), (right, 0), (0, bottom), (right, bottom)})


def find_better_families(model: Model, image: Image, parameters: Mapping[str, Any]) -> list[str]:
    """Name the other families of detectors by which all checks hold, and the number of their predictions."""
    recognition = model.recognition
    if recognition.task not in ("OBJECT_DETECTION", "ORIENTED_OBJECT_DETECTION"):
        return []
    folder, written = model_folder(model.paths[0]), recognition.written
    evidence = gather_evidence(folder, model.session, written)
    match = by_shapes(evidence.reading(written.output.get("name", ())))
    output = {key: value for key, value in written.output.items() if key != "decoder"}
    better = []
    for name in match.families:
        if name == recognition.family or family_named(name).task != recognition.task:
            continue
        other = msgspec.structs.replace(written, family=name, output=output)
        if name not in FAMILIES:
            other = msgspec.structs.replace(written, output={**output, "decoder": name})
        try:
            spec = recognise(folder, model.session, other).spec
            assert spec is not None, "families are of tasks on images"
            graph = ImageGraph(model.session, spec, max_batch=1, embedding="")
            ((predictions, _),) = graph.predict([image], [graph.read_options(parameters)])
            checks = check_reading(graph, spec, image, parameters)
        except (LoadError, OutputError, ParameterError, RunError):
            continue
        if predictions and all(check.holds for check in checks):
            better.append(f"{line_naming(name)} fits better: {len(predictions)} predictions")
    return better


class Validation(msgspec.Struct, frozen=True):
    """Predictions for one image, and the checks of them."""

    width: int
    height: int
    predictions: Sequence[Any]
    checks: Sequence[Check]
    picture: str
    notes: Sequence[str] = ()
    """What to look at though no check fails, and families that fit better if a check fails."""


def validate(path: Path, image: Path, output: Path, parameters: dict[str, Any]) -> Validation:
    """Run a model on an image as the server would, check the predictions, and draw them into a picture.

    Raises:
        LoadError: The model cannot be loaded, or takes no images.
        InvalidRequest: The image or a parameter is invalid, or prompts are missing.
        OSError: A file cannot be read or written.
    """
    if not cv2.haveImageWriter(str(output)):
        raise OSError(f"expected the picture's name to end in .png or .jpg, got {output.name}")
    model = open_model(path)
    if model.image_predictor is None or model.spec is None:
        raise LoadError(
            f"expected a model that takes images, got {model.name}: tensors in, tensors out"
        )
    if model.recognition.task == IMAGE_TEXT and not parameters.keys() & set(PROMPTS):
        raise InvalidRequest(
            "prompts are required for an image-text model: write "
            """--parameters '{"prompts": ["What is it?"]}'; for a captioner '{"prompts": [""]}'"""
        )
    data = image.read_bytes()
    images = ImageModel(model.image_predictor, MAX_PIXELS, max_images=1)
    tensor = Tensor(image.name, "BYTES", (1,), data=[data], parameters=parameters)
    (answered,), _ = infer_images(images, InferRequest(model.name, None, "", [tensor]))
    predictions: list[Prediction] = answered.data[0]
    spec = model.spec.input
    decoded = decode(data, channels=spec.channels, bit_depth=spec.bit_depth, exif=spec.exif)
    picture = draw(decoded, predictions, model.spec.labels)
    if not cv2.imwrite(str(output), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)):
        raise OSError(f"cannot write {output}: does its folder exist?")
    width, height = decoded.width, decoded.height
    checks = list(_checks(predictions, width, height))
    notes: list[str] = []
    if isinstance(model.image_predictor, ImageGraph):
        checks.extend(check_reading(model.image_predictor, model.spec, decoded, parameters))
        notes = find_doubts(predictions, model.spec, decoded)
        if not all(check.holds for check in checks):
            notes.extend(find_better_families(model, decoded, parameters))
    if then := describe_then(model.recognition.written.then):
        notes.append(f"not run here, as only the server knows the other model: {then}")
    return Validation(width, height, predictions, checks=checks, picture=str(output), notes=notes)


def _checks(predictions: Sequence[Prediction], width: int, height: int) -> Iterator[Check]:
    scores = [prediction.score for prediction in predictions if hasattr(prediction, "score")]
    span = f"{min(scores):.3f} to {max(scores):.3f}" if scores else "none"
    yield Check("scores from 0 to 1", all(0 <= score <= 1 for score in scores), span)
    weaker = "" if predictions else """: --parameters '{"score_threshold": 0.01}' asks for weaker"""
    count = "1 prediction" if len(predictions) == 1 else f"{len(predictions)} predictions"
    yield Check("something found", bool(predictions), f"{count}{weaker}")
    labels = [p for p in predictions if isinstance(p, Classification)]
    if len(labels) > 1:
        total = sum(prediction.score for prediction in labels)
        yield Check("best label first", scores == sorted(scores, reverse=True), f"sum {total:.3f}")
    boxes = [p for p in predictions if isinstance(p, Detection)]
    if boxes:
        areas = ((box.xmax - box.xmin) * (box.ymax - box.ymin) for box in boxes)
        covering = sum(area > 0.95 * width * height for area in areas)
        yield Check(
            "boxes of objects, not of the image", covering < 2, f"{covering} cover it whole"
        )
