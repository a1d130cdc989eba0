"""The servers of the drill, each on a port of its own that it keeps, and which of them Prometheus scrapes."""

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from tests.drill.trial import MODEL, PATIENCE_S, start_server
from tests.postgres_server import PostgresServer
from tests.prometheus_drill.prometheus import Firing, Prometheus
from tests.server_process import ServerProcess, free_port


class Stage:
    """What all parts of the drill share.

    Args:
        folder: Folder for everything that they write.
        prometheus: The Prometheus that scrapes, started.
        factor: The times of alerts are divided by this.
    """

    def __init__(self, folder: Path, prometheus: Prometheus, factor: float) -> None:
        self.folder = folder
        self.prometheus = prometheus
        self.factor = factor
        self._scraped: dict[str, str] = {}
        self._lock = threading.Lock()

    @cached_property
    def postgres(self) -> PostgresServer:
        """A PostgreSQL, started when it is first needed."""
        return PostgresServer()

    def close(self) -> None:
        """Stop what was started."""
        if "postgres" in self.__dict__:
            self.postgres.close()

    def server(
        self, name: str, *flags: str, models: Path = MODEL, hang_timeout_s: float = 60
    ) -> ServerProcess:
        """Return a server of HTTP and gRPC that is not started yet."""
        port = ("--port", str(free_port()))
        constants = {"engine.processes.watchdog": {"HANG_TIMEOUT_S": hang_timeout_s}}
        return ServerProcess(
            self.folder / name, models, "--grpc-port", "0", *port, *flags, constants=constants
        )

    @contextmanager
    def running(self, server: ServerProcess, *, ready: bool = True) -> Iterator[ServerProcess]:
        """Start a server and scrape it; at the end, stop it, and scrape it no more."""
        start_server(server, ready=ready)
        self.scrape(server)
        try:
            yield server
        finally:
            with self._lock:
                self._scraped.pop(server.host, None)
                self.prometheus.point_at(self._scraped)
            if server.process is not None and server.process.poll() is None:
                try:
                    server.stop()
                except subprocess.TimeoutExpired:
                    server.kill()

    def scrape(self, server: ServerProcess) -> None:
        """Scrape a server from now on; return once that was done a few times."""
        with self._lock:
            self._scraped[server.host] = "http" if server.tls is None else "https"
            self.prometheus.point_at(self._scraped)
        self.prometheus.wait_for_scrapes([server.host])

    def wait_until_fires(self, firing: Firing, timeout_s: float) -> float | None:
        """Wait until an alert fires; return the seconds, None if it does not in time."""
        return self._wait(firing, timeout_s, fires=True)

    def wait_until_silent(self, firing: Firing, timeout_s: float) -> float | None:
        """Wait until an alert does not fire any more; return the seconds, None if it does not end in time."""
        return self._wait(firing, timeout_s, fires=False)

    def alerts_since(self, host: str, seconds: float, state: str = "firing") -> set[str]:
        """Return the alerts of a server that fired, or were pending, at any time of the last seconds."""
        labels = f'alertstate="{state}",instance="{host}"'
        query = f"count_over_time(ALERTS{{{labels}}}[{round(seconds * 1000)}ms])"
        return {dict(labels)["alertname"] for labels in self.prometheus.values(query)}

    def _wait(self, firing: Firing, timeout_s: float, *, fires: bool) -> float | None:
        begun_s = time.monotonic()
        while (firing in self.prometheus.firing()) is not fires:
            if time.monotonic() - begun_s > timeout_s:
                return None
            time.sleep(0.25)
        return time.monotonic() - begun_s

    def models(self, name: str) -> Path:
        """Make a folder with the usual model, to which others may be added."""
        models = self.folder / f"{name}-models"
        shutil.copytree(MODEL, models / MODEL.name)
        return models


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[bool]:
    """Mount a file system in memory on a folder; give whether that is allowed here."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


def wait_until_answers(server: ServerProcess, path: str = "/metrics") -> None:
    """Wait until a server answers, whether it is ready or not."""

    def answers() -> bool:
        try:
            return server.request("GET", path)[0] == 200
        except OSError:
            return False

    server.wait_until(answers, PATIENCE_S)
