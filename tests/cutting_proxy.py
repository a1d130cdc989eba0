"""A proxy that ends connections at random points, in both directions, before a server that may move to another port."""

import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

_CHUNK_BYTES = 4096


class CuttingProxy:
    """Forwards connections, and cuts a share of them after a random number of bytes.

    Args:
        target: Returns `host:port` of the server as it is now.
        share: Share of the chunks after which a connection is cut, 0 to 1.
        seed: Seed of the random points.
    """

    def __init__(self, target: Callable[[], str], share: float, seed: int = 0) -> None:
        self._target = target
        self._share = share
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.cuts = {"to server": 0, "to client": 0}
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """URL of the proxy."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Accept no further connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        host, _, port = self._target().partition(":")
        try:
            server = socket.create_connection((host, int(port)), 10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        pairs = [(client, server, "to server"), (server, client, "to client")]
        threads = [threading.Thread(target=self._forward, args=pair, daemon=True) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()
        server.close()

    def _forward(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                if self._random.random() < self._share:
                    self.cuts[direction] += 1
                    sink.sendall(data[: self._random.randrange(len(data) + 1)])
                    break
                sink.sendall(data)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
