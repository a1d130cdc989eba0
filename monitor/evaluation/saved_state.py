"""States as bytes, for files and for other machines: MessagePack of names and of the arrays' own bytes."""

import msgspec
import numpy as np

from monitor.evaluation.state import Column, EvaluationError, State

_TEXT = np.dtypes.StringDType()


class _Array(msgspec.Struct, frozen=True, array_like=True):
    """A column; texts are a list, all else the bytes of the array in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | list[str]


class _Saved(msgspec.Struct, frozen=True):
    """A state, its arrays packed."""

    ids: list[str]
    images: list[str]
    sizes: _Array
    slices: dict[str, list[str | None]]
    labels: list[str]
    tables: dict[str, dict[str, _Array]]
    excluded: dict[str, int]


_decoder = msgspec.msgpack.Decoder(_Saved)


def to_bytes(state: State) -> bytes:
    """Pack a state."""
    tables = {
        name: {key: _packed(column) for key, column in table.items()}
        for name, table in state.tables.items()
    }
    saved = _Saved(*state._replace(sizes=_packed(state.sizes), tables=tables))  # type: ignore[arg-type]
    return msgspec.msgpack.encode(saved)


def from_bytes(data: bytes) -> State:
    """Unpack a state, as `to_bytes` packed it, bit for bit; its arrays cannot be written to.

    Raises:
        EvaluationError: These bytes are none.
    """
    try:
        saved = _decoder.decode(data)
        return State(
            saved.ids,
            saved.images,
            _unpacked(saved.sizes),
            saved.slices,
            saved.labels,
            {
                name: {key: _unpacked(column) for key, column in table.items()}
                for name, table in saved.tables.items()
            },
            saved.excluded,
        )
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise EvaluationError(f"expected a saved state, got: {error}") from error


def _packed(column: Column) -> _Array:
    if column.dtype == _TEXT:
        return _Array("text", column.shape, column.ravel().tolist())
    return _Array(column.dtype.str, column.shape, column.tobytes())


def _unpacked(saved: _Array) -> Column:
    found: Column
    if isinstance(saved.data, list):
        found = np.array(saved.data, _TEXT)
    else:
        found = np.frombuffer(saved.data, saved.dtype)
    return found.reshape(saved.shape)
