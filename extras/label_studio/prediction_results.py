"""Predictions of this server as one prediction of Label Studio.

Source: Label Studio, "Import pre-annotated data into Label Studio".
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quadriga.extras.label_studio.label_config import Control
from quadriga.store.exchange.formats.label_studio import region_of
from quadriga.store.exchange.predictions import label_of, score_of


class TaskPrediction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prediction for one task."""

    result: list[dict[str, Any]]
    model_version: str
    """Name and version of the model, as `squares@2`."""
    score: float | None = None
    """Mean score of the results; none without any."""
    left_out: dict[str, int] = {}
    """Predictions that the control cannot take, by the reason."""


def task_prediction(
    predictions: Sequence[Mapping[str, Any]],
    control: Control,
    size_wh: tuple[int, int],
    model_version: str,
) -> TaskPrediction:
    """Return predictions as results of a control; what it cannot take is left out, and counted.

    Of a classifier the best class that the control has is taken.

    Args:
        predictions: Predictions in the form of the wire, pixels of the image.
        control: Control of the labeling interface.
        size_wh: Width and height of the image, pixels.
        model_version: Name and version of the model.
    """
    left_out: dict[str, int] = {}
    results, scores = [], []
    items = (
        sorted(predictions, key=_score, reverse=True) if control.tag == "Choices" else predictions
    )
    for number, item in enumerate(items):
        reason, value = _value(item, control, size_wh)
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        score = score_of(item)
        results.append(_result(number, control, value, size_wh=size_wh, score=score))
        if score is not None:
            scores.append(score)
        if control.tag == "Choices":
            break
    return TaskPrediction(
        result=results,
        model_version=model_version,
        score=sum(scores) / len(scores) if scores else None,
        left_out=left_out,
    )


def _score(item: Mapping[str, Any]) -> float:
    return score_of(item) or 0.0


def _value(
    item: Mapping[str, Any], control: Control, size_wh: tuple[int, int]
) -> tuple[str, dict[str, Any]]:
    """Return why an item is left out, empty if it is not, and the value of its result."""
    label = label_of(item)
    if label is None:
        return "without a label", {}
    if label not in control.labels:
        return "label not in the labeling interface", {}
    region = region_of(dict(item), size_wh)
    if region is None or region[0] != control.tag:
        return "without a shape of the control", {}
    value = region[1]
    if value.get("rotation") and not control.can_rotate:
        return "turned, and the control has canRotate false", {}
    return "", {**value, control.tag.lower(): [label]}


def _result(
    number: int,
    control: Control,
    value: dict[str, Any],
    size_wh: tuple[int, int],
    score: float | None,
) -> dict[str, Any]:
    width, height = size_wh
    return {
        "id": f"r{number}",
        "type": control.tag.lower(),
        "from_name": control.name,
        "to_name": control.to_name,
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
        "value": value,
        **({} if score is None else {"score": score}),
    }
