"""What all groups of methods stand on: `client.models`, `client.truth` and so on."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from ..transport.calls import json_call, read_call, read_json
from ..transport.connections import Call, Response

T = TypeVar("T")
Rows = list[dict[str, Any]]
Names = list[str]


class Sender(Protocol):
    """Sends requests; `Client` does."""

    def send(self, call: Call, read: Callable[[Response], T] = read_json) -> T:
        """Send a request, and return what `read` makes of the answer."""

    def open_stream(self, call: Call, *, by_line: bool = True) -> Iterator[bytes]:
        """Send a request, and yield the lines of the answer, or parts of it."""


class Resource:
    """Methods about one kind of what the server has."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def _get(self, template: str, *values: object, **query: object) -> dict[str, Any]:
        """Return the JSON at a path; see `path_of`."""
        return self._sender.send(read_call(template, *values, query=query))

    def _request(
        self, method: str, template: str, *values: object, body: Any = None, **options: Any
    ) -> dict[str, Any]:
        """Send JSON, and return that of the answer; see `json_call`."""
        return self._sender.send(json_call(method, template, *values, body=body, **options))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._sender!r}>"
