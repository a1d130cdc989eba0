"""Explanations of answers about images: which parts of an image decided; see `quadriga.tasks.occlusion`."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from quadriga.engine.image_inference import ImageModel, images_of
from quadriga.proto.errors import InvalidRequest, Unsupported
from quadriga.proto.messages import InferRequest
from quadriga.tasks import SHORT_NAMES
from quadriga.tasks import parameters as read
from quadriga.tasks.image import Image
from quadriga.tasks.occlusion import cell_rects, occluded_images, saliency, score
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import Classification, Detection

EXPLAINED = (SHORT_NAMES["classification"], SHORT_NAMES["detection"])

MAX_RUNS = 5_000
"""Covered images that one request may make the model answer."""

_GRID = 7
_MOST_CELLS = 32
_LOW_SCORE = 0.01
"""Boxes above it count while parts are covered: a score that falls is to be seen falling."""
_PIXELS_TOGETHER = 50_000_000


def wishes(task: str, request: InferRequest) -> list[tuple[int, int]]:
    """Read what is to be explained, and refuse what cannot be, before the model runs.

    Returns:
        For each image the cells along a side of its grid, and the number of the prediction to explain.
    """
    if task not in EXPLAINED:
        raise Unsupported(
            f"expected a model of task {' or '.join(EXPLAINED)} to explain, got {task}"
        )
    found: list[tuple[int, int]] = []
    for number, tensor in enumerate(request.inputs):
        parameters = {**request.parameters, **tensor.parameters}
        try:
            cells = read.whole_number(parameters, "grid", 1, _MOST_CELLS, _GRID)
            target = read.whole_number(parameters, "target", 0, 10_000, 0)
        except ParameterError as error:
            raise InvalidRequest(f"inputs[{number}] ({tensor.name!r:.60}): {error}") from error
        found.extend([(cells, target)] * len(tensor.data))
    runs = sum((cells + 1) ** 2 for cells, _ in found)
    if runs > MAX_RUNS:
        raise InvalidRequest(
            f"expected images and grids of at most {MAX_RUNS} runs to explain, got {runs}"
        )
    return found


def explain_images(
    images: ImageModel, request: InferRequest, wanted: Sequence[tuple[int, int]]
) -> list[dict[str, Any]]:
    """Explain one prediction of each image of a request that can be answered, as `wishes` gives them.

    Returns:
        For each image `method`, `grid` as rows and columns, the `prediction` that is explained, and
        `saliency`, the drop of its score by row and column; both null where nothing was found.
    """
    explained = []
    answerer: Any = images.answerer
    given = zip(images_of(images, request), wanted, strict=True)
    for (image, parameters), (cells, target) in given:
        ((answer, _),) = answerer.answer([image], [answerer.options(parameters)])
        if answer and target >= len(answer):
            raise InvalidRequest(
                f"expected parameters.target to be below {len(answer)}, the number of predictions, "
                f"got {target}"
            )
        grid = min(cells, image.height), min(cells, image.width)
        prediction = answer[target] if answer else None
        found = prediction and _saliency(answerer, image, parameters, prediction, grid)
        told = {"method": "occlusion", "grid": grid, "prediction": prediction, "saliency": found}
        explained.append(told)
    return explained


def _saliency(
    answerer: Any,
    image: Image,
    parameters: Mapping[str, Any],
    prediction: Classification | Detection,
    grid: tuple[int, int],
) -> list[list[float]]:
    wider: dict[str, Any] = {"action": "predict_proba", "top_k": None}
    if isinstance(prediction, Detection):
        wider = {"score_threshold": min(_LOW_SCORE, prediction.score / 2)}
    options = answerer.options({**parameters, **wider})
    together = _PIXELS_TOGETHER // (image.width * image.height)
    size = max(1, min(abs(answerer.batch_size), together))
    places = cell_rects(*grid)
    covered = occluded_images(image, *grid, places)
    scores: list[float] = []
    while chunk := list(islice(covered, size)):
        answers = answerer.answer(chunk, [options] * len(chunk))
        scores.extend(score(prediction, answer) for answer, _ in answers)
    drops = saliency(prediction.score, scores, *grid, places)
    return [[round(drop, 6) for drop in row] for row in drops.tolist()]
