"""Requests to classifiers of rows: the graph's own inputs in, labels and scores of each row out."""

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.engine.models.model import ROW_OUTPUT, Model
from quadriga.engine.models.runners.session import RunError
from quadriga.engine.serving.image_inference import echoed_parameters
from quadriga.engine.serving.recording import ImageResult
from quadriga.engine.serving.tensors.tensor_inference import (
    Feeds,
    all_parameters,
    read_feeds,
    result_without_predictions,
    with_input,
)
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.classification import ACTIONS, RowClassification
from quadriga.tasks.parameters import ParameterError


def infer_rows(
    model: Model, classifier: RowClassification, request: InferRequest, max_rows: int
) -> tuple[list[Tensor], list[ImageResult]]:
    """Answer a request to a classifier of rows.

    Returns:
        The output with the predictions of each row; and one result per row.
    """
    names = {output.name for output in request.requested_outputs}
    if names - {ROW_OUTPUT}:
        raise InvalidRequest(
            f"expected the output {ROW_OUTPUT}, which has the labels of each row, got {', '.join(names):.200}; "
            "content_type raw asks for the outputs of the graph"
        )
    feeds = read_feeds(model.name, model.tensor_inputs, request)
    count = count_rows(feeds, max_rows)
    parameters = all_parameters(request)
    try:
        options = classifier.options(parameters)
    except ParameterError as error:
        raise InvalidRequest(f"inputs[0]: {error}") from error
    result = result_without_predictions(request, parameters, ACTIONS)
    predictions = classifier.predict(run_rows(model, classifier, feeds), options)
    features = classifier.spec.features
    results = []
    for number, row in enumerate(predictions):
        row_feeds = {name: array[number : number + 1] for name, array in feeds.items()}
        with_row = with_input(model, result, row_feeds, features)
        results.append(msgspec.structs.replace(with_row, predictions=row))
    echoed = echoed_parameters(parameters)
    return [Tensor(ROW_OUTPUT, "BYTES", (count,), data=predictions, parameters=echoed)], results


def run_rows(
    model: Model, classifier: RowClassification, feeds: Feeds
) -> npt.NDArray[np.generic] | npt.NDArray[np.object_]:
    """Run rows through the graph, all at once where it takes them so; return the output with their scores."""
    name = classifier.spec.scores
    count = len(next(iter(feeds.values())))
    size = 1 if classifier.spec.single else max(count, 1)
    parts = []
    try:
        for start in range(0, count, size):
            rows = {input_: array[start : start + size] for input_, array in feeds.items()}
            parts.append(model.session.run(rows, [name], min(size, count - start))[name])
    except RunError as error:
        raise InvalidRequest(f"model {model.name!r} refuses the input: {error}") from error
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def count_rows(feeds: Feeds, max_rows: int) -> int:
    """Return the number of rows, the same for all inputs."""
    counts = {name: len(array) for name, array in feeds.items()}
    count = next(iter(counts.values()))
    if set(counts.values()) != {count}:
        listed = ", ".join(f"{name}: {rows}" for name, rows in counts.items())
        raise InvalidRequest(f"expected as many rows in each input, got {listed:.300}")
    if not 1 <= count <= max_rows:
        raise InvalidRequest(f"expected 1 to {max_rows} rows in a request, got {count}")
    return count
