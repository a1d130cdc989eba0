"""A shadow in a process of its own, with a low priority: what ends or blocks it costs nothing but its own answers."""

import contextlib
import logging
import math
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from quadriga.engine.config.settings import PREFIX
from quadriga.engine.models.model_host import DEFAULT_MEMORY_MB, files_bytes
from quadriga.engine.models.runners.crash_record import describe_exit
from quadriga.engine.models.runners.graph_messages import PeerEndedError, Receiver, send
from quadriga.engine.serving.shadows.shadow_messages import (
    OpenShadow,
    RunShadow,
    ShadowAnswer,
    ShadowAnswered,
    ShadowFailed,
    ShadowOpened,
)
from quadriga.engine.serving.shadows.shadow_server import ShadowOptions

_MIB = 1024 * 1024
NICENESS, LOADING_NICENESS = 19, 10
"""How far the process goes after its worker, once it has loaded the model and before: about a hundredth and a tenth of the
time that it would get, where there are too few processors."""

_log = logging.getLogger("quadriga.models")


class ShadowEndedError(Exception):
    """The process has ended, or was ended; the text says how."""


class ShadowProcess:
    """The process; used by one thread at a time.

    Args:
        opening: What it loads.
        load_s: Seconds within which it must be loaded.
        niceness: How far it goes after this process.

    Raises:
        ShadowEndedError: It was not loaded.
    """

    def __init__(self, opening: OpenShadow, load_s: float, niceness: int = NICENESS) -> None:
        self._name = f"{opening.name} {opening.version}"
        lifeline_fd, self._lifeline = os.pipe()
        self._connection, other_end = socket.socketpair()
        memory_mb = DEFAULT_MEMORY_MB + 4 * math.ceil(files_bytes(Path(opening.path)) / _MIB)
        options = ShadowOptions(
            lifeline_fd=lifeline_fd,
            connection_fd=other_end.fileno(),
            memory_bytes=memory_mb * _MIB,
        )
        command = [sys.executable, "-P", "-m", "quadriga.engine.serving.shadows.shadow_server"]
        command += [msgspec.json.encode(options).decode(), f"shadow-{opening.name}"]  # for `ps`
        inherited = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[lifeline_fd, other_end.fileno()],
                env={**inherited, "OPENBLAS_NUM_THREADS": "1"},
            )
        finally:
            os.close(lifeline_fd)
            other_end.close()
        with contextlib.suppress(OSError):  # it has ended already
            own = os.getpriority(os.PRIO_PROCESS, os.getpid())
            loading = min(own + niceness, own + LOADING_NICENESS, 19)
            os.setpriority(os.PRIO_PROCESS, self._process.pid, loading)
        self._receiver = Receiver(self._connection, ShadowAnswer)
        answer = self._exchange(msgspec.structs.replace(opening, niceness=niceness), load_s)
        if not isinstance(answer, ShadowOpened):
            self.close()
            reason = answer.reason if isinstance(answer, ShadowFailed) else "no sense"
            raise ShadowEndedError(f"it cannot be loaded: {reason}")
        _log.info("%s: loaded as a shadow", self._name)

    def run(self, message: RunShadow, run_s: float) -> ShadowAnswered | ShadowFailed:
        """Answer a request.

        Raises:
            ShadowEndedError: The process has ended, or did not answer within `run_s` and was ended.
        """
        answer = self._exchange(message, run_s)
        assert not isinstance(answer, ShadowOpened)
        return answer

    def close(self) -> None:
        """End the process."""
        self._end()

    def kill(self) -> None:
        """End the process from another thread than that which uses it, and which finds it ended."""
        self._process.kill()

    def _exchange(self, message: msgspec.Struct, limit_s: float) -> ShadowAnswer:
        deadline_s = time.monotonic() + limit_s
        self._connection.settimeout(limit_s)
        try:
            send(self._connection, message)
            self._connection.settimeout(max(deadline_s - time.monotonic(), 0.01))
            answer: ShadowAnswer = self._receiver.receive()
        except TimeoutError:
            self._end()
            raise ShadowEndedError(f"it did not answer within {limit_s:g} s") from None
        except (PeerEndedError, msgspec.MsgspecError):
            raise ShadowEndedError(
                f"its process was ended by {describe_exit(self._end())}"
            ) from None
        return answer

    def _end(self) -> int:
        """Kill the process if it still runs, close what belongs to it, and return its exit status."""
        self._connection.close()
        try:
            code = self._process.wait(0.1)  # it may be about to end by itself
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        return code
