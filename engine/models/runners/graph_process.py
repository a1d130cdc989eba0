"""A model in a process of its own: what ends or blocks that process costs requests to this model alone.

Tensors go through shared memory. The process has limits of memory and time; where it ends, its requests are
answered with 503 and the reason, and it is started again.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import msgspec

from quadriga.engine.config.settings import PREFIX
from quadriga.engine.models.runners.crash_record import CrashRecord, RunMark, describe_exit
from quadriga.engine.models.runners.graph_messages import (
    Answer,
    BlockFullError,
    Failed,
    NodeInfo,
    Opened,
    OpenGraph,
    PeerEndedError,
    Receiver,
    RunGraph,
    TensorBlock,
    send,
)
from quadriga.engine.models.runners.graph_server import ServerOptions
from quadriga.engine.models.runners.providers import CPU
from quadriga.engine.models.runners.session import GraphOptions, LoadError, RunError, first_line
from quadriga.proto.errors import ModelNotReady

_POLL_INTERVAL_S = 0.02
"""Interval at which a waiting thread looks whether its request is over."""
_STOP_S = 2.0
"""Seconds within which a run ends that was asked to stop; then the process is killed."""
_KEPT_BLOCK_BYTES = 64 * 1024 * 1024
_MAX_BLOCK_BYTES = 4 * 1024**3
_MIN_DELAY_S, _MAX_DELAY_S = 0.2, 5.0
_STABLE_AFTER_S = 10.0
NICENESS = 10
"""Lets the worker go first where there are too few cores: the process gets about a tenth of the time that it would get."""

_log = logging.getLogger("quadriga.models")


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the process of a model."""

    memory_mb: int = 0
    """MiB beyond those of its start; 0: no limit."""
    run_s: float = 60.0
    """Seconds of one run."""
    load_s: float = 60.0
    """Seconds within which it starts, opens its graphs, and answers its warm-up."""
    cpu_s: int = 0
    """Seconds of CPU in all; 0: no limit."""


class _Lane:
    """A connection to the process, with a block of tensors; one thread at a time uses it."""

    def __init__(self, control: socket.socket) -> None:
        self.block = TensorBlock(-1, _MAX_BLOCK_BYTES)
        self.connection, other_end = socket.socketpair()
        self._receiver = Receiver(self.connection, Answer)
        try:
            socket.send_fds(control, [b"L"], [other_end.fileno(), self.block.descriptor])
        except OSError as error:
            self.close()
            raise PeerEndedError from error
        finally:
            other_end.close()

    def close(self) -> None:
        self.connection.close()
        self.block.close()

    def exchange(self, message: msgspec.Struct, deadline_s: float, options: Any) -> Answer:
        """Send a message and wait for the answer.

        Raises:
            PeerEndedError: The process has ended.
            TimeoutError: There is no answer by the deadline, or soon after `options.terminate` was set.
        """
        self.connection.settimeout(max(deadline_s - time.monotonic(), 0.01))
        send(self.connection, message)
        is_stopping = False
        while True:
            rest_s = deadline_s - time.monotonic()
            if rest_s <= 0:
                raise TimeoutError
            if options is not None and not is_stopping:
                rest_s = min(rest_s, _POLL_INTERVAL_S)
            self.connection.settimeout(rest_s)
            try:
                answer: Answer = self._receiver.receive()
            except TimeoutError:
                if options is not None and options.terminate and not is_stopping:
                    is_stopping = True
                    deadline_s = min(deadline_s, time.monotonic() + _STOP_S)
                    self.block.ask_to_stop(stop=True)
                continue
            if is_stopping:
                self.block.ask_to_stop(stop=False)
            return answer


class _RunningProcess:
    """The process while it runs: what it was started with, and its lanes that nobody uses."""

    def __init__(self, name: str, limits: ProcessLimits) -> None:
        lifeline_fd, self._lifeline = os.pipe()
        self.control, other_end = socket.socketpair()
        options = ServerOptions(
            lifeline_fd=lifeline_fd,
            control_fd=other_end.fileno(),
            memory_bytes=limits.memory_mb * 1024 * 1024,
            cpu_s=limits.cpu_s,
            block_bytes=_MAX_BLOCK_BYTES,
        )
        command = [sys.executable, "-P", "-m", "quadriga.engine.models.runners.graph_server"]
        command += [msgspec.json.encode(options).decode(), f"model-{name}"]  # the name is for `ps`
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[lifeline_fd, other_end.fileno()],
                env=_environment(),
            )
        finally:
            os.close(lifeline_fd)
            other_end.close()
        _lower_priority(self.process.pid)
        self.started_s = time.monotonic()
        self.free: list[_Lane] = []
        self.killed_for = ""
        """Why this worker killed it; empty if it did not."""
        self.reason = ""
        """Why it ended."""

    def take_lane(self) -> _Lane:
        try:
            return self.free.pop()
        except IndexError:
            return _Lane(self.control)

    def give_back(self, lane: _Lane) -> None:
        if lane.block.size_bytes > _KEPT_BLOCK_BYTES:
            lane.close()
        else:
            self.free.append(lane)

    def end(self) -> int:
        """Kill it if it still runs, close what belongs to it, and return its exit status."""
        try:
            code = self.process.wait(0.5 if not self.killed_for else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.control.close()
        with contextlib.suppress(OSError):
            if self._lifeline >= 0:
                os.close(self._lifeline)
            self._lifeline = -1
        while self.free:
            self.free.pop().close()
        return code


class _Slot:
    """Holds the running process of a model, so that it can be ended when the model is garbage."""

    running: _RunningProcess | None = None
    is_closed = False


def _close(slot: _Slot) -> None:
    slot.is_closed = True
    if slot.running is not None:
        slot.running.killed_for = slot.running.killed_for or "the model is no longer served"
        slot.running.end()


def _lower_priority(pid: int) -> None:
    """Let a process go after this one from its start on, whose imports take a fifth of a second.

    It began with the priority of the thread that started it, which may be a lower one than this process has.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICENESS
    with contextlib.suppress(OSError):  # it has ended already
        os.setpriority(os.PRIO_PROCESS, pid, min(niceness, 19))


def _environment() -> dict[str, str]:
    """Return the environment of a model's process: it has no use for settings, some of which are secrets."""
    unused = PREFIX, "OTEL_"
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(unused)}
    return {**inherited, "OPENBLAS_NUM_THREADS": "1"}


class ProcessGraphs:
    """Opens and runs the graphs of one model version in one process; safe to use from several threads.

    Args:
        name: Name of the model.
        version: Its version.
        limits: Limits of the process.
        crashes: Counts how often the process ends.
        mark: Counts the runs of the model in this process; not those that wait for its own process.
    """

    shares_memory = False

    def __init__(
        self,
        name: str,
        version: str,
        limits: ProcessLimits,
        crashes: CrashRecord | None = None,
        mark: RunMark | None = None,
    ) -> None:
        self._mark = mark or RunMark()
        self._name, self._version = name, version
        self._limits = limits
        self._crashes = crashes
        self._load_deadline_s: float | None = time.monotonic() + limits.load_s
        self._opened: list[OpenGraph] = []
        self._slot = _Slot()
        self._reason = ""
        self._delay_s = 0.0
        self._lock = threading.Lock()
        self._slot.running = _RunningProcess(name, limits)
        self._finalizer = weakref.finalize(self, _close, self._slot)

    def open(self, options: GraphOptions) -> "ProcessGraph":
        """Open a graph.

        Raises:
            LoadError: The process ended, or passed a limit.
            RunError: onnxruntime refuses the graph.
        """
        request = OpenGraph(
            path=options.path,
            modified_model=options.modified_model,
            providers=options.providers,
            intra_op_threads=options.intra_op_threads,
        )
        running = self._slot.running
        if running is None:
            raise LoadError(self._reason)
        deadline_s = self._load_deadline_s or time.monotonic() + self._limits.load_s
        try:
            opened = self._open_in(running, request, deadline_s)
        except ModelNotReady as error:
            raise LoadError(str(error)) from error
        self._opened.append(request)
        return ProcessGraph(self, opened)

    def end_loading(self) -> None:
        """Note that the model is loaded: from now on a run has its own limit, and the process is started again."""
        self._load_deadline_s = None

    def close(self) -> None:
        """End the process."""
        self._finalizer()

    def _open_in(self, running: _RunningProcess, request: OpenGraph, deadline_s: float) -> Opened:
        lane = self._lane(running)
        answer = self._exchange(running, lane, request, deadline_s)
        running.give_back(lane)
        assert isinstance(answer, Opened)
        return answer

    def run(
        self, graph: int, names: Sequence[str], feeds: dict[str, Any], options: Any
    ) -> list[Any]:
        """Run a graph once.

        Raises:
            ModelNotReady: The process has ended, passed a limit, or is being started.
            RunError: onnxruntime refused the input or failed.
        """
        running = self._slot.running
        if running is None:
            raise ModelNotReady(f"{self._reason}; it is being started again")
        lane = self._lane(running)
        try:
            request = RunGraph(graph, list(names), lane.block.write(feeds))
        except (BlockFullError, OSError) as error:
            running.give_back(lane)
            raise RunError(str(error)) from error
        deadline_s = self._load_deadline_s or time.monotonic() + self._limits.run_s
        with self._mark.paused():
            answer = self._exchange(running, lane, request, deadline_s=deadline_s, options=options)
        assert not isinstance(answer, Opened | Failed)
        outputs = lane.block.read(answer.outputs, copy=True)
        running.give_back(lane)
        return [outputs[name] for name in names]

    def _lane(self, running: _RunningProcess) -> _Lane:
        try:
            return running.take_lane()
        except PeerEndedError:
            raise ModelNotReady(self._note_end(running)) from None

    def _exchange(
        self,
        running: _RunningProcess,
        lane: _Lane,
        message: OpenGraph | RunGraph,
        deadline_s: float,
        options: Any = None,
    ) -> Answer:
        """Exchange messages; raises as `run` does, after the lane is closed or given back."""
        try:
            answer = lane.exchange(message, deadline_s, options)
        except PeerEndedError:
            lane.close()
            raise ModelNotReady(self._note_end(running)) from None
        except TimeoutError:
            lane.close()
            running.killed_for = running.killed_for or self._describe_timeout(deadline_s)
            raise ModelNotReady(self._note_end(running)) from None
        if isinstance(answer, Failed):
            running.give_back(lane)
            if answer.kind == "memory":
                raise ModelNotReady(self._describe_shortage(message, answer.reason))
            raise RunError(answer.reason)
        return answer

    def _describe_shortage(self, message: OpenGraph | RunGraph, reason: str) -> str:
        name = f"model {self._name!r} version {self._version}"
        limit = f"the {self._limits.memory_mb} MiB that its process may take"
        graph = message if isinstance(message, OpenGraph) else self._opened[message.graph]
        if graph.providers[0][0] == CPU:
            return f"{name} needs more than {limit}"
        return f"{name} needs more memory than its device has left, or more than {limit}: {first_line(reason)}"

    def _describe_timeout(self, deadline_s: float) -> str:
        if self._load_deadline_s is not None:
            return f"it was not loaded within {self._limits.load_s:g} s (setting load_timeout_s)"
        if time.monotonic() < deadline_s:
            return "a run went on although its request was over"
        return f"a run did not end within {self._limits.run_s:g} s"

    def _note_end(self, running: _RunningProcess) -> str:
        """Note that the process has ended, or end it, and start it again; return why it ended."""
        with self._lock:
            if running.reason:
                return running.reason
            code = running.end()
            how = running.killed_for or describe_exit(code)
            running.reason = self._reason = (
                f"the process of model {self._name!r} version {self._version} was ended: {how}"
                if running.killed_for
                else f"the process of model {self._name!r} version {self._version} was ended by {how}"
            )
            if self._slot.running is running:
                self._slot.running = None
            if self._load_deadline_s is not None or self._slot.is_closed:
                return running.reason
            stable = time.monotonic() - running.started_s > _STABLE_AFTER_S
            self._restart_later(stable=stable)
        _log.error("%s; starting it again in %.1f s", running.reason, self._delay_s)
        if self._crashes is not None:
            refusal = self._crashes.count(self._name, self._version, how)
            if refusal is not None:
                _log.error("%s", refusal.reason)
        return running.reason

    def _restart_later(self, *, stable: bool) -> None:
        self._delay_s = (
            _MIN_DELAY_S if stable else min(max(self._delay_s * 2, _MIN_DELAY_S), _MAX_DELAY_S)
        )
        restart = threading.Timer(self._delay_s, _restart, (weakref.ref(self),))
        restart.daemon = True
        restart.start()

    def restart(self) -> None:
        """Start the process again, and open its graphs; tried again later if that fails."""
        running = _RunningProcess(self._name, self._limits)
        deadline_s = time.monotonic() + self._limits.load_s
        try:
            for request in self._opened:
                self._open_in(running, request, deadline_s)
        except (ModelNotReady, RunError) as error:
            running.killed_for = running.killed_for or str(error)
            running.end()
            _log.error("%s %s: cannot start its process: %s", self._name, self._version, error)
            if not running.reason:
                with self._lock:
                    self._restart_later(stable=False)
            return
        with self._lock:
            if not self._slot.is_closed:
                self._slot.running = running
                return
        running.killed_for = "the model is no longer served"
        running.end()


def _restart(reference: "weakref.ref[ProcessGraphs]") -> None:
    graphs = reference()
    if graphs is not None and not graphs._slot.is_closed:  # noqa: SLF001 - a part of the class without a reference to it
        graphs.restart()


class ProcessGraph:
    """A graph in the process of its model; a `quadriga.engine.models.runners.session.OpenedGraph`."""

    def __init__(self, graphs: ProcessGraphs, opened: Opened) -> None:
        self._graphs = graphs
        self._opened = opened

    def get_inputs(self) -> list[NodeInfo]:
        """Return name, type and shape of each input."""
        return self._opened.inputs

    def get_outputs(self) -> list[NodeInfo]:
        """Return name, type and shape of each output."""
        return self._opened.outputs

    def get_providers(self) -> list[str]:
        """Return the names of the providers that run it."""
        return self._opened.providers

    def run(self, names: Sequence[str], feeds: dict[str, Any], options: Any = None) -> list[Any]:
        """Run once; raises as `ProcessGraphs.run` does."""
        return self._graphs.run(self._opened.graph, names, feeds, options)
