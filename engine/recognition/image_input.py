"""How an image becomes a model's input: each field by the first of files, graph and family that has it."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from quadriga.engine.recognition.decisions import Decision, Layer, decide
from quadriga.engine.recognition.evidence import COLOURS, DTYPES, Evidence, channels_axis, literal
from quadriga.engine.recognition.families import Family
from quadriga.engine.recognition.sidecars import FILE as PREPROCESSOR
from quadriga.engine.recognition.sidecars import input_from_timm
from quadriga.engine.session import LoadError
from quadriga.proto.messages import TensorInfo
from quadriga.tasks.specification import MAX_CHANNELS, InputSpec, Resize

ANY_SIZE = (320, 320)
"""Size of the warm-up's image where a model takes images of any size."""

_ANY_CHANNELS = range(1, MAX_CHANNELS + 1)
_CHOICES = {
    "resize": f"; one of {', '.join(get_args(Resize))}",
    "size_wh": ": [width, height]",
    "mean": ": one value a channel, after scale",
    "std": ": one value a channel, after scale",
}
_PREPROCESSOR_MISSING = f"""expected {PREPROCESSOR} beside config.json, as it says how an image becomes the \
input, got no such file. Save it with AutoImageProcessor.from_pretrained(...).save_pretrained(folder), or \
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
    further: list[Layer] = [
        ("config.json of timm", input_from_timm(evidence.config)),
        ("ONNX metadata of Ultralytics", _ultralytics_input(evidence, family, image)),
        (f"family: {family.about}", family.input),
    ]
    foreign = bool(family.about) and "resize" not in family.input
    exported = foreign and not evidence.config.keys().isdisjoint(("architectures", "model_type"))
    return input_of(decisions, evidence, image, further, foreign=foreign, hugging_face=exported)


def _image_tensor(evidence: Evidence, task: str) -> TensorInfo:
    wanted = evidence.written.input.get("name")
    inputs = {tensor.name: tensor for tensor in evidence.inputs}
    names = ", ".join(inputs)
    if wanted is None:
        found = evidence.image_input() or evidence.image_input(_ANY_CHANNELS)
        if found is None:
            raise LoadError(
                f"expected one input with 4 dimensions and 1 to {MAX_CHANNELS} channels for {task}, "
                f"got {names}: name the image's in model.toml, [input] name"
            )
        return found
    if wanted not in inputs:
        raise LoadError(f"expected [input] name in model.toml to be one of {names}, got {wanted!r}")
    tensor = inputs[wanted]
    if channels_axis(tensor, _ANY_CHANNELS) is None:
        raise LoadError(
            f"expected input {wanted!r} to be {', '.join(DTYPES)} with 1 to {MAX_CHANNELS} "
            f"channels, got {tensor.datatype} {list(tensor.shape)}"
        )
    return tensor


def input_of(
    decisions: list[Decision],
    evidence: Evidence,
    image: TensorInfo,
    further: Sequence[Layer] = (),
    *,
    foreign: bool,
    hugging_face: bool,
) -> InputSpec:
    """Decide how an image becomes one input; each field's reason is put to `decisions`.

    Layers are model.toml, the image processor's file, `further`, and the graph. `foreign` says that no default
    suits what becomes of the values, `hugging_face` that an image processor's file belongs to the model.
    """
    written = evidence.written.input
    layout, size_wh, channels = _shape(image, written)
    fixed = {"size_wh": size_wh, "channels": channels}
    graph = {
        "name": image.name,
        "layout": layout,
        "dtype": DTYPES[image.datatype],
        "bit_depth": 16 if image.datatype == "UINT16" else 8,
        "channels": 3,
        "batch_axis": len(image.shape) == 4,
    }
    layers: list[Layer] = [
        ("shape of the input", {name: value for name, value in fixed.items() if value}),
        ("model.toml", written),
        (PREPROCESSOR, evidence.preprocessing),
        *further,
        ("input of the graph", graph),
    ]
    values = decide(decisions, "input", InputSpec, layers)
    as_each_is = values.get("resize") in ("shortest_longest", "none") and "resize" not in written
    if size_wh and as_each_is:
        raise LoadError(
            f"expected a graph of open size for a resize that keeps the ratio of each image, got one of "
            f"{list(size_wh)} (width, height). Export it with dynamic axes, or write in model.toml, "
            '[input]: resize = "stretch", or "letterbox_topleft" with pad_value'
        )
    if values.get("resize") == "none":
        values.setdefault("size_wh", ANY_SIZE)
    needed = list(_CHOICES) if foreign and image.datatype != "UINT8" else ["resize", "size_wh"]
    missing = [name for name in needed if name not in values]
    if missing and hugging_face and not evidence.preprocessor:
        raise LoadError(_PREPROCESSOR_MISSING)
    if missing:
        raise LoadError("\n".join(_question(name) for name in missing))
    values["size_wh"] = tuple(values["size_wh"])
    for name, usual in (("mean", 0.0), ("std", 1.0)):
        values[name] = tuple(values.get(name, (usual,) * max(values["channels"], 3)))
    _check(values)
    if "scale" not in values and values["bit_depth"] > 8:
        values["scale"] = 1 / (2 ** values["bit_depth"] - 1)
        reason = f"bit_depth {values['bit_depth']}"
        decisions.append(Decision("input.scale", values["scale"], reason))
    return InputSpec(**values)


def _question(name: str) -> str:
    key = name.removesuffix("_wh")
    return f"expected [input] {key} in model.toml, as nothing else gives it{_CHOICES[name]}"


def _shape(
    image: TensorInfo, written: Mapping[str, Any]
) -> tuple[str, tuple[int, int] | None, int | None]:
    """Read layout, width with height, and channels; None where the graph leaves them open to model.toml."""
    axis = channels_axis(image) or channels_axis(image, _ANY_CHANNELS)
    axis = {"nchw": -3, "nhwc": -1}.get(written.get("layout", ""), axis)
    height, width = image.shape[-2:] if axis == -3 else image.shape[-3:-1]
    channels = image.shape[axis or -3]
    if channels > MAX_CHANNELS:
        raise LoadError(
            f"expected input {image.name!r} to have at most {MAX_CHANNELS} channels, got {channels} in "
            f"{list(image.shape)}"
        )
    size_wh = (width, height) if width > 0 and height > 0 else None
    if size_wh and "size" in written and tuple(written["size"]) != size_wh:
        raise LoadError(
            f"expected [input] size in model.toml to be {list(size_wh)} (width, height) as in "
            f"the file, got {list(written['size'])}"
        )
    if channels > 0 and written.get("channels", channels) != channels:
        raise LoadError(
            f"expected [input] channels in model.toml to be {channels} as in the file, "
            f"got {written['channels']}"
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
    bands = literal(metadata.get("channels", ""))
    fields: dict[str, Any] = {"channels": bands} if bands in _ANY_CHANNELS else {}
    if metadata["task"] == "classify":
        size = literal(metadata.get("imgsz", ""))  # height, width
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
