"""The outputs of a graph that a model's task reads, and the number of classes that they show."""

import json
from collections.abc import Sequence

from quadriga.engine.recognition.evidence import Evidence
from quadriga.engine.recognition.families import Family
from quadriga.engine.session import LoadError
from quadriga.proto.messages import TensorInfo
from quadriga.tasks.decoders import OF_ONE_OUTPUT, is_table
from quadriga.tasks.decoders.reading import plain_name
from quadriga.tasks.segmenters import OF_MAPS

FLOATS = ("FP32", "FP16", "FP64")
_MAIN = ("logits", "out", "output")
"""Names of the output that counts, beside auxiliary ones, hidden states and heads of teachers."""
_OF_SEVERAL = ("birefnet", "u2net")
"""Segmenters that take the last, or the first, of the maps of one object."""
RF_DETR = ("rf_detr", "rf_detr_segment")
"""Decoders of heads with one class more than names. Source: RF-DETR, `docs/exports/onnx`."""
_CLASSIFIER = "IMAGE_CLASSIFICATION"


def main_output(evidence: Evidence) -> TensorInfo | None:
    """Return the output that shapes are looked up for; None where several are read together, or none is known to count."""
    outputs = evidence.outputs
    heads = [tensor for tensor in outputs if len(tensor.shape) == 3 and tensor.datatype in FLOATS]
    named = _named(outputs)
    if len(outputs) == 1 or (len(named) == 1 and len(named[0].shape) != 3):
        return (named or outputs)[0]
    others = {len(tensor.shape) for tensor in outputs if tensor not in heads}
    if len({tensor.shape for tensor in heads}) == 1 and others <= {5}:
        return heads[0]  # beside its own maps, as YOLOv5 and YOLOv7 export them
    maps = {tensor.shape for tensor in outputs}
    return outputs[0] if len(maps) == 1 and others == {4} else None


def _named(outputs: Sequence[TensorInfo]) -> list[TensorInfo]:
    return [tensor for tensor in outputs if plain_name(tensor.name) in _MAIN]


def choose_outputs(
    evidence: Evidence, family: Family, decoder: str, label_count: int | None
) -> tuple[Evidence, str]:
    """Choose the output of several that is read: by its axes, by the number of labels, and by its name.

    Returns:
        The evidence with the chosen outputs alone, and the reason; as it was where all are read.

    Raises:
        LoadError: Several fit; it names the lines to write.
    """
    outputs = evidence.outputs
    axes = {_CLASSIFIER: 1}.get(family.task)
    if decoder in OF_ONE_OUTPUT or is_table(decoder):
        axes = 2
    elif decoder in OF_MAPS and decoder not in _OF_SEVERAL:
        axes = 3 if decoder == "semantic_logits" else 2
    if decoder == "labelled_boxes":
        return _choose_boxes(evidence)
    if axes is None or len(outputs) == 1:
        return evidence, ""
    sides = {t.name: sum(side != 1 for side in t.shape[1:]) for t in outputs}
    fitting = [t for t in outputs if sides[t.name] == axes or (axes == 1 and not sides[t.name])]
    counted = [t for t in fitting if label_count == class_count(family, evidence.reading(t.name))]
    if label_count and counted:
        fitting = counted
    named = _named(fitting)
    if len(named) == 1:
        return evidence.reading(named[0].name), "name of the output"
    if len(fitting) > 1:
        raise _tie([(json.dumps(t.name), str(list(t.shape))) for t in fitting])
    return (evidence.reading(fitting[0].name), "shape of the output") if fitting else (evidence, "")


def _tie(choices: Sequence[tuple[str, str]]) -> LoadError:
    lines = "\n".join(f"  name = {name}  # {meaning}" for name, meaning in choices)
    return LoadError(
        "cannot tell which output of the graph is read. Write one of these lines in model.toml, "
        f"[output]:\n{lines}"
    )


def _choose_boxes(evidence: Evidence) -> tuple[Evidence, str]:
    """Choose boxes, labels and scores of as many rows, where exporters number the outputs or add the image's size."""
    outputs = evidence.outputs
    boxes = [t for t in outputs if t.shape[-1:] == (4,) and t.datatype in FLOATS]
    if {"boxes", "labels", "scores"} <= {tensor.name for tensor in outputs} or len(boxes) != 1:
        return evidence, ""
    of_length = [tensor for tensor in outputs if tensor.shape == boxes[0].shape[:-1]]
    scores = [tensor for tensor in of_length if tensor.datatype in FLOATS]
    labels = [tensor for tensor in of_length if tensor.datatype not in FLOATS]
    labels = [t for t in labels if "class" in t.name or "label" in t.name] or labels
    pairs = [(boxes[0].name, label.name, score.name) for label in labels for score in scores]
    if len(pairs) > 1:
        raise _tie([(json.dumps(pair), "boxes, labels, scores") for pair in pairs])
    return (evidence.reading(pairs[0]), "lengths of the outputs") if pairs else (evidence, "")


def class_count(family: Family, evidence: Evidence) -> int | None:
    """Read the number of classes from an output's shape; None if the family does not show it."""
    outputs: Sequence[TensorInfo] = evidence.outputs
    if family.task == _CLASSIFIER:
        sides = [side for side in outputs[0].shape[1:] or outputs[0].shape if side != 1] or [1]
        return sides[0] if len(sides) == 1 and sides[0] > 0 else None
    if family.classes is None:
        return None
    output, axis, extra = family.classes
    decoder = family.output.get("decoder", "")
    if decoder.endswith("_segment"):  # exports vary in order; the rank tells them apart
        outputs = sorted(outputs, key=lambda tensor: len(tensor.shape))
    if decoder in RF_DETR:  # exports vary in order; the names tell them apart
        outputs = sorted(outputs, key=lambda tensor: tensor.name)
    elif decoder == "semantic_logits" and evidence.maps_layout()[0] == "nhwc":
        axis = 3
    if output >= len(outputs) or axis >= len(outputs[output].shape):
        return None
    size = outputs[output].shape[axis]
    return size - extra if size > extra else None
