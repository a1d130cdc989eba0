"""Explanations of rows: how much the score drops if a feature has the values of the request's other rows."""

from typing import Any

import msgspec
import numpy as np

from quadriga.engine.models.model import Model
from quadriga.engine.serving.tensors.explanation import MAX_RUNS
from quadriga.engine.serving.tensors.row_inference import count_rows, run_rows
from quadriga.engine.serving.tensors.tensor_inference import Feeds, all_parameters, read_feeds
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest
from quadriga.tasks import parameters as read
from quadriga.tasks.classification import RowClassification
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import Classification


class RowsToExplain(msgspec.Struct, frozen=True):
    """Rows of a request, and which prediction of each to explain."""

    feeds: Feeds
    columns: list[tuple[str, int]]
    """Input and column of each feature."""
    count: int
    """Number of rows."""
    target: int
    """Position of the prediction in the order of the scores."""


def read_rows_to_explain(
    model: Model, classifier: RowClassification, request: InferRequest, max_rows: int
) -> RowsToExplain:
    """Refuse what cannot be explained before the model runs."""
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
    return RowsToExplain(feeds, columns, count, target)


def explain_rows(
    model: Model, classifier: RowClassification, rows: RowsToExplain
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


def _changed_rows(rows: RowsToExplain, row: int) -> Feeds:
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
