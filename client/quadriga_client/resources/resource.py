"""What all groups of methods stand on: `client.models`, `client.truth` and so on."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ..transport.calls import Call, Read, Sink, read_json

Rows = list[dict[str, Any]]
Names = list[str]


class Sender(Protocol):
    """Sends requests; `Client` does."""

    def send(self, call: Call, read: Read = read_json, *, sink: Sink | None = None) -> Any:
        """Send a request, and return what `read` makes of the answer."""

    def open_stream(self, call: Call) -> Iterator[bytes]:
        """Send a request, and yield the lines of the answer."""


class Resource:
    """Methods about one kind of what the server has."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._send: Callable[..., Any] = sender.send

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._sender!r}>"
