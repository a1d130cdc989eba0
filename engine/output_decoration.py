"""Additions to a model's outputs in a response: inference ids and semantic scores; and the selection of outputs."""

from collections.abc import Sequence
from typing import Any

import msgspec

from quadriga.engine.recording import ImageResult, StoreResult
from quadriga.proto.messages import RequestedOutput, Tensor


def decorate_outputs(
    outputs: Sequence[Tensor],
    results: Sequence[ImageResult],
    stored: StoreResult,
    *,
    per_image: bool,
    with_scores: bool,
) -> list[Tensor]:
    """Add what happened in the store, and the semantic scores, to the parameters of each output.

    Args:
        outputs: The model's outputs.
        results: Of all images, in the order of the outputs' data.
        stored: What the store made of them.
        per_image: Whether an output holds one element for each image; those of a graph do not.
        with_scores: Whether scores are added where a request does not say.
    """
    decorated = []
    start = 0
    for tensor in outputs:
        added: dict[str, Any] = {} if stored.stored else {"stored": False}
        if per_image:
            stop = start + len(tensor.data)
            if ids := ",".join(filter(None, stored.ids[start:stop])):
                added["inference_id"] = ids
            added |= _score_parameters(results[start:stop], with_scores=with_scores)
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


def score_headers(results: Sequence[ImageResult], header: str) -> list[tuple[str, str]]:
    """Write the response header of this name: one semantic score per image; none where no image has one."""
    scores = _join_scores(results)
    return [(header, scores)] if scores else []


def _score_parameters(results: Sequence[ImageResult], *, with_scores: bool) -> dict[str, Any]:
    """Return the scores of an output's images as its parameter: a number for one image, else a text."""
    requested = results[0].storage.semantic_score
    scores = _join_scores(results) if (with_scores if requested is None else requested) else ""
    if not scores:
        return {}
    return {"semantic_score": results[0].semantic_score if len(results) == 1 else scores}


def _join_scores(results: Sequence[ImageResult]) -> str:
    """Join scores with commas, with nothing for a missing one; empty where all are missing."""
    scores = [result.semantic_score for result in results]
    if scores.count(None) == len(scores):
        return ""
    return ",".join("" if score is None else f"{score:g}" for score in scores)
