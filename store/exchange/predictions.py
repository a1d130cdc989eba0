"""Stored predictions and annotations as JSON objects: label, score, and the form of Chariot's annotations.

They come from models and from clients, so a field may be missing or of another type. Their geometry is in
`quadriga.tasks.predictions`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from quadriga.tasks.predictions import BOX_KEYS, ORIENTED_BOX_KEYS, numbers, shape_of_json

_objects = msgspec.json.Decoder(list[dict[str, Any]])


def decode_objects(text: Any) -> list[dict[str, Any]]:
    """Decode predictions or annotations; an empty list where they are no list of objects, as tensors."""
    try:
        return [] if text is None else _objects.decode(text)
    except msgspec.ValidationError:
        return []


def label_of(item: Mapping[str, Any]) -> str | None:
    """Return the label; None without one."""
    label = item.get("label")
    return label if isinstance(label, str) else None


def score_of(item: Mapping[str, Any]) -> float | None:
    """Return the score; None without one."""
    score = numbers(item, ["score"])
    return None if score is None else float(score[0])


def chariot_annotation(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a prediction or an annotation in the form of a line of Chariot's `annotations.jsonl`.

    A score goes into `attributes`.
    """
    label = label_of(item)
    if label is None:
        answer = item.get("answer")
        if not isinstance(answer, str):
            return None
        return {"context": str(item.get("prompt") or ""), "generated_text": answer}
    annotation: dict[str, Any] = {"class_label": label}
    shape = shape_of_json(item)
    if shape.box is not None:
        annotation["bbox"] = dict(zip(BOX_KEYS, shape.box, strict=True))
    elif shape.oriented_box is not None:
        annotation["oriented_bbox"] = dict(zip(ORIENTED_BOX_KEYS, shape.oriented_box, strict=True))
    elif shape.rings:
        annotation["contour"] = [[{"x": x, "y": y} for x, y in ring] for ring in shape.rings]
    if (score := score_of(item)) is not None:
        annotation["attributes"] = {"score": score}
    return annotation
