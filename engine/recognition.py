"""What is this model, and why: from files to a `ModelSpec`, each field with its reason.

A field is decided by the first layer that has it: model.toml, sidecar files, ONNX metadata, what is
known of the family, shapes, default. The family is found by `engine.rules`. Where two readings are
possible nothing is guessed: the error names them and the line to write.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from engine import rules
from engine.evidence import (
    Evidence,
    channels_axis,
    gather,
    labels_from,
    literal,
    read_labels,
)
from engine.families import FAMILIES, Family
from engine.model_toml import ModelToml, RuntimeOptions, StoreOptions, read_model_toml
from engine.session import LoadError, Session
from engine.sidecars import input_from_preprocessor
from engine.timm_config import input_from_timm
from proto.messages import TensorInfo
from tasks import SHORT_NAMES, TASKS
from tasks.specification import Defaults, InputSpec, ModelSpec, OutputSpec, Resize

TENSOR = "TENSOR"
ANY_SIZE = (320, 320)
"""Size of the warm-up's image where a model takes images of any size."""

_CHOICES = {"resize": f"; one of {', '.join(get_args(Resize))}", "size_wh": ": [width, height]"}

Layer = tuple[str, Mapping[str, Any]]
"""Reason, and the fields that it gives."""


class Decision(msgspec.Struct, frozen=True):
    """One field, what was decided, and why."""

    field: str
    value: Any
    reason: str


class Recognition(msgspec.Struct, frozen=True):
    """Everything decided about one model."""

    task: str
    family: str
    """Empty where model.toml describes the model itself, and for `TENSOR`."""
    spec: ModelSpec | None
    """None for `TENSOR`."""
    runtime: RuntimeOptions
    store: StoreOptions
    decisions: tuple[Decision, ...]


def recognise(
    folder: Path,
    session: Session,
    score_threshold: float | None = None,
    over: Mapping[str, Any] | None = None,
) -> Recognition:
    """Decide what a model is.

    Args:
        folder: The folder of the ONNX file, with model.toml and sidecar files.
        session: The loaded model.
        score_threshold: The server's default, where the model says nothing.
        over: What goes before the folder's model.toml.

    Raises:
        LoadError: model.toml is wrong, a field is given nowhere, or two readings are possible.
    """
    written = read_model_toml(folder, over)
    evidence = gather(folder, session)
    task = _written_task(written)
    name, reason = ("", "") if task == TENSOR else _family(written, evidence, task, folder)
    if task is None:
        task = FAMILIES[name].task if name else TENSOR
    decisions = [Decision("task", task, _task_reason(written, name))]
    if task == TENSOR:
        return Recognition(task, "", None, written.runtime, written.store, tuple(decisions))
    if name:
        decisions.append(Decision("family", name, reason))
    family = FAMILIES.get(name, Family(task, ""))
    image = _image_tensor(evidence, written, task)
    spec = ModelSpec(
        task=task,
        input=_input(decisions, written, evidence, family, image),
        output=_output(decisions, written, evidence, family),
        labels=_labels(decisions, written, evidence, family, folder),
        defaults=_defaults(decisions, written, family, score_threshold),
        tiling=written.tiling,
    )
    return Recognition(task, name, spec, written.runtime, written.store, tuple(decisions))


def _task_reason(written: ModelToml, family: str) -> str:
    if written.task is not None:
        return "model.toml"
    return f"family {family}" if family else "nothing says what the model is for"


def _written_task(written: ModelToml) -> str | None:
    if written.task is None:
        return None
    task = SHORT_NAMES.get(written.task.lower(), written.task.upper())
    if task not in (*TASKS, TENSOR):
        known = ", ".join(SHORT_NAMES)
        raise LoadError(f"expected task in model.toml to be one of {known}, got {written.task!r}")
    return task


def _family(
    written: ModelToml, evidence: Evidence, task: str | None, folder: Path
) -> tuple[str, str]:
    """Find the family and the reason; empty where model.toml says enough, or nothing says any."""
    if written.family is not None:
        if written.family not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise LoadError(
                f"expected family in model.toml to be one of {known}, got {written.family!r}"
            )
        return written.family, "model.toml"
    reading = rules.readings(evidence)
    if reading is None:
        return "", ""
    possible = [name for name in reading.families if task in (None, FAMILIES[name].task)]
    fitting = [name for name in possible if _fits_labels(name, written, evidence, folder)]
    if len(possible) == 1:
        return possible[0], reading.reason
    if len(fitting) == 1:
        return fitting[0], f"{reading.reason}, and the number of labels"
    described = task is not None and ("resize" in written.input or "decoder" in written.output)
    if not reading.families and task is None:
        raise LoadError(
            f"expected a task that is served, got another one ({reading.reason}). "
            'task = "tensor" in model.toml gives its tensors as they are'
        )
    if described or not possible:
        return "", ""
    raise LoadError(_question(possible, reading, evidence))


def _fits_labels(name: str, written: ModelToml, evidence: Evidence, folder: Path) -> bool:
    """Tell whether the number of labels, where there are any, is the one that the family shows."""
    labels = _given_labels(written, evidence, folder)
    count = _class_count(FAMILIES[name], evidence)
    return labels is None or count is None or len(labels[0]) == count


def _question(possible: Sequence[str], reading: rules.Reading, evidence: Evidence) -> str:
    """Say what the model may be, and the lines of which a person must write one."""
    lines = []
    for name in possible:
        count = _class_count(FAMILIES[name], evidence)
        classes = f", {count} {'class' if count == 1 else 'classes'}" if count else ""
        lines.append(f'  family = "{name}"  # {FAMILIES[name].about}{classes}')
    lines.append('  task = "tensor"  # tensors in and out, as they are')
    return (
        f"the files do not tell what this model is ({reading.reason}). "
        "Write one of these lines in model.toml:\n" + "\n".join(lines)
    )


def _image_tensor(evidence: Evidence, written: ModelToml, task: str) -> TensorInfo:
    wanted = written.input.get("name")
    names = ", ".join(tensor.name for tensor in evidence.inputs)
    if wanted is None:
        found = evidence.image_input()
        if found is None:
            raise LoadError(
                f"expected one input with 4 dimensions and 1 or 3 channels for {task}, got {names}: "
                "name the image's in model.toml, [input] name"
            )
        return found
    for tensor in evidence.inputs:
        if tensor.name == wanted:
            if channels_axis(tensor) is None:
                raise LoadError(
                    f"expected input {wanted!r} to be FP32, FP16 or UINT8 with 1 or 3 channels, "
                    f"got {tensor.datatype} {list(tensor.shape)}"
                )
            return tensor
    raise LoadError(f"expected [input] name in model.toml to be one of {names}, got {wanted!r}")


def _layered(
    decisions: list[Decision], table: str, struct: type[msgspec.Struct], layers: Sequence[Layer]
) -> dict[str, Any]:
    """Take each field of a struct from the first layer that has it."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        for reason, layer in layers:
            if field.name in layer or field.encode_name in layer:
                values[field.name] = layer.get(field.name, layer.get(field.encode_name))
                decisions.append(
                    Decision(f"{table}.{field.encode_name}", values[field.name], reason)
                )
                break
    return values


def _input(
    decisions: list[Decision],
    written: ModelToml,
    evidence: Evidence,
    family: Family,
    image: TensorInfo,
) -> InputSpec:
    graph, fixed = _graph_input(image, written)
    if "size" in written.input and fixed and tuple(written.input["size"]) != fixed["size_wh"]:
        raise LoadError(
            f"expected [input] size in model.toml to be {list(fixed['size_wh'])} (width, height) as in "
            f"the file, got {list(written.input['size'])}"
        )
    values = _layered(
        decisions,
        "input",
        InputSpec,
        [
            ("shape of the input", fixed),
            ("model.toml", written.input),
            ("preprocessor_config.json", _preprocessed(evidence)),
            ("config.json of timm", input_from_timm(evidence.config)),
            ("ONNX metadata of Ultralytics", _ultralytics_input(evidence, family, fixed)),
            (f"family: {family.about}", family.input),
            ("input of the graph", graph),
        ],
    )
    if values.get("resize") == "none":
        values.setdefault("size_wh", ANY_SIZE)
    for name in ("resize", "size_wh"):
        if name not in values:
            shown = name.removesuffix("_wh")
            raise LoadError(
                f"expected [input] {shown} in model.toml, as nothing else gives it{_CHOICES[name]}"
            )
    values["size_wh"] = tuple(values["size_wh"])
    for name in ("mean", "std"):
        if name in values:
            values[name] = tuple(values[name])
            if len(values[name]) < graph["channels"]:
                raise LoadError(
                    f"expected {graph['channels']} values in input.{name}, got {len(values[name])}"
                )
    if not all(values.get("std", ())):
        raise LoadError(f"expected [input] std without 0, as it divides, got {list(values['std'])}")
    return InputSpec(**values)


def _preprocessed(evidence: Evidence) -> dict[str, Any]:
    return input_from_preprocessor(evidence.preprocessor) if evidence.preprocessor else {}


def _graph_input(
    image: TensorInfo, written: ModelToml
) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """Read the fields that the graph's input shows, and its size where it is fixed."""
    axis = -3 if written.input.get("layout") == "nchw" else channels_axis(image)
    axis = -1 if written.input.get("layout") == "nhwc" else axis
    height, width = image.shape[-2:] if axis == -3 else image.shape[-3:-1]
    channels = image.shape[axis or -3]
    fields = {
        "name": image.name,
        "layout": "nchw" if axis == -3 else "nhwc",
        "dtype": {"FP32": "float32", "FP16": "float16", "UINT8": "uint8"}[image.datatype],
        "channels": channels if channels in (1, 3) else 3,
        "batch_axis": len(image.shape) == 4,
    }
    fixed = {"size_wh": (width, height)} if width > 0 and height > 0 else {}
    return fields, fixed


def _ultralytics_input(
    evidence: Evidence, family: Family, fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Read the input that Ultralytics' metadata gives for an export of open size.

    Its own program then aims at 640 whatever the export says, and pads to the smallest rectangle;
    RT-DETR is stretched all the same. Classifiers keep their size, and the ratio of the image only
    where they are square.
    """
    metadata = evidence.metadata
    if "task" not in metadata or "stride" not in metadata:
        return {}
    if metadata["task"] == "classify":
        return _ultralytics_classifier(literal(metadata.get("imgsz", "")), fixed)
    if fixed:
        return {}
    if family.input.get("resize") == "stretch":
        return {"size_wh": (640, 640)}
    stride = int(metadata["stride"]) if metadata["stride"].isdecimal() else 32
    return {"size_wh": (640, 640), "resize": "letterbox_rect", "divisor": stride}


def _ultralytics_classifier(size: Any, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Read the input of a classifier from `imgsz`, height and width.

    Source: Ultralytics 8.4, `data/augment.py` classify_transforms.
    """
    fields = dict(fixed)
    if not fixed and isinstance(size, list) and len(size) == 2:
        fields = {"size_wh": (size[1], size[0])}
    if fields and fields["size_wh"][0] != fields["size_wh"][1]:
        fields["resize"] = "stretch"
    return fields


def _output(
    decisions: list[Decision], written: ModelToml, evidence: Evidence, family: Family
) -> OutputSpec:
    layers: list[Layer] = [
        ("model.toml", written.output),
        (f"family: {family.about}", family.output),
    ]
    if family.task == "IMAGE_CLASSIFICATION":
        layers.append(_activation(evidence))
    values = _layered(decisions, "output", OutputSpec, layers)
    if family.task != "IMAGE_CLASSIFICATION" and "decoder" not in values:
        raise LoadError("expected [output] decoder in model.toml, as nothing else gives it")
    return msgspec.convert(values, OutputSpec)


def _activation(evidence: Evidence) -> Layer:
    """Decide what is still to be applied to a classifier's output; never twice what the graph did."""
    first = evidence.outputs[0].name
    producer = evidence.producers.get(first, "")
    if producer in ("Softmax", "Sigmoid"):
        return f"operator behind {first!r} is {producer}", {"activation": "none"}
    if evidence.config.get("problem_type") == "multi_label_classification":
        return "config.json, problem_type", {"activation": "sigmoid"}
    return f"operator behind {first!r} is {producer or 'unknown'}", {"activation": "softmax"}


def _class_count(family: Family, evidence: Evidence) -> int | None:
    """Read the number of classes off an output's shape, where the family shows it."""
    if family.classes is None:
        return None
    output, axis, others = family.classes
    if output >= len(evidence.outputs) or axis >= len(evidence.outputs[output].shape):
        return None
    size = evidence.outputs[output].shape[axis]
    return size - others if size > others else None


def _given_labels(
    written: ModelToml, evidence: Evidence, folder: Path
) -> tuple[tuple[str, ...], str] | None:
    """Find the class labels and where they stand."""
    if isinstance(written.labels, str):
        return read_labels(folder / written.labels), f"model.toml, file {written.labels}"
    sources: list[tuple[Any, str]] = [
        (labels_from(written.labels), "model.toml"),
        (evidence.labels, f"file {evidence.labels_file}"),
        (labels_from(evidence.config.get("id2label")), "config.json, id2label"),
        (labels_from(evidence.config.get("label_names")), "config.json, label_names"),
        (labels_from(evidence.config.get("class_labels")), "config.json, class_labels"),
        (labels_from(evidence.metadata.get("names", "")), "ONNX metadata, names"),
    ]
    return next(((labels, reason) for labels, reason in sources if labels), None)


def _labels(
    decisions: list[Decision],
    written: ModelToml,
    evidence: Evidence,
    family: Family,
    folder: Path,
) -> tuple[str, ...]:
    count = _class_count(family, evidence)
    if family.task == "IMAGE_CLASSIFICATION" and count is None:
        count = evidence.outputs[0].shape[-1] if evidence.outputs[0].shape[-1] > 0 else None
    given = _given_labels(written, evidence, folder)
    if given is None:
        if count is None:
            raise LoadError("expected labels in model.toml or a file labels.txt, got none")
        given = tuple(f"class_{index}" for index in range(count)), "no names given"
    labels, reason = given
    if count is not None and len(labels) != count:
        raise LoadError(
            f"expected {count} labels, as the model has classes, got {len(labels)} ({reason})"
        )
    decisions.append(Decision("labels", len(labels), reason))
    return labels


def _defaults(
    decisions: list[Decision], written: ModelToml, family: Family, score_threshold: float | None
) -> Defaults:
    server = {} if score_threshold is None else {"score_threshold": score_threshold}
    layers: list[Layer] = [
        ("model.toml", written.defaults),
        ("setting of the server", server),
        (f"family: {family.about}", family.defaults),
    ]
    return Defaults(**_layered(decisions, "defaults", Defaults, layers))
