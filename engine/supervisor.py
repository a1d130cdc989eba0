"""Processes: starts workers, jobs and the store's writer, starts them again when they die, ends them in order.

Workers share one listening socket that the supervisor holds, so a restart refuses no connection. On
SIGTERM or SIGINT workers and jobs stop first, then the writer, so that everything journaled is stored.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec

from engine.child import UNUSABLE, ChildTask
from engine.listener import address, listen, reserve
from engine.readiness import Board
from engine.settings import Settings, SettingsError

_POLL_S = 0.1
_LONGEST_DELAY_S = 10.0
_STEADY_S = 5.0

_log = logging.getLogger("quadriga.supervisor")


class _Child:
    """One child process, started again with growing delay while it keeps dying young."""

    def __init__(
        self, name: str, task: ChildTask, ended: Callable[[], None] = lambda: None
    ) -> None:
        self.name = name
        self._ended = ended
        self._task = task
        self._delay_s = 0.0
        self._start_at = 0.0
        self._started_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        descriptors = [fd for fd in (self._task.listener_fd, self._task.board_fd) if fd >= 0]
        self._process = subprocess.Popen(  # noqa: S603 - our own module; its role is for `ps`
            [sys.executable, "-P", "-m", "engine.worker", self._task.role],
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
        )
        self._started_at = time.monotonic()
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self._task) + b"\n")
        self._process.stdin.flush()

    def watch(self) -> None:
        """Start it again if it has died and its delay is over.

        Raises:
            SettingsError: It says that it cannot work with these settings.
        """
        now = time.monotonic()
        if self._process is None:
            if now >= self._start_at:
                self.start()
            return
        code = self._process.poll()
        if code is None:
            return
        self._ended()
        if code == UNUSABLE:
            raise SettingsError(f"{self.name} cannot start; its reason stands above")
        steady = now - self._started_at > _STEADY_S
        self._delay_s = 0.2 if steady else min(max(self._delay_s * 2, 0.2), _LONGEST_DELAY_S)
        _log.error("%s ended with %d; again in %.1f s", self.name, code, self._delay_s)
        self.tell_to_stop()
        self._process = None
        self._start_at = now + self._delay_s

    def tell_to_stop(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def wait(self, until: float) -> bool:
        """Wait for its end; kill it when the time is over. Tells whether it ended by itself."""
        if self._process is None:
            return True
        try:
            code = self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _log.error("%s did not stop in time and is killed", self.name)
            self._process.kill()
            self._process.wait()
            return False
        return code == 0


def supervise(settings: Settings, announce: Callable[[str, str], None]) -> int:
    """Run the server until SIGTERM or SIGINT.

    Args:
        settings: Of the server.
        announce: Called with the URL of HTTP once connections are accepted, and with the address of
            gRPC, where workers accept them as they start; empty without.

    Returns:
        Exit status: 0 when every child ended by itself.

    Raises:
        SettingsError: The address is taken, or another server uses the data folder.
    """
    lock = _lock(Path(settings.data)) if settings.store else None
    try:
        listener = listen(settings.host, settings.port)
    except OSError as error:
        raise SettingsError(
            f"expected to listen on {settings.host} port {settings.port}, got: {error.strerror} "
            "(port 0 takes a free one)"
        ) from error
    grpc = _reserved(settings)
    grpc_address = "" if grpc is None else address(grpc)
    stopping: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopping.append(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    board = Board.create(settings.workers)
    run = _run_directory(Path(settings.data))
    workers = [
        _Child(
            f"worker {number}",
            ChildTask(
                "worker",
                settings,
                number,
                listener.fileno(),
                board.descriptor,
                grpc_address,
                str(run),
            ),
            ended=partial(board.mark, number, loaded=False),
        )
        for number in range(settings.workers)
    ]
    writers = [_Child("writer", ChildTask("writer", settings))] if settings.store else []
    jobs = [_Child("jobs", ChildTask("jobs", settings))] if settings.store else []
    for child in (*writers, *workers, *jobs):
        child.start()
    announce(f"http://{address(listener)}", grpc_address)
    try:
        while not stopping:
            for child in (*writers, *workers, *jobs):
                child.watch()
            time.sleep(_POLL_S)
    finally:
        listener.close()  # the workers have it still, and end it when they are done
        clean = _stop([*workers, *jobs], writers, settings.exit_timeout_s)
        if grpc is not None:
            grpc.close()
        shutil.rmtree(run, ignore_errors=True)
        with contextlib.suppress(OSError):
            run.parent.rmdir()  # another server may use it
        if lock is not None:
            os.close(lock)
    return 0 if clean else 1


def _run_directory(data: Path) -> Path:
    """Name the folder in which our workers meet, after removing those of dead servers."""
    directory, own = data.absolute() / "run", str(os.getpid())
    if directory.is_dir():
        for left in directory.iterdir():
            if left.name == own or not Path("/proc", left.name).exists():
                shutil.rmtree(left, ignore_errors=True)
    return directory / own


def _reserved(settings: Settings) -> socket.socket | None:
    """Take the port of gRPC, if there is to be one."""
    if settings.grpc_port < 0:
        return None
    try:
        return reserve(settings.host, settings.grpc_port)
    except OSError as error:
        raise SettingsError(
            f"expected to listen on {settings.host} port {settings.grpc_port} for gRPC, got: "
            f"{error.strerror} (grpc_port 0 takes a free one, -1 none)"
        ) from error


def _stop(workers: list[_Child], writers: list[_Child], timeout_s: float) -> bool:
    """End workers and jobs, then the writers; tells whether all ended by themselves."""
    clean = True
    for group in (workers, writers):
        until = time.monotonic() + timeout_s  # a slow worker does not take the writer's time
        for child in group:
            child.tell_to_stop()
        for child in group:
            clean = child.wait(until) and clean
    return clean


def _lock(data: Path) -> int:
    """Take the data folder for this server alone."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SettingsError(f"expected a data folder at {data}, got: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SettingsError(
            f"expected the data folder {data} for this server alone, got it in use: --data names another"
        ) from error
    return descriptor
