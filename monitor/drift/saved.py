"""Summaries as bytes, for files and for other machines: MessagePack, with the arrays' own bytes."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from monitor.drift.samples import DriftError
from monitor.drift.summary import Summary


def to_bytes(summary: Summary) -> bytes:
    """Pack a summary."""
    return msgspec.msgpack.encode(summary, enc_hook=_packed)


def from_bytes(data: bytes) -> Summary:
    """Unpack a summary, as `to_bytes` packed it, bit for bit; its arrays cannot be written to.

    Raises:
        DriftError: These bytes are none.
    """
    try:
        return msgspec.msgpack.decode(data, type=Summary, dec_hook=_unpacked)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise DriftError(f"expected a saved summary, got: {error}") from error


def _packed(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, array.tobytes()


def _unpacked(_type: type, saved: Any) -> npt.NDArray[Any]:
    dtype, shape, data = saved
    return np.frombuffer(data, dtype).reshape(shape)
