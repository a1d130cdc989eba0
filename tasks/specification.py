"""Specification of a model: input, output, labels and defaults. Data only.

`quadriga.engine.models.recognition.recognise` decides every field; the tasks only read them.
"""

import importlib
import sys
from collections.abc import Mapping
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

SHORT_NAMES = {
    "classification": "IMAGE_CLASSIFICATION",
    "detection": "OBJECT_DETECTION",
    "oriented": "ORIENTED_OBJECT_DETECTION",
    "image-text": "IMAGE_TEXT_TO_TEXT",
    "segmentation": "IMAGE_SEGMENTATION",
    "tensor": "TENSOR",
}
"""Short names of task types, which commands and files accept beside Chariot's own in any case."""


def full_name(task: str) -> str:
    """Return the task type of a short name; any other text in capitals."""
    return SHORT_NAMES.get(task.lower(), task.upper())


Resize = Literal[
    "letterbox",
    "letterbox_topleft",
    "letterbox_rect",
    "stretch",
    "stretch_crop",
    "shortest_crop",
    "shortest_longest",
    "shortest_at_least",
    "none",
]
"""How an image is brought to the network's input; see `quadriga.tasks.resize.image_placement`."""


MAX_CHANNELS = 64
"""Maximum channels of an image; OpenCV resizes far more at once."""


INTEGERS = "uint8", "uint16", "int32", "int64"
"""Datatypes of inputs that take the values of the image without `scale`, `mean` and `std`."""


Activation = Literal["none", "softmax", "sigmoid"]
"""Function that turns scores into probabilities."""


Layout = Literal["nchw", "nhwc"]
"""Order of the axes of images or maps: the channels before or after height and width."""


Angle = Literal["raw", "le90", "oc"]
"""Range of the angle of an oriented box; see `quadriga.tasks.geometry.with_angle`."""


class InputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How an image becomes the input tensor."""

    name: str
    """Name of the graph input."""
    size_wh: tuple[int, int] = msgspec.field(name="size")
    """Width and height of the network's input, pixels; the target of the resize if they vary.

    For `shortest_longest` and `shortest_at_least` the shortest and the longest side that the resized image may have.
    """
    batch_axis: bool = True
    """Whether the graph's input has the batch as its first axis."""
    divisor: int = 32
    """Divisor of the sides of the input, if they vary (`letterbox_rect`, `shortest_longest`, `shortest_at_least`)."""
    divisor_rounds: Literal["up", "down", "nearest"] = "up"
    """Direction in which the last two round to a multiple of `divisor`."""
    size_input: str = ""
    """Name of a further graph input, int64 (batch, 2), for width and height of the network's input; the graph
    then returns boxes in its pixels."""
    constants: dict[str, bool | int | float | list[float]] | msgspec.UnsetType = msgspec.UNSET
    """Values of further graph inputs by their names: one for all of an input, or a list for its last axis. Open axes
    have the batch, the height and the width of the image's input."""
    channels: Annotated[int, Meta(ge=1, le=MAX_CHANNELS)] = 3
    """Channels of the input: 1 is gray, 3 RGB; with any other number an image must have as many bands."""
    bit_depth: Annotated[int, Meta(ge=8, le=16)] = 8
    """Bits of a value: the image has values from 0 to 2**bit_depth - 1. The default of `scale` follows from it."""
    layout: Layout = "nchw"
    dtype: Literal["float32", "float16", "float64", "uint8", "uint16", "int32", "int64"] = "float32"
    """Datatype of the input; one of integers takes the values of the image as they are."""
    color: Literal["rgb", "bgr"] = "rgb"
    """Order of the channels; `bgr` reverses the first three of 3 or 4."""
    scale: float = 1 / 255
    """Factor of the values of the image, applied before `(x - mean) / std`, per channel in the order of `color`."""
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    resize: Resize = "stretch"
    pad_value: Annotated[float, Meta(ge=0, le=255)] = 114
    """Grey level of the letterbox border, 0 to 255, before `scale`; a whole number if the input is of integers."""
    crop_fraction: float = 0.875
    """Side of the crop over that of the resized image, for `shortest_crop` and `stretch_crop`."""
    crop_rounds: Literal["even", "down"] = "even"
    """Rounding of the start of a crop that cannot lie in the middle: torchvision takes the even one of the two
    pixels, Hugging Face the lower one."""
    interpolation: Literal["nearest", "linear", "cubic", "lanczos", "area"] = "linear"
    antialias: bool = False
    """Whether shrinking filters as Pillow does; networks of torchvision, timm and Hugging Face expect it."""
    exif: Literal["apply", "ignore"] = "apply"


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How the output tensors are read."""

    decoder: str = ""
    """Name in `quadriga.tasks.decoders.DECODERS`, or in `quadriga.tasks.segmenters.SEGMENTERS` for segmentation; or the
    columns of a table of detections, such as `image, box, score, class`."""
    name: str | tuple[str, ...] = ()
    """Outputs of the graph that are read, one or several; () for all."""
    activation: Activation = "none"
    """Function to apply to the scores of a classifier, or of each pixel."""
    label_offset: int = 0
    """Class id of the first label: 1 if class 0 is background."""
    layout: Layout = "nchw"
    """Order of the axes of maps with one channel for each class, or one alone."""
    angle: Angle = "raw"
    """Range of the angles of oriented boxes, if a request has no `angle`."""
    background: int | None = None
    """Position in the labels of the class that is not predicted; -1 for none. A segmentation without it leaves out
    label 0 if its name says so; a position after the last label is a class for no object."""
    batch_axis: bool = True
    """Whether every output has the batch as its first axis; if not, images run one at a time."""
    nms: Literal["class", "agnostic"] = "class"
    """Whether a box drops overlapping boxes of its own class only, or of every class."""


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults used when a request omits a parameter."""

    score_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    iou_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.7
    max_detections: Annotated[int, Meta(ge=1, le=10_000)] = 300
    top_k: Annotated[int, Meta(ge=1)] = 1
    min_area: Annotated[float, Meta(ge=0, le=sys.float_info.max)] = 0.0
    """Minimum pixels of a connected component; smaller ones are dropped."""
    simplify: bool = False
    """Whether to drop points that change a contour by less than `epsilon`."""
    epsilon: Annotated[float, Meta(ge=0, le=sys.float_info.max)] = 1.0
    """Tolerance of `simplify`, pixels of the image."""


class Tiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a large image is cut into tiles, and predictions merged; see `quadriga.tasks.tiling`."""

    size: tuple[Annotated[int, Meta(ge=16)], Annotated[int, Meta(ge=16)]]
    """Width and height of a tile, pixels of the image."""
    overlap: Annotated[float, Meta(ge=0, le=0.9)] = 0.2
    """Share of a tile that its neighbour covers, too."""
    merge: Literal["nms", "nmm"] = "nmm"
    """How overlapping boxes become one: `nms` keeps the best; `nmm` grows it until it holds all, which joins an
    object that a border cuts."""
    metric: Literal["iou", "ios"] = "ios"
    """Measure of overlap: intersection over union, or over the smaller box, which is 1 for a fragment of an object."""
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Overlap above which boxes of a class are one object."""


class RowSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Specification of a classifier of rows of features."""

    scores: str
    """Name of the output with one score for each class, or one for the second of two."""
    classes: tuple[str, ...]
    """Keys of the scores if they come as maps, in the order of the labels."""
    labels: tuple[str, ...]
    activation: Activation = "none"
    top_k: Annotated[int, Meta(ge=1)] = 1
    """Labels that are returned if a request omits the parameter."""
    features: tuple[str, ...] = ()
    """Name of each feature, in the order of the inputs and their columns; empty if nothing names them."""
    single: bool = False
    """Whether the graph takes one row at a time."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Specification of one model, as its task reads it."""

    task: str
    """A name in `quadriga.tasks.TASKS`, such as `OBJECT_DETECTION`."""
    input: InputSpec
    output: OutputSpec = OutputSpec()
    labels: tuple[str, ...] = ()
    """Label of each class index."""
    defaults: Defaults = Defaults()
    tiling: Tiling | None = None
    """Tiling used when a request omits it; None to run an image in one piece."""


class ObjectReferenceError(ValueError):
    """An object reference does not lead to an object; the message says at which step."""


def load(reference: str) -> Any:
    """Import the object that a reference names, such as `quadriga.tasks.detection:ObjectDetection`.

    Raises:
        ObjectReferenceError: The text is no reference, or the module or attribute does not exist. Errors
            inside of an existing module are raised as they are.
    """
    module_name, colon, path = reference.partition(":")
    if not (module_name and colon and path):
        raise ObjectReferenceError(
            f"expected a reference to be module:attribute, got {reference!r}"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists; what it imports does not
        raise ObjectReferenceError(
            f"module not found: {error.name!r} of reference {reference!r}"
        ) from error
    try:
        return attrgetter(path)(module)
    except AttributeError as error:
        raise ObjectReferenceError(
            f"attribute not found: {error.name!r} of reference {reference!r} in {error.obj!r}"
        ) from error


def resolve(name: str, table: Mapping[str, str], kind: str) -> Any:
    """Load the object that a table lists under `name`, or that `name` refers to as `module:attribute`.

    `kind`, such as "a task", describes the object in the ObjectReferenceError for any other name.
    """
    if name in table:
        return load(table[name])
    if ":" in name:
        return load(name)
    raise ObjectReferenceError(
        f"expected {kind} to be one of {', '.join(table)} or module:attribute, got {name!r}"
    )
