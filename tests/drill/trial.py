"""Servers under load from clients in processes of their own, and the comparison at the end."""

import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from quadriga.store.records.disk import write_atomically
from tests.drill.client import ACKNOWLEDGED, BUSY, FAILED
from tests.drill.outcomes import (
    Outcome,
    Result,
    count_lost_and_twice,
    longest_gap_s,
    read_outcomes,
    stored_rows,
)
from tests.postgres_server import PostgresServer
from tests.server_process import IMAGES, ROOT, SAMPLE_MODELS, ServerProcess

MODEL = SAMPLE_MODELS / "shapes-classifier"
_FOLDER = IMAGES / "classification"
IMAGE = _FOLDER / json.loads((_FOLDER / "annotations.jsonl").read_text().splitlines()[0])["path"]
PATIENCE_S = 120.0
"""Maximum time that a scene waits for the next acknowledgements."""


class Drill:
    """What all scenes share.

    Args:
        folder: Folder for everything that they write.
        kills: Number of SIGKILLs in all scenes of kills together.
        seconds: Duration of scenes that last for a time.
    """

    def __init__(self, folder: Path, kills: int = 300, seconds: float = 20.0) -> None:
        self.folder = folder
        self.kills = kills
        self.seconds = seconds
        self.chance = random.Random(1)

    @cached_property
    def postgres(self) -> PostgresServer:
        """A PostgreSQL, started when a scene first needs it."""
        return PostgresServer()

    def close(self) -> None:
        """Stop what was started."""
        if "postgres" in self.__dict__:
            self.postgres.close()

    def server(self, name: str, *flags: str, models: Path = MODEL) -> ServerProcess:
        """Return a server of HTTP and gRPC that is not started yet."""
        return ServerProcess(self.folder / name, models, "--grpc-port", "0", *flags)


def start_server(server: ServerProcess, *, ready: bool = True) -> None:
    """Start a server; wait until it is ready, though a worker may die meanwhile."""
    server.start(ready=False)

    def is_ready() -> bool:
        try:
            return bool(server.call("GET", "/v2/health/ready")[0] == 200)
        except OSError:
            return False

    if ready:
        server.wait_until(is_ready, PATIENCE_S)


class Load:
    """Clients that send requests until they are told to stop.

    Args:
        folder: Folder of their files.
        senders: Protocol and threads of each client.
        pause_s: Time between two requests of a thread.
    """

    def __init__(
        self,
        folder: Path,
        senders: Sequence[tuple[str, int]] = (("http", 2), ("grpc", 1)),
        pause_s: float = 0.01,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._addresses = folder / "addresses.json"
        self._files = [folder / f"client-{number}.log" for number in range(len(senders))]
        self._senders = senders
        self._pause_s = pause_s
        self._processes: list[subprocess.Popen[bytes]] = []

    def point_at(self, servers: Sequence[ServerProcess]) -> None:
        """Tell the clients where the servers are."""
        addresses = {
            "http": [server.host for server in servers],
            "grpc": [server.grpc for server in servers],
        }
        write_atomically(self._addresses, json.dumps(addresses).encode())

    def start(self) -> None:
        """Start the clients."""
        for (protocol, threads), path in zip(self._senders, self._files, strict=True):
            command = [sys.executable, "-m", "tests.drill.client", "--protocol", protocol]
            command += [
                "--addresses",
                str(self._addresses),
                "--output",
                str(path),
                "--image",
                str(IMAGE),
            ]
            command += ["--threads", str(threads), "--pause-s", str(self._pause_s)]
            with path.with_suffix(".err").open("wb") as log:
                self._processes.append(subprocess.Popen(command, cwd=ROOT, stderr=log))

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes of all requests so far."""
        return [*itertools.chain.from_iterable(map(read_outcomes, self._files))]

    def acknowledged_count(self) -> int:
        """Return the number of acknowledged requests so far."""
        return sum(outcome.kind == ACKNOWLEDGED for outcome in self.outcomes())

    def wait_for(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until so many more requests are acknowledged."""
        expected = self.acknowledged_count() + count
        until_s = time.monotonic() + timeout_s
        while self.acknowledged_count() < expected:
            assert time.monotonic() < until_s, f"expected {count} acknowledgements in {timeout_s} s"
            time.sleep(0.1)

    def finish(self) -> list[Outcome]:
        """Stop the clients, once the requests under way are answered, and return all outcomes."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return self.outcomes()


class Trial:
    """Servers of one database under load.

    Args:
        drill: What all scenes share.
        scene: Name of the scene.
        servers: Servers that are not started yet.
        url: URL of their database; default: the file of the first server.
        load: Clients; default: two of HTTP and one of gRPC.
    """

    def __init__(
        self,
        drill: Drill,
        scene: str,
        servers: Sequence[ServerProcess],
        *,
        url: str = "",
        load: Load | None = None,
    ) -> None:
        self.scene = scene
        self.servers = list(servers)
        self.url = url or f"sqlite:///{servers[0].data}/store.db"
        self.load = load or Load(drill.folder / f"{scene}-clients")
        self.notes: list[str] = []

    def start(self) -> "Trial":
        """Start servers and clients, and wait for first acknowledgements."""
        try:
            for server in self.servers:
                start_server(server)
            self.load.point_at(self.servers)
            self.load.start()
            self.load.wait_for(5)
        except BaseException:
            self.abandon()
            raise
        return self

    def restart(self, server: ServerProcess, *, ready: bool = False) -> None:
        """Start a server again that has ended, and tell the clients its new address."""
        start_server(server, ready=ready)
        self.load.point_at(self.servers)

    def finish(
        self,
        harm: str,
        *,
        orderly: bool = False,
        check: Callable[[list[Outcome]], str] = lambda _: "",
        **fields: Any,
    ) -> Result:
        """Stop clients and servers, and compare what was acknowledged with what is stored."""
        outcomes = self.load.finish()
        statuses = [server.stop() for server in self.servers]
        acknowledged = [int(outcome.text) for outcome in outcomes if outcome.kind == ACKNOWLEDGED]
        lost, twice = count_lost_and_twice(acknowledged, stored_rows(self.url))
        failures = [outcome for outcome in outcomes if outcome.kind in (FAILED, BUSY)]
        failed = sum(outcome.kind == FAILED for outcome in outcomes)
        if failures:
            self.notes.append(f"first failure: {failures[0].text[:100].replace('|', '/')}")
        broken = check(outcomes)
        if any(statuses):
            broken = broken or f"the servers ended with {statuses} on SIGTERM"
        return Result(
            self.scene,
            harm,
            len(acknowledged),
            lost,
            twice=twice,
            failed=failed,
            failed_in_orderly_restarts=len(failures) if orderly else None,
            outage_s=longest_gap_s(outcomes),
            note="; ".join(self.notes),
            broken=broken,
            **fields,
        )

    def abandon(self) -> None:
        """End everything after an error."""
        self.load.finish()
        for server in self.servers:
            if server.process is not None and server.process.poll() is None:
                server.kill()
