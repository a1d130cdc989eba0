"""What the files of a model say, gathered before anything is decided."""

import ast
import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.session import LoadError, Session
from proto.messages import TensorInfo

LABEL_FILES = ("labels.txt", "classes.txt", "class_names.txt")
COLOURS = (1, 3, 4)
"""Numbers of channels that tell an image where nothing else does; others may be any tensor's."""
DTYPES = {"FP32": "float32", "FP16": "float16", "UINT8": "uint8", "UINT16": "uint16"}
"""Of inputs that can hold images: as the graph names it, and as `InputSpec` does."""


class Evidence(msgspec.Struct, frozen=True):
    """All that recognition looks at."""

    metadata: Mapping[str, str]
    """Of the ONNX file."""
    producers: Mapping[str, str]
    """Operator behind each graph output."""
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    config: Mapping[str, Any]
    """config.json, of Hugging Face or timm; empty where there is none."""
    preprocessor: Mapping[str, Any]
    """As `read_preprocessor` gives it."""
    labels: tuple[str, ...] | None
    """Of the first label file that is there."""
    labels_file: str

    @property
    def output_names(self) -> frozenset[str]:
        """Names of the graph's outputs."""
        return frozenset(tensor.name for tensor in self.outputs)

    def output(self, name: str) -> TensorInfo:
        """Give an output by its name."""
        return next(tensor for tensor in self.outputs if tensor.name == name)

    def image_input(self, counts: Container[int] = COLOURS) -> TensorInfo | None:
        """Find the one input that can hold images: [N, C, H, W] or [N, H, W, C], or without N."""
        found = [tensor for tensor in self.inputs if channels_axis(tensor, counts) is not None]
        return found[0] if len(found) == 1 else None


def gather(folder: Path, session: Session) -> Evidence:
    """Read everything beside a model and inside its file.

    Raises:
        LoadError: A file that is there cannot be read.
    """
    sidecar = next((name for name in LABEL_FILES if (folder / name).is_file()), "")
    return Evidence(
        metadata=session.header.metadata,
        producers=session.header.producers,
        inputs=tuple(session.inputs),
        outputs=tuple(session.outputs),
        config=read_json(folder / "config.json"),
        preprocessor=read_preprocessor(folder),
        labels=read_labels(folder / sidecar) if sidecar else None,
        labels_file=sidecar,
    )


def channels_axis(tensor: TensorInfo, counts: Container[int] = COLOURS) -> int | None:
    """Find the axis of the channels of an input that can hold images, counted from the end.

    Args:
        tensor: The input.
        counts: Numbers of channels that it may have. Where both axes have one, the shorter axis is it.
    """
    if tensor.datatype not in DTYPES or len(tensor.shape) not in (3, 4):
        return None
    first, last = tensor.shape[-3], tensor.shape[-1]
    if first in counts and not (last in counts and last < first):
        return -3
    return -1 if last in counts else -3 if first == -1 else None


def read_labels(path: Path) -> tuple[str, ...]:
    """Read a label file: one a line; an empty line within is a class without a name, so that none moves.

    Raises:
        LoadError: It cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"expected labels in {path.name}, got: {error}") from error
    lines = [line.strip() for line in text.rstrip().splitlines()]
    return tuple(line or f"class_{number}" for number, line in enumerate(lines))


def labels_from(names: Any) -> tuple[str, ...] | None:
    """Read class labels in any of their forms: a list, `{label: id}` or `{id: label}`.

    Returns:
        Labels by index, with `class_<i>` where an index has none; None where it is none of the forms.
    """
    if isinstance(names, str):
        names = literal(names)
    if isinstance(names, list | tuple):
        return tuple(str(name) for name in names) or None
    if not isinstance(names, Mapping) or not names:
        return None
    by_index: dict[int, str] = {}
    for key, value in names.items():
        if str(key).isdecimal() and not isinstance(value, int):
            by_index[int(key)] = str(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            by_index[value] = str(key)
        else:
            return None
    if min(by_index) < 0 or max(by_index) > 100_000:
        return None
    return tuple(by_index.get(index, f"class_{index}") for index in range(max(by_index) + 1))


def rf_detr_names(metadata: Mapping[str, str]) -> Any:
    """Read `{class number: name}` of RF-DETR's metadata; its text where it is broken, None where absent.

    Source: RF-DETR, `export/_runtime/metadata.py` ExportMetadata.
    """
    text = metadata.get("rfdetr_inference")
    if text is None:
        return None
    try:
        return json.loads(text)["class_id_to_name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text


def literal(text: str) -> Any:
    """Read a Python literal, as Ultralytics writes its metadata; None where it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def read_preprocessor(folder: Path) -> dict[str, Any]:
    """Read preprocessor_config.json, or where transformers 5 keeps it; empty where there is none.

    Raises:
        LoadError: It is no JSON object.
    """
    found = read_json(folder / "preprocessor_config.json")
    inner = found or read_json(folder / "processor_config.json").get("image_processor", {})
    if not isinstance(inner, dict):
        raise LoadError(
            f"expected image_processor in processor_config.json to be an object, got {inner!r:.80}"
        )
    return inner


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; an absent file is an empty one.

    Raises:
        LoadError: It is no JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"expected JSON in {path.name}, got: {error}") from error
    if not isinstance(found, dict):
        raise LoadError(f"expected an object in {path.name}, got {type(found).__name__}")
    return found
