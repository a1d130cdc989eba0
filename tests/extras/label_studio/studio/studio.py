"""A real Label Studio in a process of its own, with SQLite, on 127.0.0.1, which asks nobody else for anything."""

import json
import os
import signal
import socket
import subprocess
import time
import uuid
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

USER, PASSWORD = "anna@example.org", "correct-horse"
TOKEN = "0123456789abcdef0123456789abcdef01234567"


class LabelStudio:
    """A server with one user.

    Args:
        program: The command `label-studio`.
        folder: Folder of its data, whose folder `files` it may serve to its users.
    """

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program.absolute()  # it starts in a folder of its own
        self._folder = folder
        self.files = folder / "files"
        self.log_file = folder / "label-studio.log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.host = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{self.host}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, which makes its database first: about a minute."""
        self.files.mkdir(parents=True)
        environment = {
            **os.environ,
            "COLLECT_ANALYTICS": "false",
            "SENTRY_DSN": "",
            "FRONTEND_SENTRY_DSN": "",
            "LATEST_VERSION_CHECK": "false",
            # Both servers are on this machine, which it otherwise sends nothing to.
            "ML_BLOCK_LOCAL_IP": "false",
            "SSRF_PROTECTION_ENABLED": "false",
            "WEBHOOK_TIMEOUT": "30",
            "LOCAL_FILES_SERVING_ENABLED": "true",
            "LOCAL_FILES_DOCUMENT_ROOT": str(self.files),
        }
        command = [str(self._program), "start", "--no-browser", "--internal-host", "127.0.0.1"]
        command += ["--port", self.host.partition(":")[2], "--data-dir", str(self._folder / "data")]
        command += ["--username", USER, "--password", PASSWORD, "--user-token", TOKEN]
        command += ["--enable-legacy-api-token"]
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self._folder,
                start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + 300
        while not self._is_up():
            assert time.monotonic() < until, self.log()
            assert self._process.poll() is None, self.log()
            time.sleep(0.5)
        return self

    def log(self) -> str:
        """Return the end of its log."""
        return self.log_file.read_text(errors="replace")[-4000:]

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Send JSON with the user's token; return the JSON of the answer."""
        headers = {"Authorization": f"Token {TOKEN}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        return self._send(method, path, data, headers | options)

    def upload(self, path: str, name: str, data: bytes) -> Any:
        """Upload a file as a form has it."""
        boundary = uuid.uuid4().hex
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
            "Content-Type: image/jpeg\r\n\r\n"
        )
        form = head.encode() + data + f"\r\n--{boundary}--\r\n".encode()
        kind = f"multipart/form-data; boundary={boundary}"
        headers = {"Authorization": f"Token {TOKEN}", "Content-Type": kind}
        return self._send("POST", path, form, headers)

    def close(self) -> None:
        """End it."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(30)

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        connection = HTTPConnection(self.host, timeout=120)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        assert 200 <= response.status < 300, (method, path, response.status, answer[:2000])
        return json.loads(answer) if answer else None

    def _is_up(self) -> bool:
        connection = HTTPConnection(self.host, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()
