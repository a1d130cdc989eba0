"""What a worker and the process of a model say to each other, as MessagePack with its length before it.

Tensors are in memory that both share: written at one end, read at the other, without pickle. Numbers are there as arrays;
texts, and the maps of classifiers, as MessagePack.
"""

import fcntl
import math
import mmap
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

HEADER_BYTES = 64
"""Bytes before the first tensor; the first one asks the other end to stop."""

_ALIGNMENT = 64


class BlockFullError(MemoryError):
    """The tensors need more memory than the block may have."""


class TensorPlace(msgspec.Struct, frozen=True, array_like=True):
    """Place of a tensor in a block."""

    name: str
    form: Literal["array", "texts", "maps"]
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class TensorBlock:
    """One block of shared memory, which grows as its tensors need; one process at a time writes.

    Args:
        descriptor: Its descriptor; -1 creates it. It is closed with the block.
        max_bytes: Maximum size.
    """

    def __init__(self, descriptor: int, max_bytes: int) -> None:
        if descriptor < 0:
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            descriptor = os.memfd_create("quadriga-tensors", flags)
            os.ftruncate(descriptor, mmap.PAGESIZE)
            # the other end cannot take pages away under our hands
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.descriptor = descriptor
        self._max_bytes = max_bytes
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)

    @property
    def size_bytes(self) -> int:
        """Size of the block."""
        return len(self._memory)

    def close(self) -> None:
        """Close the descriptor; the memory goes when nothing refers to it."""
        os.close(self.descriptor)

    def ask_to_stop(self, *, stop: bool) -> None:
        """Ask the other end to stop what it does with the tensors, or take that back."""
        self._memory[0] = stop

    def is_asked_to_stop(self) -> bool:
        """Check whether the other end asks to stop."""
        return self._memory[0] != 0

    def write(self, values: Mapping[str, Any], start: int = HEADER_BYTES) -> list[TensorPlace]:
        """Write arrays, and lists of maps, from an offset on.

        Raises:
            BlockFullError: They need more than the maximum size.
        """
        places, encoded, offset = [], [], start
        for name, value in values.items():
            place, content = _encode(name, value)
            offset = -(-offset // _ALIGNMENT) * _ALIGNMENT
            places.append(msgspec.structs.replace(place, offset=offset))
            encoded.append(content)
            offset += place.size_bytes
        self._grow(offset)
        for place, content in zip(places, encoded, strict=True):
            end = place.offset + place.size_bytes
            if isinstance(content, np.ndarray):
                if not content.size:
                    continue
                target: Any = np.frombuffer(
                    self._memory, content.dtype, count=content.size, offset=place.offset
                )
                target.reshape(content.shape)[...] = content
            else:
                self._memory[place.offset : end] = content
        return places

    def read(self, places: Sequence[TensorPlace], *, copy: bool) -> dict[str, Any]:
        """Return the tensors at these places: views of the block, or copies.

        Raises:
            ValueError: A place is outside of the block.
        """
        end = max((place.offset + place.size_bytes for place in places), default=0)
        if end > len(self._memory):
            self._memory = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return {place.name: self._decode(place, copy=copy) for place in places}

    def _decode(self, place: TensorPlace, *, copy: bool) -> Any:
        if place.form == "array":
            count = math.prod(place.shape)
            if not count:
                return np.empty(place.shape, np.dtype(place.dtype))
            array = np.frombuffer(
                self._memory, np.dtype(place.dtype), count=count, offset=place.offset
            ).reshape(place.shape)
            return array.copy() if copy else array
        content = self._memory[place.offset : place.offset + place.size_bytes]
        if place.form == "maps":
            return msgspec.msgpack.decode(content, strict=False)
        texts = np.empty(math.prod(place.shape), object)
        texts[:] = msgspec.msgpack.decode(content)
        return texts.reshape(place.shape)

    def _grow(self, size_bytes: int) -> None:
        if size_bytes <= len(self._memory):
            return
        if size_bytes > self._max_bytes:
            raise BlockFullError(
                f"expected tensors of at most {self._max_bytes} bytes, got {size_bytes}"
            )
        pages = -(-size_bytes // mmap.PAGESIZE)
        os.ftruncate(self.descriptor, pages * mmap.PAGESIZE)
        self._memory = mmap.mmap(self.descriptor, pages * mmap.PAGESIZE)


def _encode(name: str, value: Any) -> tuple[TensorPlace, Any]:
    """Return the place of a tensor, without its offset, and its content."""
    if not isinstance(value, np.ndarray):
        content = msgspec.msgpack.encode(value)
        return TensorPlace(name, "maps", "", (), 0, len(content)), content
    if value.dtype == object or value.dtype.kind == "U":
        content = msgspec.msgpack.encode(value.ravel().tolist())
        return TensorPlace(name, "texts", "", value.shape, 0, len(content)), content
    return TensorPlace(name, "array", value.dtype.str, value.shape, 0, value.nbytes), value


Read = TypeVar("Read")

_LENGTH_BYTES = 4


class OpenGraph(msgspec.Struct, frozen=True, tag="open", kw_only=True):
    """Asks to open a graph; see `quadriga.engine.models.runners.session.GraphOptions`."""

    path: str
    modified_model: bytes | None
    providers: tuple[tuple[str, dict[str, str]], ...]
    intra_op_threads: int


class RunGraph(msgspec.Struct, frozen=True, tag="run"):
    """Asks for a run; the feeds are in the block of the lane."""

    graph: int
    outputs: list[str]
    feeds: list[TensorPlace]


class NodeInfo(msgspec.Struct, frozen=True, array_like=True):
    """An input or output of a graph, with onnxruntime's name of its type."""

    name: str
    type: str
    shape: list[int | str | None]


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The graph is open."""

    graph: int
    inputs: list[NodeInfo]
    outputs: list[NodeInfo]
    providers: list[str] = []
    """Names of the providers that run it."""


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """The run has ended; the outputs are in the block of the lane."""

    outputs: list[TensorPlace]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It failed."""

    reason: str
    kind: Literal["error", "memory"] = "error"


Request = OpenGraph | RunGraph
Answer = Opened | Answered | Failed


class PeerEndedError(ConnectionError):
    """The other process has ended."""


def send(connection: socket.socket, message: msgspec.Struct) -> None:
    """Send a message; raises `PeerEndedError`."""
    encoded = msgspec.msgpack.encode(message)
    try:
        connection.sendall(len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded)
    except TimeoutError:
        raise
    except OSError as error:
        raise PeerEndedError from error


class Receiver:
    """Reads messages of one type; a timeout of the connection loses nothing of a message."""

    def __init__(self, connection: socket.socket, type_: Any) -> None:
        self._connection = connection
        self._decoder = msgspec.msgpack.Decoder(type_)
        self._buffer = bytearray()

    def receive(self) -> Any:
        """Return the next message; raises `TimeoutError`, or `PeerEndedError`."""
        while True:
            if len(self._buffer) >= _LENGTH_BYTES:
                end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
                if len(self._buffer) >= end:
                    message = self._decoder.decode(memoryview(self._buffer)[_LENGTH_BYTES:end])
                    self._buffer = self._buffer[end:]
                    return message
            try:
                data = self._connection.recv(65536)
            except TimeoutError:
                raise
            except OSError as error:
                raise PeerEndedError from error
            if not data:
                raise PeerEndedError
            self._buffer += data
