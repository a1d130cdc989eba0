"""Decisions about how an image becomes a model's input: each field from the first layer that has it."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from quadriga.engine.models.recognition.decisions import Decision, Layer, MissingError, decide
from quadriga.engine.models.recognition.evidence import (
    ANY_CHANNELS,
    COLOURS,
    DTYPES,
    Evidence,
    channels_axis,
    parse_literal,
)
from quadriga.engine.models.recognition.families import Family
from quadriga.engine.models.recognition.sidecars import PREPROCESSOR_FILE, input_from_timm
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.messages import TensorInfo
from quadriga.tasks.specification import INTEGERS, MAX_CHANNELS, InputSpec, Resize

WARM_UP_SIZE_WH = (320, 320)
"""Width and height of the warm-up image for a model that takes images of any size."""

_KEYS = {"size_wh": "[input] size"}
_KEEPING_RATIO = ("shortest_longest", "shortest_at_least", "none")
_CHOICES = {
    "resize": f"; one of {', '.join(get_args(Resize))}",
    "size_wh": ': [width, height], or resize = "none" for images as they are',
    "mean": ": one value a channel, after scale",
    "std": ": one value a channel, after scale",
}
_PREPROCESSOR_MISSING = f"""expected {PREPROCESSOR_FILE} beside config.json, which says how an image becomes the \
input; it is missing. Save it with AutoImageProcessor.from_pretrained(...).save_pretrained(folder), or \
write in model.toml, with the values of the training:
  [input]
  size = [640, 640]  # width, height; not where the graph fixes them
  resize = "stretch"  # one of {", ".join(get_args(Resize))}
  scale = 0.00392156862745098  # rescale_factor
  mean = [0.485, 0.456, 0.406]  # image_mean; zeros where nothing is normalised
  std = [0.229, 0.224, 0.225]  # image_std; ones where nothing is normalised"""


def decide_input(decisions: list[Decision], evidence: Evidence, family: Family) -> InputSpec:
    """Decide how an image becomes the input of a model of one graph."""
    image = _image_tensor(evidence, family.task)
    extra_layers: list[Layer] = [
        ("config.json of timm", input_from_timm(evidence.config)),
        ("ONNX metadata of Ultralytics", _ultralytics_input(evidence, family, image)),
        (f"family: {family.description}", family.input),
    ]
    has_no_default = bool(family.description) and "resize" not in family.input
    from_hugging_face = has_no_default and bool(
        {"architectures", "model_type"} & {*evidence.config}
    )
    return decide_image_input(
        decisions,
        evidence,
        image,
        extra_layers,
        has_no_default=has_no_default,
        has_image_processor=from_hugging_face,
    )


def _image_tensor(evidence: Evidence, task: str) -> TensorInfo:
    name = evidence.written.input.get("name")
    names = ", ".join(map(str, evidence.inputs))
    if name is not None and name not in [tensor.name for tensor in evidence.inputs]:
        raise LoadError(f"expected [input] name in model.toml to be one of {names}, got {name!r}")
    image = evidence.image
    if image is None:
        subject = "one input with" if name is None else f"input {name!r} to have"
        advice = (
            "" if name else "write the name of the image input in model.toml, [input] name, or "
        )
        raise LoadError(
            f"expected {subject} 4 dimensions, 1 to {MAX_CHANNELS} channels and a datatype among {', '.join(DTYPES)} "
            f"for {task}, got {names}; {advice}export it with an input of FP32 or UINT8"
        )
    return image


def decide_image_input(
    decisions: list[Decision],
    evidence: Evidence,
    image: TensorInfo,
    extra_layers: Sequence[Layer] = (),
    *,
    has_no_default: bool,
    has_image_processor: bool,
) -> InputSpec:
    """Decide how an image becomes one input.

    Args:
        decisions: List to which each field is appended with its reason.
        evidence: Contents of the model's files.
        image: The input that takes the image.
        extra_layers: Layers between the image processor's file and the graph.
        has_no_default: Whether scale, mean and std must be given, as no default suits the model.
        has_image_processor: Whether an image processor's file belongs to the model.

    Raises:
        MissingError: Nothing gives some fields.
        LoadError: A field is invalid.
    """
    written = evidence.written.input
    layout, size_wh, channels = _shape(image, written)
    fixed, constants = {"size_wh": size_wh, "channels": channels}, evidence.constants
    bits = written.get("bit_depth", 16 if image.datatype == "UINT16" else 8)
    graph = {
        "name": image.name,
        "layout": layout,
        "dtype": DTYPES[image.datatype],
        "bit_depth": bits,
        "channels": 3,
        "batch_axis": len(image.shape) == 4,
    }
    layers: list[Layer] = [
        ("shape of the input", {name: value for name, value in fixed.items() if value}),
        ("inputs of the graph", {"constants": constants} if constants else {}),
        ("model.toml", written),
        (PREPROCESSOR_FILE, evidence.preprocessing),
        *extra_layers,
        ("input of the graph", graph),
        (f"bit_depth {bits}", {"scale": 1 / (2**bits - 1)} if bits > 8 else {}),
    ]
    values = decide(decisions, "input", InputSpec, layers)
    keeps_ratio = values.get("resize") in _KEEPING_RATIO and "resize" not in written
    if size_wh and keeps_ratio:
        raise LoadError(
            f"expected a graph of open size for a resize that keeps the ratio of each image, got one of "
            f"{list(size_wh)} (width, height). Export it with dynamic axes, or write in model.toml, "
            '[input]: resize = "stretch", or "letterbox_topleft" with pad_value'
        )
    if values.get("resize") == "none":
        values.setdefault("size_wh", WARM_UP_SIZE_WH)
    has_no_scale = has_no_default and DTYPES[image.datatype] not in INTEGERS
    needed = list(_CHOICES) if has_no_scale else ["resize", "size_wh"]
    missing = {_KEYS.get(name, f"[input] {name}"): name for name in needed if name not in values}
    if missing and has_image_processor and not evidence.preprocessor:
        raise MissingError({PREPROCESSOR_FILE: _PREPROCESSOR_MISSING})
    if missing:
        reason = "is required in model.toml, as nothing else gives it"
        raise MissingError({key: f"{key} {reason}{_CHOICES[missing[key]]}" for key in missing})
    values["size_wh"] = tuple(values["size_wh"])
    for name, usual in (("mean", 0.0), ("std", 1.0)):
        values[name] = tuple(values.get(name, (usual,) * max(values["channels"], 3)))
    _check(values)
    return InputSpec(**values)


def _shape(
    image: TensorInfo, written: Mapping[str, Any]
) -> tuple[str, tuple[int, int] | None, int | None]:
    """Read layout, (width, height) and channels of an input.

    Size and channels are None if the graph leaves them open.
    """
    axis = channels_axis(image) or channels_axis(image, ANY_CHANNELS)
    axis = {"nchw": -3, "nhwc": -1}.get(written.get("layout", ""), axis)
    height, width = image.shape[-2:] if axis == -3 else image.shape[-3:-1]
    channels = image.shape[axis or -3]
    if channels > MAX_CHANNELS:
        raise LoadError(
            f"expected input {image.name!r} to have at most {MAX_CHANNELS} channels, got {channels} in "
            f"{list(image.shape)}"
        )
    size_wh = (width, height) if width > 0 and height > 0 else None
    fixed = {"size": size_wh and [*size_wh], "channels": channels if channels > 0 else None}
    for key, value in fixed.items():
        if value and written.get(key, value) != value:
            raise LoadError(
                f"expected [input] {key} in model.toml to be {value} as in the file, got {written[key]}"
            )
    return "nchw" if axis == -3 else "nhwc", size_wh, channels if channels > 0 else None


def _check(values: Mapping[str, Any]) -> None:
    channels = values["channels"]
    for name in ("mean", "std"):
        if len(values[name]) < channels:
            raise LoadError(f"expected {channels} values in input.{name}, got {len(values[name])}")
    if not all(values["std"]):
        raise LoadError(f"expected [input] std without 0, as it divides, got {list(values['std'])}")
    if values.get("color") == "bgr" and channels not in COLOURS:
        raise LoadError(
            f"expected [input] color to be rgb for {channels} channels, as bands are taken in "
            "the order of the image, got bgr"
        )
    pad_value = values.get("pad_value", 0)
    if values["dtype"] in INTEGERS and not float(pad_value).is_integer():
        raise LoadError(
            f"expected [input] pad_value to be a whole number for an input of {values['dtype']}, got {pad_value}"
        )
    if values["dtype"] == "uint8" and values["bit_depth"] > 8:
        raise LoadError(
            f"expected [input] bit_depth to be 8 for an input of uint8, got {values['bit_depth']}"
        )


def _ultralytics_input(evidence: Evidence, family: Family, image: TensorInfo) -> dict[str, Any]:
    """Read the input that Ultralytics' metadata gives for an export of open size.

    Its own program then aims at 640 whatever the export says, and pads to the smallest rectangle;
    RT-DETR is stretched all the same. Classifiers keep their size, and the ratio of the image only
    where they are square.

    Source: Ultralytics 8.4; of classifiers `data/augment.py` classify_transforms.
    """
    metadata = evidence.metadata
    if "task" not in metadata or "stride" not in metadata:
        return {}
    _, fixed, _ = _shape(image, evidence.written.input)
    bands = parse_literal(metadata.get("channels", ""))
    fields: dict[str, Any] = {"channels": bands} if bands in ANY_CHANNELS else {}
    if metadata["task"] == "classify":
        size = parse_literal(metadata.get("imgsz", ""))  # height, width
        if fixed is None and isinstance(size, list) and len(size) == 2:
            fixed = size[1], size[0]
        if fixed:
            fields["size_wh"] = fixed
            fields |= {"resize": "stretch"} if fixed[0] != fixed[1] else {}
    elif fixed is None:
        fields["size_wh"] = (640, 640)
        if family.input.get("resize") != "stretch":
            stride = int(metadata["stride"]) if metadata["stride"].isdecimal() else 32
            fields |= {"resize": "letterbox_rect", "divisor": stride}
    return fields
