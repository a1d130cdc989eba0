"""Contents of a model's files, gathered before anything is decided."""

import ast
import json
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quadriga.engine.recognition.model_toml import ModelToml
from quadriga.engine.recognition.sidecars import input_from_preprocessor
from quadriga.engine.schema import read_text
from quadriga.engine.session import MAPS, LoadError, Session
from quadriga.proto.datatypes import NUMPY_TYPES
from quadriga.proto.messages import TensorInfo
from quadriga.tasks.specification import MAX_CHANNELS

COLOURS = (1, 3, 4)
"""Channel counts by which an axis is recognised as that of an image."""
ANY_CHANNELS = range(1, MAX_CHANNELS + 1)
"""Channel counts of an image where more than shapes say that an input is one."""
_INTEGERS = "INT32", "INT64"
DTYPES = {
    name: np.dtype(NUMPY_TYPES[name]).name
    for name in ("FP32", "FP16", "FP64", "UINT8", "UINT16", *_INTEGERS)
}
"""Datatypes of inputs that can hold images: the graph's name to the name in `InputSpec`."""
_ONES = "pixel_mask"
"""Input of Hugging Face's detectors that is 1 where the image is: everywhere, as images that run together have one size."""


class Evidence(msgspec.Struct, frozen=True):
    """Everything that recognition looks at."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    producers: Mapping[str, str] = {}
    """Operator behind each graph output."""
    metadata: Mapping[str, str] = {}
    """Metadata of the ONNX file."""
    config: Mapping[str, Any] = {}
    """Contents of config.json of Hugging Face or timm; empty if absent."""
    preprocessor: Mapping[str, Any] = {}
    """Contents of preprocessor_config.json, or its equivalent in transformers 5's processor_config.json."""
    written: ModelToml = ModelToml()
    folder: Path = Path()
    classes: tuple[str, ...] = ()
    """Classes that a ZipMap names, in the order of the scores of an image."""

    @property
    def constants(self) -> dict[str, Any]:
        """Values of the inputs that take neither the image nor its size."""
        ones = {info.name: 1 for info in self.inputs if info.name == _ONES}
        return {**ones, **self.written.input.get("constants", {})}

    @property
    def preprocessing(self) -> dict[str, Any]:
        """Fields of `InputSpec` from the image processor's file."""
        return input_from_preprocessor(self.preprocessor) if self.preprocessor else {}

    def reading(self, names: str | Sequence[str]) -> "Evidence":
        """Return the evidence with these outputs alone, in this order; with all for none.

        Raises:
            LoadError: There is no such output.
        """
        outputs = {tensor.name: tensor for tensor in self.outputs}
        names = (names,) if isinstance(names, str) else names
        if unknown := [name for name in names if name not in outputs]:
            raise LoadError(
                f"expected [output] name in model.toml to be of {', '.join(outputs)}, got {unknown[0]!r}"
            )
        chosen = tuple(outputs[name] for name in names)
        return msgspec.structs.replace(self, outputs=chosen or self.outputs)

    def image_input(self, counts: Container[int] = COLOURS) -> TensorInfo | None:
        """Return the only input that can hold images, [N, C, H, W] or [N, H, W, C] or without N; else None."""
        inputs = [info for info in self.inputs if info.name not in self.constants]
        if (written := self.written.input.get("name")) is not None:
            inputs = [info for info in inputs if info.name == written]
        candidates = [tensor for tensor in inputs if channels_axis(tensor, counts) is not None]
        return candidates[0] if len(candidates) == 1 else None

    @property
    def batch(self) -> int:
        """Images that the file runs together, -1 where it leaves that open; 1 for an input without a batch axis."""
        image = self.image_input() or self.image_input(ANY_CHANNELS)
        return image.shape[0] if image is not None and len(image.shape) == 4 else 1

    def maps_layout(self) -> tuple[str, str]:
        """Return the layout of maps [N, C, H, W] or [N, H, W, C], the first output, and the reason."""
        if layout := self.written.output.get("layout"):
            return layout, "model.toml"
        image = self.image_input() or self.image_input(ANY_CHANNELS)
        output = self.outputs[0]
        is_last = image is not None and len(output.shape) == 4 and _channels_last(output, image)
        return "nhwc" if is_last else "nchw", f"shape of output {output.name!r}"


def _channels_last(maps: TensorInfo, image: TensorInfo) -> bool:
    """Check whether maps have their channels behind height and width: where those have the ratio of the image."""
    rows, columns, last = maps.shape[1:]
    if (rows > 0) != (last > 0):
        return last > 0
    height, width = image_sides(image)
    if min(rows, columns, last, height, width) > 0:
        fits_first, fits_last = height * last == width * columns, height * columns == width * rows
        if fits_first != fits_last:
            return fits_last
    return channels_axis(image, ANY_CHANNELS) == -1


def gather_evidence(folder: Path, session: Session, written: ModelToml) -> Evidence:
    """Read the files beside a model and the header of its graph."""
    preprocessor = read_json(folder / "preprocessor_config.json")
    inner = preprocessor or read_json(folder / "processor_config.json").get("image_processor", {})
    if not isinstance(inner, dict):
        raise LoadError(
            f"expected image_processor in processor_config.json to be an object, got {inner!r:.80}"
        )
    evidence = Evidence(
        inputs=tuple(session.inputs),
        outputs=tuple(session.outputs),
        producers=session.header.producers,
        metadata=session.header.metadata,
        config=read_json(folder / "config.json"),
        preprocessor=inner,
        written=written,
        folder=folder,
    )
    maps = [tensor for tensor in session.outputs if tensor.datatype == MAPS]
    if not (maps and session.header.class_labels and evidence.image_input(ANY_CHANNELS)):
        return evidence
    classes = session.header.class_labels[0]
    scores = TensorInfo(maps[0].name, "FP32", (-1, len(classes)))
    return msgspec.structs.replace(evidence, outputs=(scores,), classes=classes)


def channels_axis(tensor: TensorInfo, counts: Container[int] = COLOURS) -> int | None:
    """Return the channel axis of an input that can hold images, counted from the end; None if it cannot.

    If two axes have one of the `counts`, the shorter one is chosen.
    """
    ranks = (4,) if tensor.datatype in _INTEGERS else (3, 4)  # those of 3 are tokens or a mask
    if tensor.datatype not in DTYPES or len(tensor.shape) not in ranks:
        return None
    first, last = tensor.shape[-3], tensor.shape[-1]
    if first in counts and not (last in counts and last < first):
        return -3
    return -1 if last in counts else -3 if first == -1 else None


def image_sides(image: TensorInfo) -> tuple[int, int]:
    """Return height and width of an image input; -1 where they are open."""
    first = -2 if channels_axis(image, ANY_CHANNELS) == -3 else -3
    return image.shape[first], image.shape[first + 1]


def parse_literal(text: str) -> Any:
    """Parse a Python literal, as Ultralytics writes its metadata; None if it is not one."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; an absent file counts as an empty object."""
    try:
        payload = json.loads(read_text(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"expected JSON in {path.name}, got: {error}") from error
    if not isinstance(payload, dict):
        raise LoadError(f"expected an object in {path.name}, got {type(payload).__name__}")
    return payload
