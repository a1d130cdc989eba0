"""The supervisor: starts workers, jobs and the store's writer, restarts them when they die, ends them in order.

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
"""Exit status of a child that a restart cannot help: the settings are wrong (EX_CONFIG)."""

_POLL_INTERVAL_S = 0.1
_MAX_RESTART_DELAY_S = 10.0
_STABLE_AFTER_S = 5.0

_log = logging.getLogger("quadriga.supervisor")


class ChildTask(msgspec.Struct, frozen=True):
    """Task of a child process."""

    role: Literal["worker", "writer", "jobs"]
    settings: Settings
    number: int = 0
    """Number of a worker; unique among the running ones."""
    listener_fd: int = -1
    """The listening socket, inherited."""
    readiness_fd: int = -1
    """The shared memory of the readiness flags, inherited."""
    grpc_address: str = ""
    """Address to serve gRPC on, shared with the other workers; empty for none."""
    run_directory: str = ""
    """Folder through which workers coordinate loading and unloading models."""


class _Child:
    """One child process, restarted with growing delay while it keeps dying early."""

    def __init__(self, task: ChildTask, on_exit: Callable[[], None] = lambda: None) -> None:
        self._name = f"worker {task.number}" if task.role == "worker" else task.role
        self._on_exit = on_exit
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
        """Restart the child if it has died and its delay is over.

        Raises:
            SettingsError: The child reports that it cannot work with these settings.
        """
        now_s = time.monotonic()
        if self._process is None:
            if now_s >= self._start_at:
                self.start()
            return
        code = self._process.poll()
        if code is None:
            return
        self._on_exit()
        if code == EXIT_UNUSABLE:
            raise SettingsError(f"{self._name} cannot start: its error is logged above")
        steady = now_s - self._started_at > _STABLE_AFTER_S
        self._delay_s = 0.2 if steady else min(max(self._delay_s * 2, 0.2), _MAX_RESTART_DELAY_S)
        _log.error("%s ended with status %d; restarting in %.1f s", self._name, code, self._delay_s)
        self.request_stop()
        self._process = None
        self._start_at = now_s + self._delay_s

    def request_stop(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def wait(self, deadline_s: float) -> bool:
        """Wait for the child to end; kill it after the deadline. Return whether it ended by itself."""
        if self._process is None:
            return True
        try:
            code = self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            _log.error("%s did not stop in time and is killed", self._name)
            self._process.kill()
            self._process.wait()
            return False
        return code == 0


def supervise(settings: Settings, announce: Callable[[str, str], None]) -> int:
    """Run the server until SIGTERM or SIGINT.

    Args:
        settings: Settings of the server.
        announce: Called once connections are accepted, with the URL of HTTP and the address of gRPC
            (empty without gRPC).

    Returns:
        Exit status: 0 when every child ended by itself.

    Raises:
        SettingsError: The address is in use, or another server uses the data folder.
    """
    lock = _lock_data_folder(Path(settings.data)) if settings.store else None
    listener = _open_socket(
        listen, settings.host, settings.port, hint=" (--port 0 takes a free one)"
    )
    grpc, grpc_address = None, ""
    if settings.grpc_port >= 0:
        hint = " (--grpc-port 0 takes a free one, -1 none)"
        grpc = _open_socket(
            reserve, settings.host, settings.grpc_port, purpose=" for gRPC", hint=hint
        )
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
    open_socket: Callable[[str, int], socket.socket],
    host: str,
    port: int,
    purpose: str = "",
    hint: str = "",
) -> socket.socket:
    """Open a socket.

    Raises:
        SettingsError: The socket cannot be opened; the message says why.
    """
    try:
        return open_socket(host, port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            hint = ""  # another port would not help
        raise SettingsError(
            f"cannot listen on {host} port {port}{purpose}: {error.strerror}{hint}"
        ) from error


def _run_directory(data: Path) -> Path:
    """Return the folder through which the workers coordinate, after removing those of dead servers."""
    directory, own_name = data.absolute() / "run", str(os.getpid())
    if directory.is_dir():
        for folder in directory.iterdir():
            if folder.name == own_name or not Path("/proc", folder.name).exists():
                shutil.rmtree(folder, ignore_errors=True)
    return directory / own_name


def _stop_children(children: list[_Child], timeout_s: float) -> bool:
    """Stop children; return whether all ended by themselves."""
    deadline_s = time.monotonic() + timeout_s
    for child in children:
        child.request_stop()
    by_itself = [child.wait(deadline_s) for child in children]
    return all(by_itself)


def _lock_data_folder(data: Path) -> int:
    """Lock the data folder for this server; return the descriptor of the lock file."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SettingsError(f"cannot use the data folder {data}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SettingsError(
            f"the data folder {data} is in use by another server: choose another one with --data"
        ) from error
    return descriptor
