"""Clients that keep a server busy and remember what they heard."""

import json
import secrets
import threading
import time
from http.client import HTTPConnection, HTTPException

from tests.server_process import ServerProcess, image_input

PATH = "/v2/models/shapes-classifier/infer"


PAUSE_S = 0.02
"""Pause of a client between requests, which leaves time for what is tested under load."""


class Clients:
    """Threads that send small requests until they are told to stop.

    The metadata of each request is like no other's: `run`, `client` and `sent`.

    Args:
        server: The server, which may be away for a while.
        image: What is sent.
        count: How many send at once.
    """

    def __init__(self, server: ServerProcess, image: bytes, count: int = 6) -> None:
        self._server = server
        self._image = image
        self._run = secrets.token_hex(8)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(number,)) for number in range(count)
        ]
        self.acknowledged: list[str] = []
        self.refused: list[str] = []
        self.failed: list[str] = []
        for thread in self._threads:
            thread.start()

    def _send(self, number: int) -> None:
        connection: HTTPConnection | None = None
        sent = 0
        while not self._stop.wait(PAUSE_S):
            sent += 1
            metadata = {"run": self._run, "client": number, "sent": sent}
            body = json.dumps({"inputs": [image_input(self._image, metadata=metadata)]})
            try:
                if connection is None:
                    connection = HTTPConnection(self._server.host, timeout=30)
                    connection.connect()
            except OSError as error:
                self.refused.append(repr(error))
                time.sleep(0.01)
                connection = None
                continue
            try:
                connection.request("POST", PATH, body)
                response = connection.getresponse()
                answer = response.read()
            except (OSError, HTTPException) as error:
                self.failed.append(repr(error))
                connection.close()
                connection = None
                continue
            if response.status != 200:
                self.failed.append(f"{response.status} {answer!r}")
                continue
            self.acknowledged.append(json.loads(answer)["outputs"][0]["parameters"]["inference_id"])
            if response.getheader("connection") == "close":
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def finish(self) -> None:
        """Stop, once the requests under way are answered."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
