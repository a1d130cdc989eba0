"""The supervisor: starts workers, jobs and the store's writer, restarts them when they die, ends them in order.

Workers share one listening socket that the supervisor holds, so a restart refuses no connection. On
SIGTERM or SIGINT workers and jobs stop first, then the writer, so that everything journaled is stored.
"""

import contextlib
import errno
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from quadriga.engine.access.tls import RenewedFiles, TlsFiles, read_tls_files
from quadriga.engine.config.settings import Settings, SettingsError
from quadriga.engine.config.store_places import STORE_FILE, note_places
from quadriga.engine.http.listener import format_address, listen, reserve
from quadriga.engine.measures.readiness import ProcessStates, worker_name
from quadriga.engine.measures.shared_counts import ENDS, OTHER, SharedCounts
from quadriga.engine.models.runners.crashes import blame, describe_exit
from quadriga.engine.processes.data_folder import DataFolder
from quadriga.engine.processes.watchdog import Watchdog, cpu_ticks
from quadriga.store.journal.journal_lag import count_waiting
from quadriga.store.keys.key_texts import make_key

EXIT_WAITING = 75
"""Exit status of a server that ended in order while records wait in the journal for the database (EX_TEMPFAIL)."""

EXIT_UNUSABLE = 78
"""Exit status of a child that a restart cannot help: the settings are wrong (EX_CONFIG)."""

_POLL_INTERVAL_S = 0.1
_MAX_RESTART_DELAY_S = 10.0
_MAX_WORKER_DELAY_S = 1.0
"""Maximum seconds until a worker starts again: others wait for it, and a model that ends it is soon refused."""
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
    processes_fd: int = -1
    """The shared memory of the states of the processes, inherited."""
    counts_fd: int = -1
    """The shared memory of counts, inherited."""
    grpc_address: str = ""
    """Address to serve gRPC on, shared with the other workers; empty for none."""
    run_id: str = ""
    """Random id of this run of the server, by which workers know the numbers that the writer claimed in it."""
    run_directory: str = ""
    """Folder through which workers coordinate loading and unloading models."""
    http_url: str = ""
    """URL of the server, for jobs that send requests."""
    internal_key: str = ""
    """Key with which these jobs send them: it is made for this run of the server, and is in no file."""
    tls: TlsFiles | None = None
    """Certificate and key, as read last, so that a child starts whatever became of their files; None without TLS."""


class _Child:
    """One child process, restarted with growing delay while it keeps dying early."""

    def __init__(
        self,
        task: ChildTask,
        states: ProcessStates,
        counts: SharedCounts,
        tls_files: RenewedFiles | None = None,
    ) -> None:
        self._counts = counts
        self._is_worker = task.role == "worker"
        self._name = worker_name(task.number) if self._is_worker else task.role
        self._states = states
        self._watchdog = Watchdog()
        self._is_hung = False
        self._task = task
        self._tls_files = tls_files
        self._delay_s = 0.0
        self._start_at = 0.0
        self._started_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        task = self._task
        if self._tls_files is not None:
            task = msgspec.structs.replace(task, tls=self._tls_files.files)
        inherited = (task.listener_fd, task.processes_fd, task.counts_fd)
        descriptors = [fd for fd in inherited if fd >= 0]
        name = self._name.replace(" ", "-")  # for `ps`, for metrics and for the log
        command = [sys.executable, "-P", "-m", "quadriga.engine.processes.worker", name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=descriptors)  # noqa: S603 - our own module
        self._started_at = time.monotonic()
        self._watchdog = Watchdog()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was ended already, which `watch` sees
            self._process.stdin.write(msgspec.json.encode(task) + b"\n")
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
        self._states.mark(self._name, "ended")
        self._states.count_restart(self._name)
        running = ""
        if self._is_worker and code < 0 and not self._is_hung:  # a hang says nothing of its models
            running = blame(self._counts, self._task.number, code)
        cause = "hang" if self._is_hung else end_cause(code)
        name = self._name.replace(" ", "-")
        self._counts.row((ENDS, name, cause), (ENDS, OTHER, OTHER)).add(0)
        self._is_hung = False
        if code == EXIT_UNUSABLE:
            raise SettingsError(f"{self._name} cannot start: its error is logged above")
        steady = now_s - self._started_at > _STABLE_AFTER_S
        max_delay_s = _MAX_WORKER_DELAY_S if self._is_worker else _MAX_RESTART_DELAY_S
        self._delay_s = 0.2 if steady else min(max(self._delay_s * 2, 0.2), max_delay_s)
        ended = f"ended with status {code}" if code >= 0 else f"was ended by {describe_exit(code)}"
        _log.error("%s %s%s; restarting in %.1f s", self._name, ended, running, self._delay_s)
        self.request_stop()
        self._process = None
        self._start_at = now_s + self._delay_s

    def end_if_hung(self) -> None:
        """Kill the child if it shows no sign of life; `watch` starts it again."""
        if self._process is None or self._process.poll() is not None:
            return
        is_hung = self._watchdog.look(
            self._states.beats(self._name),
            cpu_ticks(self._process.pid),
            time.monotonic(),
            is_starting=self._states.state(self._name).state in ("starting", "loading"),
        )
        if is_hung:
            _log.error(
                "%s shows no sign of life for %.0f s: it is killed and started again",
                self._name, self._watchdog.silent_s,
            )  # fmt: skip
            self._states.count_hang(self._name)
            self._is_hung = True
            self._process.kill()
            self._process.wait()

    def request_stop(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
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


def end_cause(code: int) -> str:
    """Return what ended a process, by its exit status: the name of a signal, or `exit-` and the status."""
    return describe_exit(code).replace("status ", "exit-").replace(" ", "-")


def supervise(settings: Settings, announce: Callable[[str, str], None]) -> int:
    """Run the server until SIGTERM or SIGINT.

    Args:
        settings: Settings of the server.
        announce: Called once connections are accepted, with the URL of HTTP and the address of gRPC
            (empty without gRPC).

    Returns:
        Exit status: 0 when every child ended by itself and the journal is in the database, else 1 or `EXIT_WAITING`.

    Raises:
        SettingsError: The address is in use, another server uses the data folder, or the TLS files cannot be used.
    """
    tls_files = _tls_files(settings)
    data_folder = DataFolder(Path(settings.data)) if settings.store else None
    if settings.store:
        _note_store(settings)
    listener = _open_socket(listen, settings.host, settings.port, "", "--port 0 takes a free one")
    grpc = None
    if settings.grpc_port >= 0:
        hint = "--grpc-port 0 takes a free one, -1 none"
        grpc = _open_socket(reserve, settings.host, settings.grpc_port, " for gRPC", hint)
    stopping: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # children inherit it
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stopping.append(number))
    states, run = ProcessStates.create(settings.workers), _run_directory(Path(settings.data))
    counts = SharedCounts(settings.workers + 1, settings.workers)
    url = f"{'http' if tls_files is None else 'https'}://{format_address(listener)}"
    grpc_address = "" if grpc is None else format_address(grpc)
    writer = ChildTask(
        "writer", settings, processes_fd=states.descriptor, run_id=secrets.token_hex(8)
    )
    jobs = msgspec.structs.replace(writer, role="jobs", http_url=url, internal_key=make_key()[1])
    worker = msgspec.structs.replace(
        writer,
        role="worker",
        listener_fd=listener.fileno(),
        counts_fd=counts.descriptor,
        grpc_address=grpc_address,
        run_directory=str(run),
        internal_key=jobs.internal_key,
    )
    workers = (msgspec.structs.replace(worker, number=n) for n in range(settings.workers))
    answering = [_Child(task, states, counts, tls_files) for task in workers]
    storing = []
    if settings.store:
        answering.append(_Child(jobs, states, counts, tls_files))
        storing.append(_Child(writer, states, counts))
    children = [*storing, *answering]
    for child in children:
        child.start()
    if tls_files is not None:
        tls_files.start()
    announce(url, grpc_address)
    try:
        while not stopping:
            for child in children:
                child.watch()
                child.end_if_hung()
            if data_folder is not None:
                data_folder.check()
            time.sleep(_POLL_INTERVAL_S)
    finally:
        listener.close()  # the workers have it still, and end it when they are done
        clean = [_stop_children(group, settings.exit_timeout_s) for group in (answering, storing)]
        if grpc is not None:
            grpc.close()
        shutil.rmtree(run, ignore_errors=True)
        with contextlib.suppress(OSError):
            run.parent.rmdir()  # another server may use it
        if data_folder is not None:
            data_folder.close()
    waiting = settings.store and _records_wait(settings)
    return 1 if not all(clean) else EXIT_WAITING if waiting else 0


def _note_store(settings: Settings) -> None:
    """Tell commands where the store is; a full disk keeps no server from starting."""
    try:
        note_places(settings)
    except OSError as error:
        _log.warning(
            "commands cannot know the database of this server: cannot write %s in %s: %s",
            STORE_FILE, settings.data, error.strerror,
        )  # fmt: skip


def _tls_files(settings: Settings) -> RenewedFiles | None:
    """Read the TLS files; return None without TLS.

    Raises:
        SettingsError: They cannot be used.
    """
    files = read_tls_files(settings)
    if files is None:
        return None
    renewed = RenewedFiles(settings, files, is_silent=False)
    if settings.bulk_folder and renewed.own_problem:
        _log.warning("bulk inference is off: %s", renewed.own_problem)
    return renewed


def _records_wait(settings: Settings) -> bool:
    """Check whether records wait in the journal, and say so as the last line of the log."""
    try:
        inferences, changes = count_waiting(settings.journal_directory)
    except OSError as error:
        _log.error("cannot read the journal: %s", error)
        return True
    if inferences or changes:
        _log.error(
            "%d inferences and %d changes wait in the journal of the data folder %s, as the database did not take them: "
            "start a server on this folder to store them, and do not remove it before",
            inferences, changes, settings.data,
        )  # fmt: skip
    return inferences + changes > 0


def _open_socket(
    open_socket: Callable[[str, int], socket.socket], host: str, port: int, purpose: str, hint: str
) -> socket.socket:
    """Open a socket.

    Raises:
        SettingsError: The socket cannot be opened; the message says why.
    """
    try:
        return open_socket(host, port)
    except OSError as error:
        text = f"cannot listen on {host} port {port}{purpose}: {error.strerror}"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):  # else another port would not help
            text = f"{text} ({hint})"
        raise SettingsError(text) from error


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
