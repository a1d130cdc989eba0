"""The process of a shadow: a version of a model that answers live requests for the record alone, with a low priority.

It is started by `quadriga.engine.serving.shadows.shadow_process`, and ends with its worker. Images are decoded here, so that a worker does
no more for a shadow than to send a request, and to store what comes back.
"""

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.engine.config.settings_reading import add_extensions
from quadriga.engine.measures.stopwatch import stages_ms
from quadriga.engine.models.model import Model
from quadriga.engine.models.model_host import ModelHost
from quadriga.engine.models.runners.graph_messages import PeerEndedError, Receiver, send
from quadriga.engine.models.runners.graph_server import begin_below_worker
from quadriga.engine.models.runners.session import LoadError
from quadriga.engine.serving.request_kinds import request_kind
from quadriga.engine.serving.result_keeping import ResultKeeping
from quadriga.engine.serving.shadows.shadow_messages import (
    OpenShadow,
    RunShadow,
    ShadowAnswer,
    ShadowAnswered,
    ShadowFailed,
    ShadowOpened,
    ShadowRequest,
    ShadowResult,
    to_request,
)
from quadriga.store.redaction import without_folders

_MAX_REASON_CHARACTERS = 2000
_LOWEST = 19  # niceness


class ShadowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the process, one JSON argument."""

    lifeline_fd: int
    """Read end of a pipe to which nobody writes; the worker has the other end."""
    connection_fd: int
    memory_bytes: int
    """Memory that the process may have more than at its start."""


def main() -> None:
    """Run until the worker ends."""
    options = msgspec.json.decode(sys.argv[1], type=ShadowOptions)
    begin_below_worker(options.lifeline_fd, options.memory_bytes)
    with suppress(PeerEndedError):
        ShadowServer(socket.socket(fileno=options.connection_fd)).run()


class ShadowServer:
    """Answers the messages of a worker, one after the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._model: Model | None = None
        self._settings = Settings()

    def run(self) -> None:
        """Answer until the worker ends."""
        receiver = Receiver(self._connection, ShadowRequest)
        while True:
            send(self._connection, self._answer(receiver.receive()))

    def _answer(self, message: ShadowRequest) -> ShadowAnswer:
        started_s = time.perf_counter()
        try:
            return self._open(message) if isinstance(message, OpenShadow) else self._run(message)
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker is told
            text = without_folders(str(error)) or type(error).__name__
            elapsed_ms = (time.perf_counter() - started_s) * 1000
            return ShadowFailed(text[:_MAX_REASON_CHARACTERS], elapsed_ms)

    def _open(self, message: OpenShadow) -> ShadowAnswer:
        limits = msgspec.structs.asdict(message.limits)
        self._settings = Settings(**limits, extensions=message.extensions)
        add_extensions(self._settings)
        self._model = Model(
            message.name,
            message.version,
            Path(message.path),
            score_threshold=message.score_threshold,
            overrides=message.overrides,
            host=ModelHost(is_server=True),
        )
        _lower_priority(os.getpriority(os.PRIO_PROCESS, os.getppid()) + message.niceness)
        return ShadowOpened()

    def _run(self, message: RunShadow) -> ShadowAnswer:
        model = self._model
        if model is None:
            raise LoadError("expected a model that is loaded")
        request = to_request(message, model.name, model.version)
        started_s, started_wait_ms = time.perf_counter(), _waited_ms()
        model.stopwatch.start()
        _, results = request_kind(model, request, self._settings, ResultKeeping(None, None)).infer()
        events = model.stopwatch.stop()
        elapsed_ms = (time.perf_counter() - started_s) * 1000
        return ShadowAnswered(
            results=[
                ShadowResult(result.action, msgspec.json.encode(result.predictions))
                for result in results
            ],
            elapsed_ms=elapsed_ms,
            waited_ms=_waited_ms() - started_wait_ms,
            stages_ms=stages_ms(0, events),
        )


def _lower_priority(niceness: int) -> None:
    """Lower the priority of all threads; each has one of its own.

    From the lowest niceness on, they run only where nobody else wants the processor, if the system has such a class.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended, or goes after others already
            os.setpriority(os.PRIO_PROCESS, int(thread.name), min(niceness, _LOWEST))
            if niceness >= _LOWEST and hasattr(os, "SCHED_IDLE"):
                os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))


def _waited_ms() -> float:
    """Return the milliseconds in which this thread waited for a processor since its start; 0 if that is not known.

    Source: Linux, Documentation/scheduler/sched-stats: the second number of /proc/<pid>/schedstat.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e6
    return 0.0


if __name__ == "__main__":
    main()
