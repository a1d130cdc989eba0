"""The outputs of a graph that a model's task reads, and the number of classes that they show."""

from quadriga.engine.recognition.decisions import Layer
from quadriga.engine.recognition.evidence import Evidence
from quadriga.engine.recognition.families import Family
from quadriga.engine.session import LoadError
from quadriga.proto.messages import TensorInfo
from quadriga.tasks.decoders.reading import plain_name

FLOATS = ("FP32", "FP16", "FP64")
_MAIN = ("logits", "out", "output")
"""Names of the output that counts, beside auxiliary ones, hidden states and heads of teachers."""
RF_DETR = ("rf_detr", "rf_detr_segment")
"""Decoders of heads with one class more than names. Source: RF-DETR, `docs/exports/onnx`."""


def main_outputs(evidence: Evidence) -> list[TensorInfo]:
    """Return the outputs of which one alone is read; several only where nothing but their names may tell them apart."""
    outputs = list(evidence.outputs)
    heads = [tensor for tensor in outputs if len(tensor.shape) == 3 and tensor.datatype in FLOATS]
    others = {len(tensor.shape) for tensor in outputs if tensor not in heads}
    if heads and others <= {5}:
        outputs = heads  # beside their own maps, as YOLOv5 and YOLOv7 export them
    is_one = len({tensor.shape for tensor in outputs}) == 1 and others <= {4, 5}
    named = [tensor for tensor in outputs if plain_name(tensor.name) in _MAIN]
    if len(named) == 1 and (is_one or len(named[0].shape) != 3):
        return named
    return outputs if is_one or len(outputs) == 1 else []


def row_shape(evidence: Evidence) -> tuple[int, ...]:
    """Return the shape of a classifier's first output for one image: without the batch axis, if it has one."""
    shape = evidence.outputs[0].shape
    return shape if len(shape) == 1 and shape[0] not in (-1, 1, evidence.batch) else shape[1:]


def class_count(family: Family, evidence: Evidence) -> int | None:
    """Read the number of classes from an output's shape; None if the family does not show it."""
    outputs = [*main_outputs(evidence)[:1], *evidence.outputs]
    if family.task == "IMAGE_CLASSIFICATION":
        sides = [side for side in row_shape(evidence.reading(outputs[0].name)) if side != 1] or [1]
        return sides[0] if len(sides) == 1 and sides[0] > 0 else None
    if family.classes is None:
        return None
    output, axis, extra = family.classes
    decoder = family.output.get("decoder", "")
    if decoder.endswith("_segment"):  # exports vary in order; the rank tells them apart
        outputs = sorted(evidence.outputs, key=lambda tensor: len(tensor.shape))
    if decoder in RF_DETR:  # exports vary in order; the names tell them apart
        outputs = sorted(evidence.outputs, key=lambda tensor: tensor.name)
    elif decoder == "semantic_logits" and evidence.maps_layout()[0] == "nhwc":
        axis = 3
    if output >= len(outputs) or axis >= len(outputs[output].shape):
        return None
    size = outputs[output].shape[axis]
    return size - extra if size > extra else None


def activation_in_graph(evidence: Evidence, name: str) -> Layer:
    """Decide the activation that scores still need by the operator behind them, so that none is applied twice."""
    operator = evidence.producers.get(name) or "unknown"
    activation = "none" if operator in ("Softmax", "Sigmoid") else "softmax"
    return f"operator behind {name!r} is {operator}", {"activation": activation}


def check_activation(operator: str) -> None:
    """Refuse to guess the activation of scores that arithmetic made of probabilities, such as `Mul of Sigmoid`.

    Raises:
        LoadError: The operator behind the scores is such arithmetic; it says what to write.
    """
    if " of " in operator:
        raise LoadError(
            f"activation is required in model.toml, [output], as the scores are {operator}: "
            '"none" if they are probabilities, else "softmax" or "sigmoid"'
        )
