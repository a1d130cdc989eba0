"""What a worker and the process of a model say to each other, as MessagePack with its length before it."""

import socket
from typing import Any, Literal, TypeVar

import msgspec

from quadriga.engine.models.runners.tensor_block import TensorPlace

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
