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
from engine.evidence import COLOURS, DTYPES, Evidence, channels_axis, gather, literal
from engine.families import FAMILIES, Family
from engine.labels import class_count, decide_labels, given_labels, rf_detr_background
from engine.model_toml import (
    DECODED,
    ModelToml,
    MonitorOptions,
    RuntimeOptions,
    StoreOptions,
    check_use,
    read_model_toml,
)
from engine.session import LoadError, Session
from engine.sidecars import FILE as PREPROCESSOR
from engine.sidecars import input_from_preprocessor, input_from_timm
from proto.messages import TensorInfo
from tasks import SHORT_NAMES, TASKS, full_name
from tasks.specification import MAX_CHANNELS, Defaults, InputSpec, ModelSpec, OutputSpec, Resize

TENSOR = "TENSOR"
ANY_SIZE = (320, 320)
"""Size of the warm-up's image where a model takes images of any size."""

_ANY_CHANNELS = range(1, MAX_CHANNELS + 1)
_CHOICES = {
    "resize": f"; one of {', '.join(get_args(Resize))}",
    "size_wh": ": [width, height]",
    "mean": ": one value a channel, after scale",
    "std": ": one value a channel, after scale",
}
PREPROCESSOR_MISSING = f"""expected {PREPROCESSOR} beside config.json, as it says how an image becomes the \
input, got no such file. Save it with AutoImageProcessor.from_pretrained(...).save_pretrained(folder), or \
write in model.toml, with the values of the training:
  [input]
  size = [640, 640]  # width, height; not where the graph fixes them
  resize = "stretch"  # one of {", ".join(get_args(Resize))}
  scale = 0.00392156862745098  # rescale_factor
  mean = [0.485, 0.456, 0.406]  # image_mean; zeros where nothing is normalised
  std = [0.229, 0.224, 0.225]  # image_std; ones where nothing is normalised"""

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
    monitor: MonitorOptions = MonitorOptions()


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
        if not name:
            _check_own_decoder(written)
        task = FAMILIES[name].task if name else TENSOR
    decisions = [Decision("task", task, _task_reason(written, name))]
    if task == TENSOR:
        check_use(written, task, "")
        return Recognition(
            task, "", None, written.runtime, written.store, tuple(decisions), written.monitor
        )
    if name:
        decisions.append(Decision("family", name, reason))
    family = FAMILIES.get(name, Family(task, ""))
    image = _image_tensor(evidence, written, task)
    image_input = _input(decisions, written, evidence, family, image)
    output = _output(decisions, written, evidence, family)
    check_use(written, task, output.decoder)
    labels, why = decide_labels(given_labels(written, evidence, folder), evidence, family, output)
    decisions.append(Decision("labels", len(labels), why))
    spec = ModelSpec(
        task=task,
        input=image_input,
        output=output,
        labels=labels,
        defaults=_defaults(decisions, written, family, score_threshold),
        tiling=written.tiling,
    )
    return Recognition(
        task, name, spec, written.runtime, written.store, tuple(decisions), written.monitor
    )


def _task_reason(written: ModelToml, family: str) -> str:
    if written.task is not None:
        return "model.toml"
    return (
        f"family {family}"
        if family
        else "nothing says what the model is for; task in model.toml would"
    )


def _written_task(written: ModelToml) -> str | None:
    if written.task is None or ":" in written.task:
        return written.task
    task = full_name(written.task)
    if task not in (*TASKS, TENSOR):
        known = ", ".join(SHORT_NAMES)
        raise LoadError(
            f"expected task in model.toml to be one of {known}, or module:attribute, got {written.task!r}"
        )
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
            f"expected a task and an export that are served, got others ({reading.reason}). "
            'task = "tensor" in model.toml gives its tensors as they are'
        )
    if described or not possible:
        return "", ""
    if task is None:
        _check_own_decoder(written)
    raise LoadError(_question(possible, reading, evidence))


def _check_own_decoder(written: ModelToml) -> None:
    """Ask for the task of a decoder of one's own, where nothing else says it."""
    decoder = written.output.get("decoder", "")
    if ":" in decoder:
        raise LoadError(
            f"expected task in model.toml beside decoder {decoder!r}, as nothing else says what its answers "
            "are, got none"
        )


def _fits_labels(name: str, written: ModelToml, evidence: Evidence, folder: Path) -> bool:
    """Tell whether the number of labels, where there are any, is the one that the family shows."""
    labels = given_labels(written, evidence, folder)
    count = class_count(FAMILIES[name], evidence)
    return labels is None or count is None or len(labels[0]) == count


def _question(possible: Sequence[str], reading: rules.Reading, evidence: Evidence) -> str:
    """Say what the model may be, and the lines of which a person must write one."""
    lines = []
    for name in possible:
        count = class_count(FAMILIES[name], evidence)
        classes = f", {count} {'class' if count == 1 else 'classes'}" if count else ""
        lines.append(f'  family = "{name}"  # {FAMILIES[name].about}{classes}')
    lines.append('  task = "tensor"  # tensors in and out, as they are')
    return (
        f"the files do not tell what this model is ({reading.reason}). "
        "Write one of these lines in model.toml, beside the file:\n" + "\n".join(lines)
    )


def _image_tensor(evidence: Evidence, written: ModelToml, task: str) -> TensorInfo:
    wanted = written.input.get("name")
    names = ", ".join(tensor.name for tensor in evidence.inputs)
    if wanted is None:
        found = evidence.image_input() or evidence.image_input(_ANY_CHANNELS)
        if found is None:
            raise LoadError(
                f"expected one input with 4 dimensions and 1 to {MAX_CHANNELS} channels for {task}, "
                f"got {names}: name the image's in model.toml, [input] name"
            )
        return found
    for tensor in evidence.inputs:
        if tensor.name == wanted:
            if channels_axis(tensor, _ANY_CHANNELS) is None:
                raise LoadError(
                    f"expected input {wanted!r} to be {', '.join(DTYPES)} with 1 to {MAX_CHANNELS} "
                    f"channels, got {tensor.datatype} {list(tensor.shape)}"
                )
            return tensor
    raise LoadError(f"expected [input] name in model.toml to be one of {names}, got {wanted!r}")


def _layered(
    decisions: list[Decision], table: str, struct: type[msgspec.Struct], layers: Sequence[Layer]
) -> dict[str, Any]:
    """Take each field of a struct from the first layer that has it, and note why."""
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
    _, fixed, _ = _graph_input(image, written)
    layers: list[Layer] = [
        (PREPROCESSOR, _preprocessed(evidence)),
        ("config.json of timm", input_from_timm(evidence.config)),
        ("ONNX metadata of Ultralytics", _ultralytics_input(evidence, family, fixed)),
        (f"family: {family.about}", family.input),
    ]
    foreign = bool(family.about) and "resize" not in family.input
    needed = questions(values=foreign and image.datatype != "UINT8")
    hugging_face = not evidence.config.keys().isdisjoint(("architectures", "model_type"))
    if foreign and hugging_face and not evidence.preprocessor:
        needed = dict.fromkeys(needed, PREPROCESSOR_MISSING)
    return input_spec(decisions, written, image, layers, needed)


def questions(*, values: bool) -> dict[str, str]:
    """Give the fields of the input that no default suits, with what to say where nothing gives them.

    Args:
        values: Whether mean and standard deviation are among them.
    """
    names = ("resize", "size_wh", "mean", "std") if values else ("resize", "size_wh")
    return {
        name: f"expected [input] {name.removesuffix('_wh')} in model.toml, as nothing else gives it"
        f"{_CHOICES[name]}"
        for name in names
    }


def input_spec(
    decisions: list[Decision],
    written: ModelToml,
    image: TensorInfo,
    further: Sequence[Layer],
    needed: Mapping[str, str],
) -> InputSpec:
    """Decide how an image becomes an input tensor.

    Args:
        decisions: Each field's reason is put here.
        written: model.toml; it stands above `further`, the graph below.
        image: The input.
        further: What sidecar files and the like say.
        needed: Fields that no default suits, with what to say where no layer has them.

    Raises:
        LoadError: A field is given nowhere, or does not fit the input.
    """
    graph, fixed, channels = _graph_input(image, written)
    if "size" in written.input and fixed and tuple(written.input["size"]) != fixed["size_wh"]:
        raise LoadError(
            f"expected [input] size in model.toml to be {list(fixed['size_wh'])} (width, height) as in "
            f"the file, got {list(written.input['size'])}"
        )
    if channels and written.input.get("channels", channels["channels"]) != channels["channels"]:
        raise LoadError(
            f"expected [input] channels in model.toml to be {channels['channels']} as in the file, "
            f"got {written.input['channels']}"
        )
    layers: list[Layer] = [
        ("shape of the input", {**fixed, **channels}),
        ("model.toml", written.input),
        *further,
        ("input of the graph", graph),
    ]
    values = _layered(decisions, "input", InputSpec, layers)
    if fixed and values.get("resize") == "shortest_longest" and "resize" not in written.input:
        raise LoadError(
            f"expected a graph of open size for a resize that keeps the ratio of each image, got one of "
            f"{list(fixed['size_wh'])} (width, height). Export it with dynamic axes, or write in model.toml, "
            '[input]: resize = "stretch", or "letterbox_topleft" with pad_value'
        )
    if values.get("resize") == "none":
        if fixed and "resize" not in written.input:
            raise LoadError(
                f"expected a graph of open size for images as they are, got one of {list(fixed['size_wh'])} "
                "(width, height). Export it with dynamic axes, or write in model.toml, [input]: "
                'resize = "stretch"'
            )
        values.setdefault("size_wh", ANY_SIZE)
    missing = [question for name, question in needed.items() if name not in values]
    if missing:
        raise LoadError("\n".join(dict.fromkeys(missing)))
    values["size_wh"] = tuple(values["size_wh"])
    for name, usual in (("mean", 0.0), ("std", 1.0)):
        values[name] = tuple(values.get(name, (usual,) * max(values["channels"], 3)))
        if len(values[name]) < values["channels"]:
            raise LoadError(
                f"expected {values['channels']} values in input.{name}, got {len(values[name])}"
            )
    if not all(values["std"]):
        raise LoadError(f"expected [input] std without 0, as it divides, got {list(values['std'])}")
    _check_bands(values)
    if "scale" not in values and values["bit_depth"] > 8:
        values["scale"] = 1 / (2 ** values["bit_depth"] - 1)
        reason = f"bit_depth {values['bit_depth']}"
        decisions.append(Decision("input.scale", values["scale"], reason))
    return InputSpec(**values)


def _check_bands(values: Mapping[str, Any]) -> None:
    """Refuse orders and bits that the channels or the type of an input cannot have."""
    if values.get("color") == "bgr" and values["channels"] not in COLOURS:
        raise LoadError(
            f"expected [input] color to be rgb for {values['channels']} channels, as bands are taken in "
            "the order of the image, got bgr"
        )
    if values["dtype"] == "uint8" and values["bit_depth"] > 8:
        raise LoadError(
            f"expected [input] bit_depth to be 8 for an input of uint8, got {values['bit_depth']}"
        )


def _preprocessed(evidence: Evidence) -> dict[str, Any]:
    return input_from_preprocessor(evidence.preprocessor) if evidence.preprocessor else {}


def _graph_input(
    image: TensorInfo, written: ModelToml
) -> tuple[dict[str, Any], dict[str, tuple[int, int]], dict[str, int]]:
    """Read the fields that the graph's input shows, and its size and channels where they are fixed."""
    axis = channels_axis(image) or channels_axis(image, _ANY_CHANNELS)
    axis = {"nchw": -3, "nhwc": -1}.get(written.input.get("layout", ""), axis)
    height, width = image.shape[-2:] if axis == -3 else image.shape[-3:-1]
    channels = image.shape[axis or -3]
    if channels > MAX_CHANNELS:
        raise LoadError(
            f"expected input {image.name!r} to have at most {MAX_CHANNELS} channels, got {channels} in "
            f"{list(image.shape)}"
        )
    fields = {
        "name": image.name,
        "layout": "nchw" if axis == -3 else "nhwc",
        "dtype": DTYPES[image.datatype],
        "bit_depth": 16 if image.datatype == "UINT16" else 8,
        "channels": 3,
        "batch_axis": len(image.shape) == 4,
    }
    fixed = {"size_wh": (width, height)} if width > 0 and height > 0 else {}
    return fields, fixed, {"channels": channels} if channels > 0 else {}


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
    bands = literal(metadata.get("channels", ""))
    fields: dict[str, Any] = {"channels": bands} if bands in _ANY_CHANNELS else {}
    if metadata["task"] == "classify":
        return fields | _ultralytics_classifier(literal(metadata.get("imgsz", "")), fixed)
    if fixed:
        return fields
    if family.input.get("resize") == "stretch":
        return fields | {"size_wh": (640, 640)}
    stride = int(metadata["stride"]) if metadata["stride"].isdecimal() else 32
    return fields | {"size_wh": (640, 640), "resize": "letterbox_rect", "divisor": stride}


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
    if "label_offset" not in written.output:
        layers.append(rf_detr_background(evidence, family))
    if family.task == "IMAGE_CLASSIFICATION":
        layers.append(_activation(evidence))
    values = _layered(decisions, "output", OutputSpec, layers)
    if family.task in DECODED and "decoder" not in values:
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
    if all(
        side == 1 for side in evidence.outputs[0].shape[1:]
    ):  # of one alone a softmax is always 1
        return "one class", {"activation": "sigmoid"}
    return f"operator behind {first!r} is {producer or 'unknown'}", {"activation": "softmax"}


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
