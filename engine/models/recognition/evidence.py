"""Contents of a model's files, gathered before anything is decided."""

import ast
import json
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quadriga.engine.config.schema import read_text
from quadriga.engine.models.recognition.decisions import Layer
from quadriga.engine.models.recognition.families import Family
from quadriga.engine.models.recognition.model_toml import ModelToml
from quadriga.engine.models.recognition.sidecars import input_from_preprocessor
from quadriga.engine.models.runners.session import MAPS, LoadError, Session
from quadriga.proto.datatypes import NUMPY_TYPES
from quadriga.proto.messages import TensorInfo
from quadriga.tasks.decoders import plain_name
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
FLOATS = ("FP32", "FP16", "FP64")
_MAIN = ("logits", "out", "output")
"""Names of the output that counts, beside auxiliary ones, hidden states and heads of teachers."""
RF_DETR = ("rf_detr", "rf_detr_segment")
"""Decoders of heads with one class more than names. Source: RF-DETR, `docs/exports/onnx`."""
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
    def image(self) -> TensorInfo | None:
        """Input that holds images of any number of channels, that of usual ones first."""
        return self.image_input() or self.image_input(ANY_CHANNELS)

    @property
    def batch(self) -> int:
        """Images that the file runs together, -1 where it leaves that open; 1 for an input without a batch axis."""
        image = self.image
        return image.shape[0] if image is not None and len(image.shape) == 4 else 1

    @property
    def main_outputs(self) -> list[TensorInfo]:
        """Outputs of which one alone is read; several only where nothing but their names may tell them apart."""
        outputs = list(self.outputs)
        heads = [
            tensor for tensor in outputs if len(tensor.shape) == 3 and tensor.datatype in FLOATS
        ]
        others = {len(tensor.shape) for tensor in outputs if tensor not in heads}
        if heads and others <= {5}:
            outputs = heads  # beside their own maps, as YOLOv5 and YOLOv7 export them
        is_one = len({tensor.shape for tensor in outputs}) == 1 and others <= {4, 5}
        named = [tensor for tensor in outputs if plain_name(tensor.name) in _MAIN]
        if len(named) == 1 and (is_one or len(named[0].shape) != 3):
            return named
        return outputs if is_one or len(outputs) == 1 else []

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a classifier's first output for one image: without the batch axis, if it has one."""
        shape = self.outputs[0].shape
        return shape if len(shape) == 1 and shape[0] not in (-1, 1, self.batch) else shape[1:]

    def class_count(self, family: Family) -> int | None:
        """Read the number of classes from an output's shape; None if the family does not show it."""
        outputs = [*self.main_outputs[:1], *self.outputs]
        if family.task == "IMAGE_CLASSIFICATION":
            sides = [side for side in self.reading(outputs[0].name).row_shape if side != 1] or [1]
            return sides[0] if len(sides) == 1 and sides[0] > 0 else None
        if family.classes is None:
            return None
        output, axis, extra = family.classes
        decoder = family.output.get("decoder", "")
        if decoder.endswith("_segment"):  # exports vary in order; the rank tells them apart
            outputs = sorted(self.outputs, key=lambda tensor: len(tensor.shape))
        if decoder in RF_DETR:  # exports vary in order; the names tell them apart
            outputs = sorted(self.outputs, key=lambda tensor: tensor.name)
        elif decoder == "semantic_logits" and self.maps_layout()[0] == "nhwc":
            axis = 3
        if output >= len(outputs) or axis >= len(outputs[output].shape):
            return None
        size = outputs[output].shape[axis]
        return size - extra if size > extra else None

    def activation(self, name: str) -> Layer:
        """Decide the activation that scores still need by the operator behind them, so that none is applied twice."""
        operator = self.producers.get(name) or "unknown"
        activation = "none" if operator in ("Softmax", "Sigmoid") else "softmax"
        return f"operator behind {name!r} is {operator}", {"activation": activation}

    def maps_layout(self) -> tuple[str, str]:
        """Return the layout of maps [N, C, H, W] or [N, H, W, C], the first output, and the reason."""
        if layout := self.written.output.get("layout"):
            return layout, "model.toml"
        image, output = self.image, self.outputs[0]
        is_last = image is not None and len(output.shape) == 4 and _channels_last(output, image)
        return "nhwc" if is_last else "nchw", f"shape of output {output.name!r}"


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
