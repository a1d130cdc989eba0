"""Tensors that a model answered, in words: their names, types and shapes."""

from typing import Any

import msgspec

from quadriga.engine.console.texts import TEXTS
from quadriga.monitor.report.metric_texts import one_line
from quadriga.store.records.records import StoredInference
from quadriga.tasks import SHORT_NAMES

_MAX_SHAPE = 60


class _StoredTensor(msgspec.Struct, frozen=True):
    name: str = ""
    datatype: str = ""
    shape: list[int] = []


def has_tensors(inference: StoredInference) -> bool:
    """Check whether an inference was answered by tensors."""
    return inference.task == SHORT_NAMES["tensor"] and inference.status < 400


def tensor_texts(predictions: Any) -> list[str]:
    """Return each tensor of stored predictions as its name, type and shape, such as `probabilities FP32 [1, 4]`."""
    try:
        decoded = msgspec.json.decode(predictions) if isinstance(predictions, msgspec.Raw) else predictions  # fmt: skip
        tensors = msgspec.convert(decoded, list[_StoredTensor])
    except (msgspec.MsgspecError, UnicodeError):
        return [TEXTS["tensors"]]  # in a form of another server
    return [_text(tensor) for tensor in tensors]


def _text(tensor: _StoredTensor) -> str:
    shape = one_line(str(tensor.shape), _MAX_SHAPE) if tensor.shape else ""
    words = [one_line(tensor.name, 60) if tensor.name else "", tensor.datatype, shape]
    return " ".join(filter(None, words)) or TEXTS["tensors"]
