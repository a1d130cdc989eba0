"""A client of a running server, over persistent connections, and a server of a command's own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from ssl import SSLCertVerificationError, SSLContext, create_default_context
from typing import IO, Any
from urllib.parse import quote, urlsplit

import msgspec

from quadriga.engine.commands.output import RenderPage
from quadriga.engine.config.settings import (
    API_KEY_VARIABLE,
    CA_VARIABLE,
    CLIENT_CERTIFICATE_VARIABLE,
    FILE_SUFFIX,
    SettingsError,
    read_secret,
)
from quadriga.monitor.report.schema import Report
from quadriga.proto.access import TEAM_HEADER

RESPONSE_TIMEOUT_S = 300.0
"""Maximum time until a response."""

BUSY_TIMEOUT_S = 60.0
"""Maximum time to wait while a server is busy or a model is loading."""

POLL_INTERVAL_S = 0.2
"""Time between two looks at the state of a job or a model."""

NOT_FOUND = 404
"""Status of what the server does not know."""

_BUSY_STATUSES = {429, 503}
_STOP_TIMEOUT_S = 30.0
_MAX_LOG_BYTES = 2000
_KEY_HINT = f": set {API_KEY_VARIABLE} or {API_KEY_VARIABLE}{FILE_SUFFIX}"
_NO_TLS = ("--tls-certificate=", "--tls-key=", "--tls-client-ca=")
"""Flags of a server of a command's own, which only this machine reaches, whatever quadriga.toml says."""


class ServerError(OSError):
    """The server does not respond, or not as expected."""


class ServerRefused(ServerError):
    """The server responded to a request with an error."""

    def __init__(self, status: int, text: str, hint: str = "") -> None:
        super().__init__(f"{text} ({status}){hint}")
        self.status = status


class ServerClient:
    """A server at a URL, maybe with a path; safe to use from several threads.

    Methods raise `ServerRefused` if the server responds with an error, else `ServerError`.

    Args:
        url: The URL.
        busy_timeout_s: Maximum time that a request is repeated while the server is busy; None for `BUSY_TIMEOUT_S`.
        key: Key to send; default: that of the environment.
        tls: Returns the context of a new connection to a URL with https; default: what the environment names.
        team: Team that a job of the server works for, as its own key tells the server; empty for none.
    """

    def __init__(
        self,
        url: str,
        busy_timeout_s: float | None = None,
        key: str | None = None,
        tls: Callable[[], SSLContext] | None = None,
        *,
        team: str = "",
    ) -> None:
        self._credentials = credentials(environment_key() if key is None else key)
        if team:
            self._credentials |= {TEAM_HEADER.decode(): quote(team)}
        url_parts = urlsplit(url if "//" in url else f"http://{url}")
        if url_parts.scheme not in {"http", "https"} or not url_parts.hostname:
            raise ServerError(f"expected a URL such as http://127.0.0.1:8080, got {url}")
        self.url = url
        self._busy_timeout_s = busy_timeout_s
        self._host, self._prefix = url_parts.netloc, url_parts.path.rstrip("/")
        self._tls: Callable[[], SSLContext] | None = None
        if url_parts.scheme == "https":
            self._tls = tls or partial(_same, environment_tls())
        self._idle: list[HTTPConnection] = []

    def request_json(self, method: str, path: str, body: Any = None) -> Any:
        """Send JSON, and return the JSON of the response."""
        sent = None if body is None else json.dumps(body).encode()
        return json.loads(self.read_bytes(method, path, sent))

    def read_bytes(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request on a connection of its own, and return the body of the response."""
        self.close()
        try:
            return self._send_until_ready(method, path, body, {})
        finally:
            self.close()

    def infer(self, model: str, image: bytes, name: str, parameters: dict[str, Any]) -> Any:
        """Send an image file unchanged by chariot-v2-kserve, and return the response.

        Args:
            model: The model, as `model_path` names it.
            image: Bytes of the image file.
            name: Name of the input.
            parameters: Parameters of the input.
        """
        size = len(image).to_bytes(4, "little")
        parameters = {**parameters, "binary_data_size": len(image) + 4}
        tensor = {"name": name, "shape": [1], "datatype": "BYTES", "parameters": parameters}
        text = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        path = f"/v2/models/{model}/infer"
        return json.loads(self._send_until_ready("POST", path, text + size + image, headers))

    def close(self) -> None:
        """Close the idle connections."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _send_until_ready(self, method: str, path: str, body: bytes | None, headers: Any) -> bytes:
        timeout_s = BUSY_TIMEOUT_S if self._busy_timeout_s is None else self._busy_timeout_s
        deadline_s = time.monotonic() + timeout_s
        while True:
            status, wait_s, response = self._send(method, path, body, headers)
            if status in _BUSY_STATUSES and time.monotonic() + wait_s < deadline_s:
                self.close()  # or the server may close it meanwhile
                time.sleep(wait_s)
                continue
            if status >= 400:
                is_without_key = status == HTTPStatus.UNAUTHORIZED and not self._credentials
                raise ServerRefused(
                    status, _error_text(response), _KEY_HINT if is_without_key else ""
                )
            return response

    def _connect(self) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(self._host, timeout=RESPONSE_TIMEOUT_S)
        return HTTPSConnection(self._host, timeout=RESPONSE_TIMEOUT_S, context=self._tls())

    def _send(
        self, method: str, path: str, body: bytes | None, headers: Any
    ) -> tuple[int, float, bytes]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            connection.request(method, self._prefix + path, body, {**headers, **self._credentials})
            response = connection.getresponse()
            retry_after = response.getheader("Retry-After") or ""
            content = response.read()
        except (OSError, HTTPException) as error:
            connection.close()
            hint = f" ({CA_VARIABLE} names the file of its authority)" * isinstance(
                error, SSLCertVerificationError
            )
            raise ServerError(
                f"expected a server at {self.url}, got: {str(error) or repr(error)}{hint}"
            ) from error
        self._idle.append(connection)
        return response.status, float(retry_after) if retry_after.isdigit() else 1.0, content


def environment_key() -> str:
    """Return the key that the environment has for commands, itself or in a file; empty if none.

    Raises:
        SettingsError: The file cannot be read.
    """
    variable = API_KEY_VARIABLE + FILE_SUFFIX
    if not os.environ.get(variable):
        return os.environ.get(API_KEY_VARIABLE, "")
    if os.environ.get(API_KEY_VARIABLE):
        raise SettingsError(f"expected {API_KEY_VARIABLE} or {variable}, got both")
    return read_secret(variable, os.environ).strip()


def credentials(key: str) -> dict[str, str]:
    """Return the headers that present a key; none for an empty one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def environment_tls() -> SSLContext:
    """Return the context with which commands connect: authorities and certificate are those that the environment names.

    Raises:
        ServerError: A file cannot be used.
    """
    authorities = os.environ.get(CA_VARIABLE) or None
    try:
        context = create_default_context(cafile=authorities)
    except OSError as error:
        raise _unusable(CA_VARIABLE, error) from error
    if own := os.environ.get(CLIENT_CERTIFICATE_VARIABLE):
        try:
            context.load_cert_chain(own)
        except OSError as error:
            raise _unusable(CLIENT_CERTIFICATE_VARIABLE, error) from error
    return context


def _unusable(variable: str, error: OSError) -> ServerError:
    reason = getattr(error, "reason", None) or error.strerror
    return ServerError(f"{variable}: cannot use {os.environ[variable]}: {reason}")


def _same(context: SSLContext) -> SSLContext:
    return context


def model_path(name: str, version: str | None) -> str:
    """Return the part of a URL that names a model."""
    quoted = quote(name, safe="")
    return quoted if version is None else f"{quoted}/versions/{quote(version, safe='')}"


OnProgress = Callable[[int, int | None], None]
"""Called with the number of items that are done, and how many there are (None if unknown)."""


def wait_for_job(server: ServerClient, job: Any, on_progress: OnProgress) -> str:
    """Wait for a job, given as the server returned it, and return its id.

    Raises:
        ServerError: The server does not respond, or the job ends without a result.
    """
    job = wait_for_end(
        server, job, lambda job: on_progress(job["progress"]["done"], job["progress"]["total"])
    )
    if job["state"] != "succeeded":
        raise ServerError(job["error"] or f"the job was {job['state']}")
    return str(job["id"])


def wait_for_end(server: ServerClient, job: Any, show: Callable[[Any], None]) -> Any:
    """Wait until a job, given as the server returned it, has ended, and return it as it then is; `show` gets it until then.

    Raises:
        ServerError: The server does not respond.
    """
    while job["state"] in {"queued", "running"}:
        show(job)
        time.sleep(POLL_INTERVAL_S)
        job = server.request_json("GET", f"/api/jobs/{job['id']}")
    return job


def wait_for_report(
    server: ServerClient, job: Any, on_progress: OnProgress
) -> tuple[Report, RenderPage]:
    """Wait for a job as `wait_for_job` does; return its report, and the function that returns its page."""
    path = f"/api/reports/{wait_for_job(server, job, on_progress)}"
    report = msgspec.json.decode(server.read_bytes("GET", path), type=Report)
    page = server.read_bytes("GET", f"{path}/page").decode()
    return report, lambda _: page


@contextmanager
def own_server(
    models: Path, data: Path | str, log: IO[bytes]
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve models on a free port while the block lasts; yields the URL and the process.

    Raises:
        ServerError: The server does not start; the message has the end of its log.
    """
    command = [
        sys.executable,
        "-P",  # a quadriga.py in the current folder is not ours
        "-m",
        "quadriga.engine.cli",
        "serve",
        str(models),
        "--data",
        str(data),
    ]
    with subprocess.Popen(  # noqa: S603 - our own program
        [*command, "--port", "0", "--grpc-port", "-1", *_NO_TLS],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,  # Ctrl-C ends who started it, which then ends the server
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if "http" not in line:
                process.wait(_STOP_TIMEOUT_S)
                log.seek(0)
                reason = log.read()[-_MAX_LOG_BYTES:].decode(errors="replace").strip()
                raise ServerError(f"cannot serve {models}: {reason}")
            yield line.split()[-1], process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, TypeError, KeyError):
        return f"{body!r:.200}"
