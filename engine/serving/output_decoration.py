"""Additions to a model's outputs in a response: echoed parameters, ids, semantic scores; and the selection of outputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quadriga.engine.serving.recording import ImageResult, StoreResult
from quadriga.proto.messages import RequestedOutput, Tensor
from quadriga.tasks.predictions import TruncatedPredictions

SCORE_HEADER = "Quadriga-Semantic-Score"
TRUNCATED_HEADER = "Quadriga-Truncated"

ECHOED_PARAMETERS = ("action", "metadata")
"""Parameters that an output repeats from its input, or from the request, as they were sent."""


def echoed_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Select the parameters that an output repeats."""
    return {
        name: parameters[name] for name in ECHOED_PARAMETERS if parameters.get(name) is not None
    }


def decorate_outputs(
    outputs: Sequence[Tensor],
    results: Sequence[ImageResult],
    stored: StoreResult,
    *,
    per_image: bool,
) -> Sequence[Tensor]:
    """Add to the parameters of each output: ids, semantic scores, and whether predictions were cut.

    Args:
        outputs: The model's outputs.
        results: Of all images, in the order of the outputs' data.
        stored: What the store made of them.
        per_image: Whether an output holds one element for each image; those of a graph belong to one inference.
    """
    if not per_image and stored.stored and not stored.ids:
        return outputs
    decorated = []
    start, stop = 0, len(results)
    for tensor in outputs:
        added: dict[str, Any] = {} if stored.stored else {"stored": False}
        if per_image:
            stop = start + len(tensor.data)
            added |= _score_parameters(results[start:stop])
            added |= _truncation_parameters(results[start:stop])
        if ids := ",".join(filter(None, stored.ids[start:stop])):
            added["inference_id"] = ids
        if per_image:
            start = stop
        if added:
            tensor = msgspec.structs.replace(  # noqa: PLW2901 - the same output, with more
                tensor, parameters={**tensor.parameters, **added}
            )
        decorated.append(tensor)
    return decorated


def select_outputs(
    outputs: Sequence[Tensor], requested: Sequence[RequestedOutput]
) -> Sequence[Tensor]:
    """Select the requested outputs, in the order of the request; all where none is named."""
    if not requested:
        return outputs
    by_name: dict[str, list[Tensor]] = {}  # images may share a name
    for tensor in outputs:
        by_name.setdefault(tensor.name, []).append(tensor)
    names = dict.fromkeys(output.name for output in requested)
    return [tensor for name in names for tensor in by_name[name]]


def score_headers(results: Sequence[ImageResult]) -> list[tuple[str, str]]:
    """Write the response header with one semantic score per image; none if no image has one."""
    scores = _join_scores(results)
    return [(SCORE_HEADER, scores)] if scores else []


def truncation_headers(results: Sequence[ImageResult]) -> list[tuple[str, str]]:
    """Write the response header that says which images have fewer predictions than the model made."""
    entries = [
        "" if truncated is None else str(truncated.total or "true")
        for truncated in map(_truncated, results)
    ]
    return [(TRUNCATED_HEADER, ",".join(entries))] if any(entries) else []


def _truncation_parameters(results: Sequence[ImageResult]) -> dict[str, Any]:
    """Return whether a limit cut the predictions of an output's images, and how many there were, where counted."""
    truncated = [_truncated(result) for result in results]
    if not any(predictions is not None for predictions in truncated):
        return {}
    totals = ["" if cut is None or cut.total is None else str(cut.total) for cut in truncated]
    if not any(totals):
        return {"truncated": True}
    total: Any = ",".join(totals) if len(totals) > 1 else int(totals[0])
    return {"truncated": True, "total_segments": total}


def _truncated(result: ImageResult) -> TruncatedPredictions | None:
    predictions = result.predictions
    return predictions if isinstance(predictions, TruncatedPredictions) else None


def _score_parameters(results: Sequence[ImageResult]) -> dict[str, Any]:
    """Return the scores of an output's images as its parameter: a number for one image, else a text."""
    scores = _join_scores(results) if results[0].storage.semantic_score else ""
    if not scores:
        return {}
    return {"semantic_score": results[0].semantic_score if len(results) == 1 else scores}


def _join_scores(results: Sequence[ImageResult]) -> str:
    """Join scores with commas, with nothing for a missing one; empty where all are missing."""
    scores = [result.semantic_score for result in results]
    if scores.count(None) == len(scores):
        return ""
    return ",".join("" if score is None else f"{score:g}" for score in scores)
