"""Passes requests on to a server, and writes the bodies of POST into a folder: payloads for tests without Label Studio."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

_PASSED_ON = ("Authorization", "X-API-Key", "Content-Type")


@contextmanager
def recording(target: str, folder: Path) -> Iterator[str]:
    """Listen on 127.0.0.1, and pass requests on to a host with its port; gives the host to ask instead."""
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            payload = json.loads(body)
            payload.pop("access_token", None)
            name = str(payload.get("action") or self.path.rpartition("/")[2]).lower()
            counts[name] = counts.get(name, 0) + 1
            if counts[name] == 1:
                (folder / f"{name}.json").write_text(json.dumps(payload, indent=1) + "\n")
            self._pass_on(body)

        def _pass_on(self, body: bytes | None) -> None:
            headers = {n: self.headers[n] for n in _PASSED_ON if self.headers[n] is not None}
            connection = HTTPConnection(target, timeout=120)
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            content = response.read()
            self.send_response(response.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
