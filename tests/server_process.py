"""A real `quadriga serve` in processes of its own, for end-to-end tests and benchmarks."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from ssl import SSLContext
from typing import Any, Self

ROOT = Path(__file__).parent.parent
SAMPLE_MODELS = ROOT / "sample_models"
IMAGES = SAMPLE_MODELS / "images"
MODELS = {
    "classification": "shapes-classifier",
    "detection": "shapes-detector",
    "oriented": "ships-oriented-detector",
    "segmentation": "shapes-segmenter",
    "image-text": "shapes-image-text",
}
"""The sample model of each folder of `IMAGES`."""


class ServerProcess:
    """A server on a free port of 127.0.0.1, in a process group of its own.

    Args:
        data: Its data folder.
        models: What it serves.
        flags: Further flags of `quadriga serve`; `--grpc-port 0` for gRPC too.
        constants: Values of constants of modules below `quadriga` that a test needs shorter or smaller.
    """

    def __init__(
        self,
        data: Path,
        models: Path = SAMPLE_MODELS,
        *flags: str,
        constants: dict[str, dict[str, float]] | None = None,
    ) -> None:
        self.data = data
        self.flags = flags
        """Further flags of `quadriga serve`."""
        self._command = [
            sys.executable,
            "-m",
            "quadriga.engine.cli",
            "serve",
            str(models),
            "--port",
            "0",
        ]
        self._command += ["--grpc-port", "-1", "--data", str(data), *flags]
        self.process: subprocess.Popen[str] | None = None
        self.host = ""
        self.tls: SSLContext | None = None
        """Context of connections to a server with `--tls-certificate`."""
        self.environment: dict[str, str] = {}
        """Variables of its environment besides those of this process."""
        if constants:
            self.environment["PYTHONPATH"] = str(ROOT / "tests" / "constants")
            self.environment["CONSTANTS"] = json.dumps(constants)
        self.grpc = ""
        """`host:port` of gRPC, where there is one."""
        self.log = data.parent / f"{data.name}.log"

    def start(self, *, ready: bool = True) -> Self:
        """Start it, and wait until it is ready."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        assert self.process.stdout is not None
        line = self.read_announced()
        scheme = "http" if self.tls is None else "https"
        assert f"{scheme}://" in line, f"no address in {line!r}: {self.log.read_text()}"
        self.host = line.split("://")[1].strip()
        if "--grpc-port" in self.flags:
            self.grpc = self.read_announced().removeprefix("gRPC on ").strip()
        if ready:
            self.wait_until(lambda: self.call("GET", "/v2/health/ready")[0] == 200)
        return self

    def read_announced(self) -> str:
        """Read the next line in which the server says where it is, which is JSON if its log is."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "json" not in self.flags:
            return line
        text: str = json.loads(line)["message"]
        return text

    def wait_until(self, condition: Any, timeout_s: float = 180) -> None:
        """Wait until a condition holds."""
        until = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < until, (
                f"not within {timeout_s} s: {self.log.read_text()[-4000:]}"
            )
            assert self.process is not None
            assert self.process.poll() is None, f"the server ended: {self.log.read_text()[-4000:]}"
            time.sleep(0.05)

    def connect(self) -> HTTPConnection:
        """Return a new connection, not yet open."""
        if self.tls is None:
            return HTTPConnection(self.host, timeout=180)
        return HTTPSConnection(self.host, timeout=180, context=self.tls)

    def request(
        self, method: str, path: str, body: bytes | str | None = None, headers: Any = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one request on a connection of its own: status, headers, body."""
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return response.status, received, response.read()
        finally:
            connection.close()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send JSON, and read the JSON of the answer."""
        status, _, answer = self.request(method, path, None if body is None else json.dumps(body))
        return status, json.loads(answer)

    def infer(self, model: str, image: bytes, **parameters: Any) -> dict[str, Any]:
        """Ask a model about an image; gives the output of the answer."""
        body = {"inputs": [image_input(image, **parameters)]}
        status, answer = self.call("POST", f"/v2/models/{model}/infer", body)
        assert status == 200, answer
        output: dict[str, Any] = answer["outputs"][0]
        return output

    def store(self, model: str, image: bytes, **parameters: Any) -> str:
        """Run a model on an image as `infer` does, and return the id of the inference."""
        inference_id: str = self.infer(model, image, **parameters)["parameters"]["inference_id"]
        return inference_id

    def ended(self, job_id: str) -> dict[str, Any]:
        """Wait for the end of a job; gives the job."""
        self.wait_until(lambda: self.call("GET", f"/api/jobs/{job_id}")[1]["ended_at"])
        job: dict[str, Any] = self.call("GET", f"/api/jobs/{job_id}")[1]
        return job

    def query(self, filter_: Any, **options: Any) -> list[dict[str, Any]]:
        """Find stored inferences, all pages, including those acknowledged just now."""
        inferences: list[dict[str, Any]] = []
        body = {"where": filter_, "limit": 1000, "consistency": "journal", **options}
        while True:
            status, page = self.call("POST", "/api/inferences/query", body)
            assert status == 200, page
            inferences.extend(page["inferences"])
            if page["cursor"] is None:
                return inferences
            body["cursor"] = page["cursor"]

    def child_pids(self) -> list[int]:
        """Give the process ids of the supervisor and all of its children."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [self.process.pid, *map(int, children.split())]

    def child_pid(self, role: str) -> int:
        """Find a child by its role, with which the last word of its command line begins; 0 if it is not there."""
        for pid in self.child_pids()[1:]:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
                continue
            if command.rstrip(b"\0").rpartition(b"\0")[2].startswith(role.encode()):
                return pid
        return 0

    def kill_child(self, role: str) -> None:
        """End a child as a crash does, once it is there."""
        self.wait_until(lambda: self.child_pid(role))
        pid = self.child_pid(role)
        assert pid, f"expected the {role} to be there"  # 0 would be our own process group
        os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the whole process group at once, as a power cut of the processes would."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        """Send SIGTERM to the supervisor; gives its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(180)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()


def quadriga(
    *arguments: object,
    code: int = 0,
    cwd: Path = ROOT,
    env: dict[str, str] | None = None,
    timeout_s: float = 180,
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, which must end with a code."""
    done = subprocess.run(
        [sys.executable, "-m", "quadriga.engine.cli", *map(str, arguments)],
        cwd=cwd, env=env, timeout=timeout_s, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


def free_port() -> int:
    """Find a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def image_input(
    image: bytes | str, name: str = "input-image-0", **parameters: Any
) -> dict[str, Any]:
    """Make one chariot-v2-kserve input of an image, or of the text given in its place."""
    text = image if isinstance(image, str) else base64.b64encode(image).decode()
    tensor: dict[str, Any] = {"name": name, "shape": [1], "datatype": "BYTES", "data": [text]}
    if parameters:
        tensor["parameters"] = parameters
    return tensor
