"""Quadriga, a bare application, and other servers, each started when its turn comes.

A peer is a folder below `peers`, with its server and the packages of its environment below `.peers`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import msgspec
from measuring import end_all
from peer_models import CORES
from questions import (
    DETECTOR,
    GRPC,
    IMAGE_MODELS,
    JSON,
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

    @property
    def is_installed(self) -> bool:
        """Whether the environment is there, complete."""
        return not self.folder or (ENVIRONMENTS / self.folder / "installed").exists()


HTTP_JSON = (JSON, *IMAGE_MODELS)
BARE_PATHS = tuple(path for path, model in IMAGE_MODELS.items() if model != DETECTOR)
"""Paths of images that the bare application has."""

CONTESTANTS = (
    Contestant(name="bare ASGI", dialect=QUADRIGA, paths=TENSOR_PATHS, flags=("0",)),
    Contestant(name="bare ASGI", dialect=QUADRIGA, paths=BARE_PATHS, flags=(str(CORES),)),
    Contestant(name="Quadriga, store off", dialect=QUADRIGA, paths=PATHS, flags=("--no-store",)),
    Contestant(name="Quadriga, store on", dialect=QUADRIGA, paths=PATHS),
    Contestant(name="MLServer", folder="mlserver", dialect=V2, paths=(*HTTP_JSON, GRPC)),
    Contestant(
        name="MLServer, workers",
        folder="mlserver",
        dialect=V2,
        paths=(*HTTP_JSON, GRPC),
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
            with bare(models, int(contestant.flags[0])) as (addresses, _):
                yield addresses
        else:
            with ServerProcess(
                folder / "data", models, "--grpc-port", "0", *contestant.flags
            ) as server:
                yield Addresses(server.host, server.grpc)
    finally:
        end_all()


@contextmanager
def bare(models: Path, threads: int) -> Iterator[tuple[Addresses, int]]:
    """Start the bare application; give its addresses and the id of its process."""
    command = [sys.executable, str(BENCH / "bare_application.py"), str(models), str(threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        http_port, grpc_port = process.stdout.readline().split()
        try:
            yield Addresses(f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}"), process.pid
        finally:
            process.kill()


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
    head, _, body = questions.traffic(JSON, contestant.dialect).requests[0].partition(b"\r\n\r\n")
    url, headers = head.split()[1].decode(), {"Content-Type": "application/json"}
    end_s = time.monotonic() + START_LIMIT_S
    while True:
        with suppress(OSError, HTTPException):
            connection = HTTPConnection("127.0.0.1", http_port, timeout=10)
            connection.request("POST", url, body, headers)
            if connection.getresponse().status == 200:
                return Addresses(f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}")
        if process.poll() is not None or time.monotonic() > end_s:
            end = log_path.read_text()[-2000:]
            raise ConnectionError(f"no answer from the server; its log ends: {end}")
        time.sleep(0.2)
