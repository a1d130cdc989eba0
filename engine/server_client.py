"""Speaks to a running server, over one kept connection a thread."""

import json
import threading
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT_S = 300.0
"""That an answer may take."""

PATIENCE_S = 60.0
"""That a server may be busy, or a model not loaded yet."""

_BUSY = {429, 503}


class ServerError(OSError):
    """The server does not answer, or not as expected."""


class Refused(ServerError):
    """The server answered a request with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{text} ({status})")
        self.status = status


class ServerClient:
    """A server; safe to use from several threads.

    Methods raise a `Refused` where the server answers an error, else a `ServerError`.

    Args:
        url: Such as http://127.0.0.1:8080, maybe with a path.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ServerError(f"expected a URL such as http://127.0.0.1:8080, got {url}")
        self.url = url
        self._host, self._prefix = parts.netloc, parts.path.rstrip("/")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._local = threading.local()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send JSON, and read the JSON of the answer."""
        sent = None if body is None else json.dumps(body).encode()
        return json.loads(self.read(method, path, sent))

    def read(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request on a connection of its own, and return the body of the answer."""
        self._forget()
        try:
            return self._patient(method, path, body, {})
        finally:
            self._forget()

    def infer(self, model: str, image: bytes, name: str, parameters: dict[str, Any]) -> Any:
        """Send an image by chariot-v2-kserve, its bytes as they are, and return the answer.

        Args:
            model: Name, or `<name>/versions/<version>`.
            image: A file.
            name: Of the input.
            parameters: Of the input.
        """
        size = len(image).to_bytes(4, "little")
        parameters = {**parameters, "binary_data_size": len(image) + 4}
        tensor = {"name": name, "shape": [1], "datatype": "BYTES", "parameters": parameters}
        text = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        path = f"/v2/models/{model}/infer"
        return json.loads(self._patient("POST", path, text + size + image, headers))

    def close(self) -> None:
        """Close the connection of this thread."""
        self._forget()

    def _patient(self, method: str, path: str, body: bytes | None, headers: Any) -> bytes:
        until = time.monotonic() + PATIENCE_S
        while True:
            status, wait_s, answer = self._send(method, path, body, headers)
            if status in _BUSY and time.monotonic() + wait_s < until:
                self._forget()  # or the server may close it meanwhile
                time.sleep(wait_s)
                continue
            if status >= 400:
                raise Refused(status, _error(answer))
            return answer

    def _send(
        self, method: str, path: str, body: bytes | None, headers: Any
    ) -> tuple[int, float, bytes]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._kind(self._host, timeout=TIMEOUT_S)
        try:
            connection.request(method, self._prefix + path, body, headers)
            response = connection.getresponse()
            wait = response.getheader("Retry-After") or ""
            wait_s = float(wait) if wait.isdigit() else 1.0
            return response.status, wait_s, response.read()
        except (OSError, HTTPException) as error:
            self._forget()
            raise ServerError(
                f"expected a server at {self.url}, got: {str(error) or repr(error)}"
            ) from error

    def _forget(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None


def model_path(name: str, version: str | None) -> str:
    """Return how paths name a model."""
    named = quote(name, safe="")
    return named if version is None else f"{named}/versions/{quote(version, safe='')}"


def _error(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, TypeError, KeyError):
        return f"{answer!r:.200}"
