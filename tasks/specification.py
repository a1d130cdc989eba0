"""What a model needs to be used rightly: its input, its output, its labels. Data only.

`quadriga.engine.recognition.recognise` decides every field; the tasks only read them.
"""

import sys
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Resize = Literal[
    "letterbox",
    "letterbox_topleft",
    "letterbox_rect",
    "stretch",
    "stretch_crop",
    "shortest_crop",
    "shortest_longest",
    "none",
]
"""How an image is brought to the network's input; see `quadriga.tasks.resize.image_placement`."""

MAX_CHANNELS = 64
"""Of an image; far below what OpenCV resizes at once."""

Angle = Literal["raw", "le90", "oc"]
"""Range of the angle of an oriented box; see `quadriga.tasks.rotated.with_angle`."""


class InputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How an image becomes the input tensor."""

    name: str
    """Name of the graph input."""
    size_wh: tuple[int, int] = msgspec.field(name="size")
    """Width and height of the network's input, pixels; where they vary, what the resize aims at.

    For `shortest_longest` the shortest and the longest side that the resized image may have.
    """
    batch_axis: bool = True
    """Whether the graph's input has the batch as its first axis."""
    divisor: int = 32
    """Sides of the input are multiples of it, where they vary (`letterbox_rect`, `shortest_longest`)."""
    divisor_rounds: Literal["up", "down"] = "up"
    """To which multiple of `divisor` `shortest_longest` goes."""
    size_input: str = ""
    """Name of a further graph input, int64 [batch, 2], that takes width and height of the network's
    input; the boxes then come in its pixels."""
    channels: Annotated[int, Meta(ge=1, le=MAX_CHANNELS)] = 3
    """1 is gray, 3 RGB; of others an image must have as many bands."""
    bit_depth: Annotated[int, Meta(ge=8, le=16)] = 8
    """Values of the image go from 0 to 2**bit_depth - 1; `scale` follows where nothing gives it."""
    layout: Literal["nchw", "nhwc"] = "nchw"
    dtype: Literal["float32", "float16", "uint8", "uint16"] = "float32"
    color: Literal["rgb", "bgr"] = "rgb"
    """`bgr` takes the first three of 3 or 4 channels in reverse."""
    scale: float = 1 / 255
    """Multiplies the values of the image; then `(x - mean) / std`, per channel in the order of `color`."""
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    resize: Resize = "stretch"
    pad_value: int = 114
    """Grey level of the letterbox border, 0 to 255, before `scale`."""
    crop_fraction: float = 0.875
    """For `shortest_crop` and `stretch_crop`: the crop's side over the resized image's."""
    crop_rounds: Literal["even", "down"] = "even"
    """Where a crop starts if it cannot lie in the middle: torchvision takes the even one of the two
    pixels, Hugging Face the lower one."""
    interpolation: Literal["nearest", "linear", "cubic", "area"] = "linear"
    antialias: bool = False
    """Filter while shrinking as Pillow does; networks of torchvision, timm and Hugging Face expect it."""
    exif: Literal["apply", "ignore"] = "apply"


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How the output tensors are read."""

    decoder: str = ""
    """Name in `quadriga.tasks.decoders.DECODERS`, or in `quadriga.tasks.segmenters.SEGMENTERS` for segmentation."""
    activation: Literal["none", "softmax", "sigmoid"] = "none"
    """What is still to be applied to the scores of a classifier, or of each pixel."""
    label_offset: int = 0
    """Number of the class that the first label names: 1 where class 0 is background."""
    angle: Angle = "raw"
    """Range of the angles of oriented boxes, where a request says nothing."""
    background: int | None = None
    """Index of the class that is not answered, counted as labels are; -1 for none. A segmentation
    without it leaves out label 0, if its name says so; one after the last label is a class for nothing."""
    batch_axis: bool = True
    """Whether every output has the batch as its first axis; else images run one at a time."""


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What holds where a request says nothing."""

    score_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    iou_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.7
    max_detections: Annotated[int, Meta(ge=1, le=10_000)] = 300
    top_k: Annotated[int, Meta(ge=1)] = 1
    min_area: Annotated[float, Meta(ge=0, le=sys.float_info.max)] = 0.0
    """Connected parts of fewer pixels of the image are left out."""
    simplify: bool = False
    """Whether to leave out points that change a contour by less than `epsilon`."""
    epsilon: Annotated[float, Meta(ge=0, le=sys.float_info.max)] = 1.0
    """Pixels of the image."""


class Tiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a large image is answered in parts; see `quadriga.tasks.tiling`."""

    size: tuple[Annotated[int, Meta(ge=16)], Annotated[int, Meta(ge=16)]]
    """Width and height of a tile, pixels of the image."""
    overlap: Annotated[float, Meta(ge=0, le=0.9)] = 0.2
    """What neighbours share, as a fraction of the tile."""
    merge: Literal["nms", "nmm"] = "nmm"
    """`nms` keeps the best of those that overlap; `nmm` grows it until it holds them all, which joins
    the parts of an object that a border cuts."""
    metric: Literal["iou", "ios"] = "ios"
    """Intersection over union, or over the smaller box, which tells a part from its whole."""
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Boxes of a class that overlap by more are one object."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One model, ready to be used by its task."""

    task: str
    """A name in `quadriga.tasks.TASKS`, such as `OBJECT_DETECTION`."""
    input: InputSpec
    output: OutputSpec = OutputSpec()
    labels: tuple[str, ...] = ()
    """Label of each class index."""
    defaults: Defaults = Defaults()
    tiling: Tiling | None = None
    """Where a request says nothing; None for the image as a whole."""
