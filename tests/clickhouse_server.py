"""A ClickHouse of its own for tests: the engine that a wheel carries, behind as much HTTP as clients speak."""

import http.client
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec


class ClickHouseServer:
    """A server in a process of its own, on a free port of 127.0.0.1, with a folder of its own."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="quadriga-clickhouse-")
        self._port = 0
        self._numbers = itertools.count()
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def url(self, database: str) -> str:
        """Return the URL of a database, the same after a restart."""
        return f"http://default@127.0.0.1:{self._port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._directory, str(self._port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def close(self) -> None:
        """End it and remove what it holds."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def create(self) -> str:
        """Make a database and return its name."""
        name = f"test_{next(self._numbers)}"
        self._ask("default", f"CREATE DATABASE {name}")
        return name

    def query(self, database: str, text: str) -> list[dict[str, Any]]:
        """Return the rows of a statement, or none."""
        if re.match(r"\s*(SELECT|WITH)", text):
            text = f"{text.rstrip().rstrip(';')} FORMAT JSONEachRow"
        return [msgspec.json.decode(line) for line in self._ask(database, text).splitlines()]

    def _ask(self, database: str, text: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("POST", f"/?database={database}", text.encode())
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        assert response.status == 200, body.decode()
        return body


def serve(directory: str, port: int) -> None:
    """Serve the engine's folder; print the port."""
    from chdb.session import Session  # noqa: PLC0415 - in the process of the server alone

    session, lock = Session(directory), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            named = dict(parse_qsl(urlsplit(self.path).query))
            answered_in = re.search(r"FORMAT (\w+)$", text)
            try:
                with lock:  # there is one session, as there is one engine
                    session.query(f"USE {named.get('database', 'default')}")
                    result = session.query(text, answered_in[1] if answered_in else "TabSeparated")
                    body = result.bytes()
                self.answer(200, body)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client shall see it
                self.answer(500, str(error).encode())

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(server.server_port, flush=True)  # noqa: T201 - whoever starts it reads it
    server.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
