"""Processes: starts workers, jobs and the store's writer, starts them again when they die, ends them in order.

Workers share one listening socket that the supervisor holds, so a restart refuses no connection. On
SIGTERM or SIGINT workers and jobs stop first, then the writer, so that everything journaled is stored.
"""

import contextlib
import errno
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
from typing import Literal

import msgspec

from quadriga.engine.processes.listener import format_address, listen, reserve
from quadriga.engine.readiness import ReadinessFlags
from quadriga.engine.settings import Settings, SettingsError

EXIT_UNUSABLE = 78
"""Exit status of a child that no restart can help: the settings are wrong (EX_CONFIG)."""

_POLL_INTERVAL_S = 0.1
_MAX_RESTART_DELAY_S = 10.0
_STABLE_AFTER_S = 5.0

_log = logging.getLogger("quadriga.supervisor")


class ChildTask(msgspec.Struct, frozen=True):
    """What a child is to do."""

    role: Literal["worker", "writer", "jobs"]
    settings: Settings
    number: int = 0
    """Of a worker; no two that run at once share one."""
    listener_fd: int = -1
    """The listening socket, inherited."""
    readiness_fd: int = -1
    """The shared memory in which workers say that they are ready, inherited."""
    grpc_address: str = ""
    """Where to listen for gRPC, beside the other workers; empty for not at all."""
    run_directory: str = ""
    """Where workers meet to load and unload models."""


class _Child:
    """One child process, started again with growing delay while it keeps dying young."""

    def __init__(self, task: ChildTask, ended: Callable[[], None] = lambda: None) -> None:
        self._name = f"worker {task.number}" if task.role == "worker" else task.role
        self._ended = ended
        self._task = task
        self._delay_s = 0.0
        self._start_at = 0.0
        self._started_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        descriptors = [fd for fd in (self._task.listener_fd, self._task.readiness_fd) if fd >= 0]
        self._process = subprocess.Popen(  # noqa: S603 - our own module; its role is for `ps`
            [sys.executable, "-P", "-m", "quadriga.engine.processes.worker", self._task.role],
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
        if code == EXIT_UNUSABLE:
            raise SettingsError(f"{self._name} cannot start; its reason stands above")
        steady = now - self._started_at > _STABLE_AFTER_S
        self._delay_s = 0.2 if steady else min(max(self._delay_s * 2, 0.2), _MAX_RESTART_DELAY_S)
        _log.error("%s ended with %d; again in %.1f s", self._name, code, self._delay_s)
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
            _log.error("%s did not stop in time and is killed", self._name)
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
    lock = _lock_data_folder(Path(settings.data)) if settings.store else None
    listener = _open_socket(
        listen, settings.host, settings.port, hint=" (--port 0 takes a free one)"
    )
    grpc, grpc_address = None, ""
    if settings.grpc_port >= 0:
        hint = " (--grpc-port 0 takes a free one, -1 none)"
        grpc = _open_socket(reserve, settings.host, settings.grpc_port, " for gRPC", hint)
        grpc_address = format_address(grpc)
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stopping.append(number))
    readiness, run = ReadinessFlags.create(settings.workers), _run_directory(Path(settings.data))
    shared = listener.fileno(), readiness.descriptor, grpc_address, str(run)
    answering = [
        _Child(
            ChildTask("worker", settings, number, *shared),
            partial(readiness.mark, number, loaded=False),
        )
        for number in range(settings.workers)
    ]
    storing = []
    if settings.store:
        answering.append(_Child(ChildTask("jobs", settings)))
        storing.append(_Child(ChildTask("writer", settings)))
    children = [*storing, *answering]
    for child in children:
        child.start()
    announce(f"http://{format_address(listener)}", grpc_address)
    try:
        while not stopping:
            for child in children:
                child.watch()
            time.sleep(_POLL_INTERVAL_S)
    finally:
        listener.close()  # the workers have it still, and end it when they are done
        clean = [_stop_children(group, settings.exit_timeout_s) for group in (answering, storing)]
        if grpc is not None:
            grpc.close()
        shutil.rmtree(run, ignore_errors=True)
        with contextlib.suppress(OSError):
            run.parent.rmdir()  # another server may use it
        if lock is not None:
            os.close(lock)
    return 0 if all(clean) else 1


def _open_socket(
    opens: Callable[[str, int], socket.socket], host: str, port: int, what: str = "", hint: str = ""
) -> socket.socket:
    """Open a socket, or say why that cannot be."""
    try:
        return opens(host, port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            hint = ""  # it is not the port's fault
        raise SettingsError(
            f"expected to listen on {host} port {port}{what}, got: {error.strerror}{hint}"
        ) from error


def _run_directory(data: Path) -> Path:
    """Name the folder in which our workers meet, after removing those of dead servers."""
    directory, own = data.absolute() / "run", str(os.getpid())
    if directory.is_dir():
        for left in directory.iterdir():
            if left.name == own or not Path("/proc", left.name).exists():
                shutil.rmtree(left, ignore_errors=True)
    return directory / own


def _stop_children(children: list[_Child], timeout_s: float) -> bool:
    """End children; tells whether all ended by themselves."""
    until = time.monotonic() + timeout_s
    for child in children:
        child.tell_to_stop()
    by_itself = [child.wait(until) for child in children]
    return all(by_itself)


def _lock_data_folder(data: Path) -> int:
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
