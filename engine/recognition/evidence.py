"""What the files of a model say, gathered before anything is decided."""

import ast
import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import msgspec

from quadriga.engine.recognition.model_toml import ModelToml
from quadriga.engine.recognition.sidecars import input_from_preprocessor
from quadriga.engine.session import LoadError, Session
from quadriga.proto.messages import TensorInfo

COLOURS = (1, 3, 4)
"""Numbers of channels that tell an image where nothing else does; others may be any tensor's."""
DTYPES = {"FP32": "float32", "FP16": "float16", "UINT8": "uint8", "UINT16": "uint16"}
"""Of inputs that can hold images: as the graph names it, and as `InputSpec` does."""


class Evidence(msgspec.Struct, frozen=True):
    """All that recognition looks at."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    producers: Mapping[str, str] = {}
    """Operator behind each graph output."""
    metadata: Mapping[str, str] = {}
    """Of the ONNX file."""
    config: Mapping[str, Any] = {}
    """config.json, of Hugging Face or timm; empty where there is none."""
    preprocessor: Mapping[str, Any] = {}
    """preprocessor_config.json, or what transformers 5 has in processor_config.json."""
    written: ModelToml = ModelToml()
    folder: Path = Path()

    @property
    def preprocessing(self) -> dict[str, Any]:
        """Fields of `InputSpec` that the image processor's file gives."""
        return input_from_preprocessor(self.preprocessor) if self.preprocessor else {}

    def image_input(self, counts: Container[int] = COLOURS) -> TensorInfo | None:
        """Find the one input that can hold images: [N, C, H, W] or [N, H, W, C], or without N."""
        candidates = [tensor for tensor in self.inputs if channels_axis(tensor, counts) is not None]
        return candidates[0] if len(candidates) == 1 else None


def gather(folder: Path, session: Session, written: ModelToml) -> Evidence:
    """Read what stands beside a model and inside its file."""
    preprocessor = read_json(folder / "preprocessor_config.json")
    inner = preprocessor or read_json(folder / "processor_config.json").get("image_processor", {})
    if not isinstance(inner, dict):
        raise LoadError(
            f"expected image_processor in processor_config.json to be an object, got {inner!r:.80}"
        )
    return Evidence(
        inputs=tuple(session.inputs),
        outputs=tuple(session.outputs),
        producers=session.header.producers,
        metadata=session.header.metadata,
        config=read_json(folder / "config.json"),
        preprocessor=inner,
        written=written,
        folder=folder,
    )


def channels_axis(tensor: TensorInfo, counts: Container[int] = COLOURS) -> int | None:
    """Find the axis of the channels of an input that can hold images, counted from the end.

    Of two axes with a number of `counts` it is the shorter one.
    """
    if tensor.datatype not in DTYPES or len(tensor.shape) not in (3, 4):
        return None
    first, last = tensor.shape[-3], tensor.shape[-1]
    if first in counts and not (last in counts and last < first):
        return -3
    return -1 if last in counts else -3 if first == -1 else None


def literal(text: str) -> Any:
    """Read a Python literal, as Ultralytics writes its metadata; None where it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; an absent file is an empty one."""
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"expected JSON in {path.name}, got: {error}") from error
    if not isinstance(payload, dict):
        raise LoadError(f"expected an object in {path.name}, got {type(payload).__name__}")
    return payload
