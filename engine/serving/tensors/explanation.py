"""Explanations of predictions: which parts of an image decided, see `quadriga.tasks.tiling`, or which features of a row.

Of a row, the score of a prediction drops if a feature has the values of the request's other rows.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn

import msgspec
import numpy as np

from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.image_text.generation import TextPackage
from quadriga.engine.models.model import Model
from quadriga.engine.serving.image_inference import ImageModel, decode_images
from quadriga.engine.serving.tensors.row_inference import count_rows, run_rows
from quadriga.engine.serving.tensors.tensor_inference import Feeds, all_parameters, read_feeds
from quadriga.proto.errors import InvalidRequest, Unsupported
from quadriga.proto.messages import InferRequest
from quadriga.quoting import quoted
from quadriga.tasks import SHORT_NAMES
from quadriga.tasks import parameters as read
from quadriga.tasks.classification import RowClassification
from quadriga.tasks.image import Image
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import Classification, Detection, Prediction
from quadriga.tasks.tiling import cell_rects, occluded_images, saliency, score

Explain = Callable[[], list[Any]]
"""Explains a prediction of each image or row of a request that was answered."""

EXPLAINABLE_TASKS = (SHORT_NAMES["classification"], SHORT_NAMES["detection"])

MAX_RUNS = 5_000
"""Maximum number of covered images that a request may make the model run on."""

_DEFAULT_CELLS = 7
_MAX_CELLS = 32
_LOW_SCORE = 0.01
"""Score threshold while parts are covered, low enough to see a score fall."""
_MAX_BATCH_PIXELS = 50_000_000
"""Maximum pixels of the covered images that are made at once."""


def _read_options(task: str, request: InferRequest) -> list[tuple[int, int]]:
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


def refuse_explanation(task: str, request: InferRequest) -> NoReturn:
    """Raise `Unsupported`: the outputs of a graph are no predictions."""
    _read_options(task, request)
    raise Unsupported("expected images or rows to explain, got tensors")


def prepare_image_explanation(images: ImageModel, request: InferRequest) -> Explain:
    """Refuse what cannot be explained before the model runs; return what explains the rest."""
    options = _read_options(images.predictor.task, request)
    return lambda: _explain_images(images, request, options)


def _explain_images(
    images: ImageModel, request: InferRequest, options: Sequence[tuple[int, int]]
) -> list[dict[str, Any]]:
    """Explain one prediction of each image of a request that was answered, with the options of each.

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


class _RowsToExplain(msgspec.Struct, frozen=True):
    """Rows of a request, and which prediction of each to explain."""

    feeds: Feeds
    columns: list[tuple[str, int]]
    """Input and column of each feature."""
    count: int
    """Number of rows."""
    target: int
    """Position of the prediction in the order of the scores."""


def prepare_row_explanation(
    model: Model, classifier: RowClassification, request: InferRequest, max_rows: int
) -> Explain:
    """Refuse what cannot be explained before the model runs; return what explains the rest."""
    feeds = read_feeds(model.name, model.tensor_inputs, request)
    count = count_rows(feeds, max_rows)
    columns = [
        (name, column) for name, array in feeds.items() for column in range(array.size // count)
    ]
    try:
        labels = len(classifier.spec.labels)
        target = read.whole_number(all_parameters(request), "target", 0, labels - 1, default=0)
    except ParameterError as error:
        raise InvalidRequest(f"inputs[0]: {error}") from error
    if count < 2:
        raise InvalidRequest(
            "expected 2 rows or more to explain, as the values of the others replace a feature, got 1"
        )
    runs = count * (count - 1) * len(columns)
    if runs > MAX_RUNS:
        raise InvalidRequest(
            f"expected rows and features of at most {MAX_RUNS} changed rows to explain, got {runs}"
        )
    rows = _RowsToExplain(feeds, columns, count, target)
    return lambda: _explain_rows(model, classifier, rows)


def _explain_rows(
    model: Model, classifier: RowClassification, rows: _RowsToExplain
) -> list[dict[str, Any]]:
    """Explain one prediction of each row of a request that was answered.

    Returns:
        For each row `method`, the explained `prediction`, the names of the `features`, and `saliency`, the mean drop of
        its score by feature.
    """
    spec = classifier.spec
    scores = classifier.scores(run_rows(model, classifier, rows.feeds))
    names = list(spec.features) or [
        name if rows.feeds[name].size == rows.count else f"{name}[{column}]"
        for name, column in rows.columns
    ]
    explanations = []
    for row, row_scores in enumerate(scores):
        label = int(np.argsort(-row_scores, kind="stable")[rows.target])
        changed = classifier.scores(run_rows(model, classifier, _changed_rows(rows, row)))
        means = changed[:, label].reshape(len(rows.columns), -1).mean(axis=1)
        explanations.append(
            {
                "method": "permutation",
                "prediction": Classification(spec.labels[label], float(row_scores[label])),
                "features": names,
                "saliency": (row_scores[label] - means).tolist(),
            }
        )
    return explanations


def _changed_rows(rows: _RowsToExplain, row: int) -> Feeds:
    """Return one row with each feature in turn as in each of the other rows."""
    others = np.delete(np.arange(rows.count), row)
    count = len(others) * len(rows.columns)
    changed = {
        name: np.repeat(array[row : row + 1], count, axis=0) for name, array in rows.feeds.items()
    }
    for position, (name, column) in enumerate(rows.columns):
        start = position * len(others)
        values = rows.feeds[name].reshape(rows.count, -1)[others, column]
        changed[name].reshape(count, -1)[start : start + len(others), column] = values
    return changed
