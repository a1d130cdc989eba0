"""Quadriga, a bare application, and the peers, each started when its turn comes.

A peer is a folder below `peers`, with its server and the packages of its environment below `.peers`.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO

import msgspec
from peer_models import CORES
from peer_paths import (
    IMAGE_MODELS,
    NATIVE,
    NATIVE_ONE_URL,
    PATHS,
    QUADRIGA,
    TENSOR_PATHS,
    V2,
    V2_IMAGE_MODELS,
    Dialect,
    Questions,
)
from processes import end_all

from tests.server_process import ROOT, ServerProcess, free_port

BENCH = Path(__file__).parent
ENVIRONMENTS = ROOT / ".peers"
START_LIMIT_S = 90


class Addresses(msgspec.Struct, frozen=True):
    """Addresses of a server, each as `host:port`."""

    http: str
    grpc: str


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """A server that is measured."""

    name: str
    folder: str = ""
    """Folder of a peer; empty for those of this project."""
    dialect: Dialect
    paths: Sequence[str]
    flags: Sequence[str] = ()
    """Flags of Quadriga, or number of threads of the bare application."""
    workers: int = 0
    """Processes with models, where a peer is measured in more than one set-up."""
    settles: bool = False
    """Whether it goes on with its work after it has answered."""

    @property
    def is_installed(self) -> bool:
        """Whether the environment is there, complete."""
        return not self.folder or (ENVIRONMENTS / self.folder / "installed").exists()

    def version(self) -> str:
        """Return the version of a peer's package, empty for those of this project."""
        package = PACKAGES.get(self.folder, self.folder)
        folders = (ENVIRONMENTS / self.folder).glob(
            f"lib/python*/site-packages/{package}-*.dist-info"
        )
        return next((re.sub(r".*-(.*)\.dist-info", r"\1", path.name) for path in folders), "")


PACKAGES = {"triton": "nvidia_pytriton"}
"""Packages that are not called as their folder."""
HTTP_JSON = ("tiny JSON", *IMAGE_MODELS)
BARE_PATHS = tuple(path for path in IMAGE_MODELS if path != "detector JPEG")
"""Paths of images that the bare application has."""

CONTESTANTS = (
    Contestant(name="bare ASGI", dialect=QUADRIGA, paths=TENSOR_PATHS, flags=("0",)),
    Contestant(name="bare ASGI", dialect=QUADRIGA, paths=BARE_PATHS, flags=(str(CORES),)),
    Contestant(name="Quadriga, store off", dialect=QUADRIGA, paths=PATHS, flags=("--no-store",)),
    Contestant(name="Quadriga, store on", dialect=QUADRIGA, paths=PATHS, settles=True),
    Contestant(name="MLServer", folder="mlserver", dialect=V2, paths=(*HTTP_JSON, "tiny gRPC")),
    Contestant(
        name="MLServer, workers",
        folder="mlserver",
        dialect=V2,
        paths=(*HTTP_JSON, "tiny gRPC"),
        workers=CORES,
    ),
    Contestant(name="KServe", folder="kserve", dialect=V2, paths=PATHS),
    Contestant(name="Triton", folder="triton", dialect=V2_IMAGE_MODELS, paths=PATHS),
    Contestant(name="FastAPI", folder="fastapi", dialect=NATIVE, paths=HTTP_JSON),
    Contestant(name="BentoML", folder="bentoml", dialect=NATIVE, paths=HTTP_JSON),
    Contestant(name="LitServe", folder="litserve", dialect=NATIVE_ONE_URL, paths=HTTP_JSON),
    Contestant(name="Ray Serve", folder="ray", dialect=NATIVE_ONE_URL, paths=HTTP_JSON),
)


@contextmanager
def running(
    contestant: Contestant, models: Path, folder: Path, questions: Questions
) -> Iterator[Addresses]:
    """Start a server in a new folder, wait for its first answer, and end all of its processes afterwards."""
    folder.mkdir(parents=True)
    try:
        if contestant.folder:
            yield _start_peer(contestant, models, folder, questions)
        elif contestant.name.startswith("bare"):
            yield _start_bare(contestant, models, folder)
        else:
            server = ServerProcess(folder / "data", models, "--grpc-port", "0", *contestant.flags)
            server.start()
            try:
                yield Addresses(server.host, server.grpc)
            finally:
                server.stop()
    finally:
        end_all()


def _start_bare(contestant: Contestant, models: Path, folder: Path) -> Addresses:
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(BENCH / "bare_application.py"), str(models), *contestant.flags],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    output: IO[str] | None = process.stdout
    assert output is not None
    http_port, grpc_port = output.readline().split()
    return Addresses(f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}")


def _start_peer(
    contestant: Contestant, models: Path, folder: Path, questions: Questions
) -> Addresses:
    http_port, grpc_port = free_port(), free_port()
    home = BENCH / "peers" / contestant.folder
    environment = {
        **os.environ,
        "PYTHONPATH": f"{home}{os.pathsep}{BENCH}",
        "PEER_MODELS": str(models),
        "PEER_HTTP_PORT": str(http_port),
        "PEER_GRPC_PORT": str(grpc_port),
        "PEER_WORKERS": str(contestant.workers),
    }
    environment.pop("VIRTUAL_ENV", None)
    python = ENVIRONMENTS / contestant.folder / "bin" / "python"
    log_path = folder / "log"
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [str(python), str(home / "server.py")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    addresses = Addresses(f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}")
    request = questions.traffic("tiny JSON", contestant.dialect).requests[0]
    _wait_until(lambda: _answers(addresses.http, request), process, log_path)
    return addresses


def _wait_until(holds: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + START_LIMIT_S
    while not holds():
        if process.poll() is not None or time.monotonic() > end_s:
            raise ConnectionError(
                f"no answer from the server; its log ends: {log.read_text()[-2000:]}"
            )
        time.sleep(0.2)


def _answers(address: str, request: bytes) -> bool:
    head, _, body = request.partition(b"\r\n\r\n")
    url = head.split()[1].decode()
    connection = HTTPConnection(address, timeout=10)
    try:
        connection.request("POST", url, body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
