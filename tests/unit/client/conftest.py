"""A server that sends exactly what a test says, over plain sockets."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

PREDICTIONS = [
    {"label": "circle", "score": 0.9, "xmin": 1.0, "ymin": 2.0, "xmax": 11.0, "ymax": 22.0},
    {"label": "star", "score": 0.5, "xmin": 0.0, "ymin": 0.0, "xmax": 4.0, "ymax": 4.0},
]
Script = Callable[[socket.socket, bytes, int], object]


def response(status: int = 200, body: bytes = b"{}", *headers: str) -> bytes:
    """Return the bytes of a response with its length."""
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


def json_response(value: object, status: int = 200, *headers: str) -> bytes:
    """Return the bytes of a response of JSON."""
    return response(status, json.dumps(value).encode(), "Content-Type: application/json", *headers)


def inferred(predictions: object = PREDICTIONS, inference_id: str = "17") -> bytes:
    """Return the bytes of the answer to an inference."""
    output = {"name": "input-image-0", "data": [predictions], "shape": [1], "datatype": "BYTES"}
    output["parameters"] = {"inference_id": inference_id}
    return json_response({"model_name": "m", "model_version": "1", "id": "r", "outputs": [output]})


class FakeServer:
    """Answers each request by a script: it gets the socket, the request, and the number of the request from 0."""

    def __init__(self) -> None:
        self.script: Script = lambda sock, _, __: sock.sendall(inferred())
        self.requests: list[bytes] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def answers(self, *answers: bytes) -> None:
        """Send these answers in turn, the last one again and again."""
        self.script = lambda sock, _, number: sock.sendall(answers[min(number, len(answers) - 1)])

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(10)  # a socket that it accepts now has to be closed, too
        self._listener.close()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                self._sockets.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError, ValueError):
            while request := self._read(sock):
                number = len(self.requests)
                self.requests.append(request)
                if self.script(sock, request, number) == "close":
                    sock.shutdown(socket.SHUT_RDWR)
                    return

    def _read(self, sock: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = sock.recv(65536)
            if not chunk:
                return b""
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        lines = [line.lower() for line in head.split(b"\r\n")]
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        while len(body) < length:
            body += sock.recv(65536)
        return head + b"\r\n\r\n" + body


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.close()
