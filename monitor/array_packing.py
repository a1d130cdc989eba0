"""Arrays inside MessagePack: element type, shape and the arrays' own bytes; texts as a list."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

_TEXT = np.dtypes.StringDType()


def pack(value: Any) -> bytes:
    """Encode a struct with arrays as MessagePack."""
    return msgspec.msgpack.encode(value, enc_hook=_pack_array)


def unpack(data: bytes, type_: Any) -> Any:
    """Decode what `pack` encoded, bit for bit; the arrays cannot be written to.

    Raises:
        ValueError: The bytes are not of this type.
    """
    try:
        return msgspec.msgpack.decode(data, type=type_, dec_hook=_unpack_array)
    except (msgspec.MsgspecError, TypeError) as error:
        raise ValueError(str(error)) from error


def _pack_array(array: npt.NDArray[Any]) -> tuple[str, tuple[int, ...], bytes | list[str]]:
    if array.dtype == _TEXT:
        return "text", array.shape, array.ravel().tolist()
    return array.dtype.str, array.shape, array.tobytes()


def _unpack_array(_type: type, packed: Any) -> npt.NDArray[Any]:
    dtype, shape, data = msgspec.convert(packed, tuple[str, tuple[int, ...], bytes | list[str]])
    if isinstance(data, list):
        return np.array(data, _TEXT).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)
