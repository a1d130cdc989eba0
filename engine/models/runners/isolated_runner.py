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
from multiprocessing import Pipe
from typing import Any

import msgspec

from quadriga.engine.config.settings import PREFIX
from quadriga.engine.models.runners.crashes import ModelRuns, describe_exit
from quadriga.engine.models.runners.isolated_server import (
    Answer,
    BlockFullError,
    Failed,
    OutputPlaces,
    RunGraph,
    TensorBlock,
)
from quadriga.engine.models.runners.session import (
    CPU,
    GraphOptions,
    LoadError,
    OpenedGraph,
    RunError,
    first_line,
)
from quadriga.proto.errors import ModelNotReady

_POLL_INTERVAL_S = 0.02
"""Interval at which a waiting thread looks whether its request is over."""
_STOP_S = 2.0
"""Seconds within which a run ends that was asked to stop; then the process is killed."""
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum bytes of an answer, which has no tensors: names and shapes, or an error."""
_KEPT_BLOCK_BYTES = 64 * 1024 * 1024
_RESTART_S, _RETRY_S = 0.2, 5.0
"""Seconds until a process that ended is started again, and one that ended before its graphs were open; a model that ends
it again and again is refused, see `quadriga.engine.models.runners.crashes`."""
NICENESS = 10
"""Lets the worker go first where there are too few cores: the process gets about a tenth of the time that it would get."""

_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
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
        self.block = TensorBlock()
        self.connection, other_end = Pipe()
        with other_end, contextlib.suppress(OSError):
            # where the process has ended, the first exchange fails
            socket.send_fds(control, [b"L"], [other_end.fileno(), self.block.descriptor])

    def close(self) -> None:
        self.connection.close()
        self.block.close()

    def exchange(self, message: msgspec.Struct, deadline_s: float, options: Any) -> Answer:
        """Send a message and wait for the answer.

        Raises:
            OSError, EOFError: The process has ended.
            TimeoutError: There is no answer by the deadline, or soon after `options.terminate` was set.
        """
        self.connection.send_bytes(msgspec.msgpack.encode(message))
        is_stopping = False
        while True:
            rest_s = deadline_s - time.monotonic()
            if rest_s <= 0:
                raise TimeoutError
            if options is not None and not is_stopping:
                rest_s = min(rest_s, _POLL_INTERVAL_S)
            if self.connection.poll(rest_s):
                answer = _ANSWERS.decode(self.connection.recv_bytes(_MAX_ANSWER_BYTES))
                if is_stopping:
                    self.block.ask_to_stop(stop=False)
                return answer
            if options is not None and options.terminate and not is_stopping:
                is_stopping = True
                deadline_s = min(deadline_s, time.monotonic() + _STOP_S)
                self.block.ask_to_stop(stop=True)


class _Process:
    """The process while it runs: what it was started with, and its lanes that nobody uses."""

    def __init__(self, name: str, limits: ProcessLimits) -> None:
        lifeline_fd, other_fd = os.pipe()
        self._lifeline = os.fdopen(other_fd, "wb")
        self._control, other_end = socket.socketpair()
        memory_bytes = limits.memory_mb * 1024 * 1024
        numbers = lifeline_fd, other_end.fileno(), memory_bytes, limits.cpu_s
        command = [sys.executable, "-P", "-m", "quadriga.engine.models.runners.isolated_server"]
        command += [*map(str, numbers), f"model-{name}"]  # the name is for `ps`
        try:
            self.popen = subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[lifeline_fd, other_end.fileno()],
                env=_environment(),
            )
        finally:
            os.close(lifeline_fd)
            other_end.close()
        # It began with the priority of the thread that started it, and its imports take a fifth of a second.
        niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICENESS
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, self.popen.pid, min(niceness, 19))
        self._free: list[_Lane] = []
        self.reason = ""
        """Why it ended."""

    def take_lane(self) -> _Lane:
        try:
            return self._free.pop()
        except IndexError:
            return _Lane(self._control)

    def give_back(self, lane: _Lane) -> None:
        if lane.block.size_bytes > _KEPT_BLOCK_BYTES:
            lane.close()
        else:
            self._free.append(lane)

    def end(self, wait_s: float = 0.0) -> int:
        """Kill it if it still runs after some seconds, close what belongs to it, and return its exit status."""
        try:
            code = self.popen.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            code = self.popen.wait()
        self._control.close()
        self._lifeline.close()
        while self._free:
            self._free.pop().close()
        return code


def _environment() -> dict[str, str]:
    """Return the environment of a model's process: it has no use for settings, some of which are secrets."""
    unused = PREFIX, "OTEL_"
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(unused)}
    return {**inherited, "OPENBLAS_NUM_THREADS": "1"}


class IsolatedRunner:
    """Runs the graphs of one model version in one process; a `Runner`, safe to use from several threads.

    Args:
        runs: Counts how often the process ends, and the runs of the model in this process: not those that wait for its own.
        limits: Limits of the process.
    """

    def __init__(self, runs: ModelRuns, limits: ProcessLimits) -> None:
        self._runs = runs
        self._limits = limits
        self._load_deadline_s: float | None = time.monotonic() + limits.load_s
        self._opened: list[GraphOptions] = []
        self._reason = ""
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._serve_by(_Process(runs.model, limits))

    def _serve_by(self, process: _Process) -> None:
        """Run graphs in a process from now on, which ends with this object."""
        self._process = process
        self._finalizer = weakref.finalize(self, process.end)

    def close(self) -> None:
        """End the process."""
        self._finalizer()

    def open(self, options: GraphOptions) -> OpenedGraph:
        """Open a graph.

        Raises:
            LoadError: The process ended, or passed a limit.
            RunError: onnxruntime refuses the graph.
        """
        process = self._process
        if process is None:
            raise LoadError(self._reason)
        deadline_s = self._load_deadline_s or time.monotonic() + self._limits.load_s
        try:
            opened = self._open_in(process, options, deadline_s)
        except ModelNotReady as error:
            raise LoadError(str(error)) from error
        self._opened.append(options)
        return opened

    def end_loading(self) -> None:
        """Note that the model is loaded: from now on a run has its own limit, and the process is started again."""
        self._load_deadline_s = None

    def _open_in(self, process: _Process, options: GraphOptions, deadline_s: float) -> OpenedGraph:
        lane = process.take_lane()
        answer = self._exchange(process, lane, options, deadline_s)
        process.give_back(lane)
        assert isinstance(answer, OpenedGraph)
        return answer

    def run(
        self, graph: int, names: Sequence[str], feeds: dict[str, Any], options: Any = None
    ) -> list[Any]:
        """Run a graph once.

        Raises:
            ModelNotReady: The process has ended, passed a limit, or is being started.
            RunError: onnxruntime refused the input or failed.
        """
        process = self._process
        if process is None:
            raise ModelNotReady(f"{self._reason}; it is being started again")
        lane = process.take_lane()
        try:
            request = RunGraph(graph, list(names), lane.block.write(feeds))
        except (BlockFullError, OSError) as error:
            process.give_back(lane)
            raise RunError(str(error)) from error
        deadline_s = self._load_deadline_s or time.monotonic() + self._limits.run_s
        with self._runs.paused():
            answer = self._exchange(process, lane, request, deadline_s, options=options)
        assert isinstance(answer, OutputPlaces)
        outputs = lane.block.read(answer.places, copy=True)
        process.give_back(lane)
        return [outputs[name] for name in names]

    def _exchange(
        self,
        process: _Process,
        lane: _Lane,
        message: GraphOptions | RunGraph,
        deadline_s: float,
        options: Any = None,
    ) -> Answer:
        """Exchange messages; raises as `run` does, after the lane is closed or given back."""
        try:
            answer = lane.exchange(message, deadline_s, options)
        except (EOFError, OSError) as error:
            lane.close()
            is_late = isinstance(error, TimeoutError)
            limit = self._describe_timeout(deadline_s) if is_late else ""
            raise ModelNotReady(self._note_end(process, limit)) from None
        if isinstance(answer, Failed):
            process.give_back(lane)
            if answer.lacks_memory:
                raise ModelNotReady(self._describe_shortage(message, answer.reason))
            raise RunError(answer.reason)
        return answer

    def _describe_shortage(self, message: GraphOptions | RunGraph, reason: str) -> str:
        limit = f"the {self._limits.memory_mb} MiB that its process may take"
        graph = self._opened[message.graph] if isinstance(message, RunGraph) else message
        if graph.providers[0][0] == CPU:
            return f"{self._runs} needs more than {limit}"
        return f"{self._runs} needs more memory than its device has left, or more than {limit}: {first_line(reason)}"

    def _describe_timeout(self, deadline_s: float) -> str:
        if self._load_deadline_s is not None:
            return f"it was not loaded within {self._limits.load_s:g} s (setting load_timeout_s)"
        if time.monotonic() < deadline_s:
            return "a run went on although its request was over"
        return f"a run did not end within {self._limits.run_s:g} s"

    def _note_end(self, process: _Process, limit: str = "") -> str:
        """Note that the process has ended, or end it, and start it again; return why it ended.

        Args:
            process: The process.
            limit: Limit that it passed; empty if it ended by itself.
        """
        with self._lock:
            if process.reason:
                return process.reason
            code = process.end(0.0 if limit else 0.5)
            cause = limit or describe_exit(code)
            ended = f"was ended: {limit}" if limit else f"was ended by {cause}"
            process.reason = self._reason = f"the process of {self._runs} {ended}"
            delay_s = _RETRY_S
            if self._process is process:
                self._process, delay_s = None, _RESTART_S
            if self._load_deadline_s is not None or not self._finalizer.alive:
                return process.reason
            self._restart_after(delay_s)
        _log.error("%s; starting it again in %.1f s", process.reason, delay_s)
        if refusal := self._runs.count_crash(cause):
            _log.error("%s", refusal.reason)
        return process.reason

    def _restart_after(self, delay_s: float) -> None:
        timer = threading.Timer(delay_s, _restart, (weakref.ref(self),))
        timer.daemon = True
        timer.start()

    def restart(self) -> None:
        """Start the process again, and open its graphs; tried again later if that fails."""
        process = _Process(self._runs.model, self._limits)
        deadline_s = time.monotonic() + self._limits.load_s
        try:
            for options in self._opened:
                self._open_in(process, options, deadline_s)
        except (ModelNotReady, RunError) as error:
            process.end()
            _log.error("the process of %s cannot be started: %s", self._runs, error)
            if not process.reason:
                with self._lock:
                    self._restart_after(_RETRY_S)
            return
        with self._lock:
            if self._finalizer.detach() is None:  # the model is no longer served
                process.end()
            else:
                self._serve_by(process)


def _restart(reference: "weakref.ref[IsolatedRunner]") -> None:
    """Start the process of a model again, unless the model is gone."""
    if (runner := reference()) is not None:
        runner.restart()
