"""The work of `quadriga validate`: run a model once on an image, check its predictions and draw them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import msgspec

from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.image_text.generation import TASK as IMAGE_TEXT
from quadriga.engine.models.inspection import describe_then, open_model
from quadriga.engine.models.plausibility import (
    Check,
    check_reading,
    find_better_families,
    find_doubts,
)
from quadriga.engine.models.runners.session import LoadError
from quadriga.engine.serving.image_inference import ImageModel, infer_images
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.drawing import draw
from quadriga.tasks.image import MAX_PIXELS, decode
from quadriga.tasks.image_text import PROMPTS
from quadriga.tasks.predictions import Classification, Detection, Prediction


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
