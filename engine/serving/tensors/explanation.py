"""Explanations of predictions: which parts of an image decided; see `quadriga.tasks.tiling`."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.image_text.generation import TextPackage
from quadriga.engine.serving.image_inference import ImageModel, decode_images
from quadriga.proto.errors import InvalidRequest, Unsupported
from quadriga.proto.messages import InferRequest
from quadriga.quoting import quoted
from quadriga.tasks import SHORT_NAMES
from quadriga.tasks import parameters as read
from quadriga.tasks.image import Image
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import Classification, Detection, Prediction
from quadriga.tasks.tiling import cell_rects, occluded_images, saliency, score

EXPLAINABLE_TASKS = (SHORT_NAMES["classification"], SHORT_NAMES["detection"])

MAX_RUNS = 5_000
"""Maximum number of covered images that a request may make the model run on."""

_DEFAULT_CELLS = 7
_MAX_CELLS = 32
_LOW_SCORE = 0.01
"""Score threshold while parts are covered, low enough to see a score fall."""
_MAX_BATCH_PIXELS = 50_000_000
"""Maximum pixels of the covered images that are made at once."""


def read_explain_options(task: str, request: InferRequest) -> list[tuple[int, int]]:
    """Read which predictions to explain, and refuse what cannot be explained before the model runs.

    Returns:
        For each image the cells along a side of its grid, and the index of the prediction to explain.
    """
    if task not in EXPLAINABLE_TASKS:
        raise Unsupported(
            f"expected a model of task {' or '.join(EXPLAINABLE_TASKS)} to explain, got {task}"
        )
    options: list[tuple[int, int]] = []
    for number, tensor in enumerate(request.inputs):
        parameters = {**request.parameters, **tensor.parameters}
        try:
            cells = read.whole_number(
                parameters, "grid", 1, high=_MAX_CELLS, default=_DEFAULT_CELLS
            )
            target = read.whole_number(parameters, "target", 0, high=10_000, default=0)
        except ParameterError as error:
            raise InvalidRequest(
                f"inputs[{number}] ({quoted(tensor.name, 60)}): {error}"
            ) from error
        options.extend([(cells, target)] * len(tensor.data))
    runs = sum((cells + 1) ** 2 for cells, _ in options)
    if runs > MAX_RUNS:
        raise InvalidRequest(
            f"expected images and grids of at most {MAX_RUNS} runs to explain, got {runs}"
        )
    return options


def explain_images(
    images: ImageModel, request: InferRequest, options: Sequence[tuple[int, int]]
) -> list[dict[str, Any]]:
    """Explain one prediction of each image of a request that was answered.

    Args:
        images: The model.
        request: The request.
        options: The result of `read_explain_options`.

    Returns:
        For each image `method`, `grid` as rows and columns, the explained `prediction`, and `saliency`, the drop of
        its score by row and column; both are null for an image without predictions.
    """
    explanations = []
    predictor = images.predictor
    decoded = zip(decode_images(images, request), options, strict=True)
    for (image, parameters), (cells, target) in decoded:
        (predictions,) = _predict(predictor, [image], predictor.read_options(parameters))
        if predictions and target >= len(predictions):
            raise InvalidRequest(
                f"expected parameters.target to be below {len(predictions)}, the number of predictions, "
                f"got {target}"
            )
        grid = min(cells, image.height), min(cells, image.width)
        prediction: Any = predictions[target] if predictions else None
        drops = prediction and _saliency(
            predictor, image, parameters, prediction=prediction, grid=grid
        )
        explanations.append(
            {"method": "occlusion", "grid": grid, "prediction": prediction, "saliency": drops}
        )
    return explanations


def _predict(
    predictor: ImageGraph | TextPackage, images: Sequence[Image], options: Any
) -> list[list[Prediction]]:
    """Predict what images show, with the same options, as the predictor read them, for each."""
    return [predictions for predictions, _ in predictor.predict(images, [options] * len(images))]


def _saliency(
    predictor: ImageGraph | TextPackage,
    image: Image,
    parameters: Mapping[str, Any],
    prediction: Classification | Detection,
    grid: tuple[int, int],
) -> list[list[float]]:
    wider: dict[str, Any] = {"action": "predict_proba", "top_k": None}
    if isinstance(prediction, Detection):
        wider = {"score_threshold": min(_LOW_SCORE, prediction.score / 2)}
    options = predictor.read_options({**parameters, **wider})
    max_batch = _MAX_BATCH_PIXELS // (image.width * image.height)
    size = max(1, min(abs(predictor.batch_size), max_batch))
    places = cell_rects(*grid)
    covered = occluded_images(image, *grid, places)
    scores: list[float] = []
    while chunk := list(islice(covered, size)):
        scores.extend(
            score(prediction, predictions) for predictions in _predict(predictor, chunk, options)
        )
    drops = saliency(prediction.score, scores, *grid, places)
    return [[round(drop, 6) for drop in row] for row in drops.tolist()]
