"""Images with predictions and annotations, for tests of evaluations."""

from typing import Any

import msgspec

from quadriga.monitor.evaluation.evaluators import Evaluator, build_state
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationState, merge_states
from quadriga.monitor.report.schema import Report
from tests.reports import raw


def wire_image(name: Any, predictions: Any, truths: Any, *size: int, **more: Any) -> EvaluatedImage:
    """Return an image with or without width and height, decoded as from the wire."""
    return EvaluatedImage(str(name), raw(predictions), raw(truths), *size, **more)


def state_of_shards(
    evaluator: Evaluator, images: list[EvaluatedImage], shards: int = 1, by: Any = ()
) -> EvaluationState:
    """Divide images into shards, and return the merged state."""
    return merge_states([build_state(evaluator, images[at::shards], by) for at in range(shards)])


def stable_report(report: Report) -> Report:
    """Return a report without the fields that depend on when and how it was computed."""
    return msgspec.structs.replace(report, id="", created="", provenance={})
