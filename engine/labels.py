"""The labels of a model's classes: where they stand, and whether there are as many as classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.evidence import Evidence, labels_from, read_labels, rf_detr_names
from engine.families import Family
from engine.model_toml import ModelToml
from engine.session import LoadError
from proto.messages import TensorInfo
from tasks import SHORT_NAMES
from tasks.specification import OutputSpec

_RF_DETR_NAMES = "ONNX metadata, rfdetr_inference"
_RF_DETR = ("rf_detr", "rf_detr_segment")
"""Decoders of heads with one class more than there are names. Source: RF-DETR, `docs/exports/onnx`."""
_CONFIG_LABELS = ("id2label", "label_names", "class_labels")
_WRITE_LABELS = (
    'Write labels = ["first class", "second class"] in model.toml, in the order of the classes, or a file '
    "labels.txt with one label a line"
)


def given_labels(
    written: ModelToml, evidence: Evidence, folder: Path
) -> tuple[tuple[str, ...], str] | None:
    """Find the class labels and where they stand.

    Raises:
        LoadError: What stands there names no classes.
    """
    sources: list[tuple[Any, str]] = [(written.labels, "model.toml, labels")]
    if isinstance(written.labels, str):
        sources = [(read_labels(folder / written.labels), f"model.toml, file {written.labels}")]
    sources += [
        (evidence.labels, f"file {evidence.labels_file}"),
        *((evidence.config.get(n) or None, f"config.json, {n}") for n in _CONFIG_LABELS),
        (rf_detr_names(evidence.metadata), _RF_DETR_NAMES),
        (evidence.metadata.get("names"), "ONNX metadata, names"),
    ]
    given = next((source for source in sources if source[0] is not None), None)
    if given is None:
        return None
    labels = labels_from(given[0])
    if labels is None:
        raise LoadError(
            f"expected class names in {given[1]}, as a list or with their numbers, got {given[0]!r:.100}. "
            f"{_WRITE_LABELS}"
        )
    numbers = sum(label == f"class_{number}" for number, label in enumerate(labels))
    return labels, f"{given[1]}, {numbers} without a name" if numbers else given[1]


def decide_labels(
    given: tuple[tuple[str, ...], str] | None,
    evidence: Evidence,
    family: Family,
    output: OutputSpec,
) -> tuple[tuple[str, ...], str]:
    """Decide the label of each class, with the reason, from what `given_labels` found.

    Raises:
        LoadError: There are none, or not as many as the model has classes.
    """
    count = class_count(family, evidence)
    if family.task == "IMAGE_CLASSIFICATION" and count is None:
        count = evidence.outputs[0].shape[-1] if evidence.outputs[0].shape[-1] > 0 else None
    if given is None and family.task not in SHORT_NAMES.values():
        return (), "none given"
    if given is None:
        if count is None:
            raise LoadError(
                "expected labels, as neither names nor number of the classes stand in the files, got none. "
                f"{_WRITE_LABELS}"
            )
        names = tuple(f"class_{index}" for index in range(count - output.label_offset))
        given = names, "no names given"
    labels, reason = given
    extra = output.label_offset + (output.background == len(labels))
    if count is not None and len(labels) + extra != count:
        if family.output.get("decoder") in _RF_DETR and extra == 0 and len(labels) + 1 == count:
            raise LoadError(
                f"the files do not tell which of the {count} classes of RF-DETR is for nothing, as there are "
                f"{len(labels)} labels ({reason}): the last, where the training counted categories from 0, or "
                "the first, where from 1. Write one of these lines in model.toml, [output]:\n"
                f"  background = {len(labels)}  # the last\n  label_offset = 1  # the first"
            )
        raise LoadError(
            f"expected {count - extra} labels, as the model has classes, got {len(labels)} ({reason})"
        )
    return labels, reason


def class_count(family: Family, evidence: Evidence) -> int | None:
    """Read the number of classes off an output's shape, where the family shows it."""
    if family.classes is None:
        return None
    output, axis, others = family.classes
    outputs: Sequence[TensorInfo] = evidence.outputs
    decoder = family.output.get("decoder")
    if decoder == "ultralytics_segment":  # in any order, by their axes
        outputs = sorted(outputs, key=lambda tensor: len(tensor.shape))
    elif decoder in _RF_DETR:  # as above, by their names
        outputs = sorted(outputs, key=lambda tensor: tensor.name)
    if output >= len(outputs) or axis >= len(outputs[output].shape):
        return None
    size = outputs[output].shape[axis]
    return size - others if size > others else None


def rf_detr_background(evidence: Evidence, family: Family) -> tuple[str, dict[str, int]]:
    """Find the class for nothing where the file numbers its classes: the one behind them."""
    names = labels_from(rf_detr_names(evidence.metadata)) or ()
    count = class_count(family, evidence) if family.output.get("decoder") in _RF_DETR else None
    known = bool(names) and count == len(names) + 1
    return _RF_DETR_NAMES, {"background": len(names)} if known else {}
