"""Standard error of a server whose log is JSON: lines of its children come through pipes, and what is no line of ours becomes one.

Native libraries write to the descriptor 2 whatever they like, and so does a process that crashes. Each child has a pipe
there, which the supervisor reads to its end, so that the last words of a process are not lost with it. Nobody waits for
whoever reads the log: a child finds its pipe empty, or leaves a line out; the supervisor keeps `MAX_WAITING_BYTES`.
"""

import contextlib
import fcntl
import logging
import os
import re
import secrets
import select
import selectors
import threading
import time
from collections import deque
from collections.abc import Collection

import msgspec

from quadriga.engine.config.line_budget import LineBudget
from quadriga.engine.processes.logs import LINE_ENDS
from quadriga.store.redaction import redact

FOREIGN_LINES_PER_S = 50
"""Maximum lines in a second of each process that are not its own: images of strangers make libraries write them."""

MAX_WAITING_BYTES = 4 << 20
"""Bytes of lines that wait for whoever reads the log; more are left out."""

MAX_LINE_BYTES = 256 * 1024
"""Longest line that is put together; a longer one becomes several."""

END_S = 2.0
"""Maximum seconds that the end of the server waits for its last lines to be read."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What makes a terminal change its colours, as lines of onnxruntime have it."""

_PIPE_BYTES = 1 << 20
_READ_BYTES = 64 * 1024
_WAIT_S = 0.1
_STANDARD_ERROR = 2


class PipedLines(logging.Handler):
    """Writes the lines of a child to its standard error, a pipe that does not make it wait; what finds no room is left out.

    Args:
        marker: What each line begins with, so that the supervisor knows it as one of the server.
    """

    def __init__(self, marker: str) -> None:
        super().__init__()
        self._marker = marker
        self._left_out = 0
        self._is_torn = False
        """Whether the last line has no end."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, and before it how many were left out."""
        try:
            if self._left_out:
                text = f"{self._left_out} lines were left out: the log was not read"
                note = logging.LogRecord("quadriga", logging.WARNING, "", 0, text, (), None)
                if not self._write(self.format(note)):
                    self._left_out += 1
                    return
                self._left_out = 0
            self._left_out += not self._write(self.format(record))
        except Exception:  # noqa: BLE001 - as every handler of the standard library
            self.handleError(record)

    def _write(self, line: str) -> bool:
        """Write a line; return whether it was written. A line that a pipe takes at once is written whole or not at all."""
        text = f"{chr(10) * self._is_torn}{self._marker}{line}\n"
        rest = memoryview(text.encode(errors="replace"))
        has_begun = False
        while rest:
            try:
                size = os.write(_STANDARD_ERROR, rest)
            except BlockingIOError:
                if has_begun and select.select([], [_STANDARD_ERROR], [], _WAIT_S)[1]:
                    continue
                self._is_torn = self._is_torn or has_begun
                return False
            except OSError:  # the supervisor is gone
                return False
            rest, has_begun = rest[size:], True
        self._is_torn = False
        return True


class _Pipe:
    """What a child writes to its standard error."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 0
        self.budget = LineBudget(FOREIGN_LINES_PER_S)
        self.unended = b""
        """Bytes of a line whose end has not come."""


class LogPipes:
    """Reads the lines of all children and writes them, and those of the supervisor, to standard error.

    Args:
        secret_values: Values that no line may have.
        descriptor: Where the lines go.
    """

    def __init__(
        self, secret_values: Collection[str] = (), descriptor: int = _STANDARD_ERROR
    ) -> None:
        self.marker = f"\x1e{secrets.token_hex(8)} "
        """What the lines of children begin with; nobody else knows it."""
        self._marker = self.marker.encode()
        self._secrets = secret_values
        self._descriptor = descriptor
        self._selector = selectors.DefaultSelector()
        self._wake_end, self._wake = os.pipe()
        os.set_blocking(self._wake_end, False)
        self._selector.register(self._wake_end, selectors.EVENT_READ, None)
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_writing = False
        self._left_out = 0
        self._is_closing = False
        self._reader = threading.Thread(target=self._read, name="log-reader", daemon=True)
        for thread in (
            self._reader,
            threading.Thread(target=self._write, name="log-writer", daemon=True),
        ):
            thread.start()

    def open(self, name: str) -> tuple[int, _Pipe]:
        """Return the standard error of a child that is about to start, which its caller closes, and what is known of it."""
        reading, writing = os.pipe()
        with contextlib.suppress(OSError):  # the system may allow less
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        pipe = _Pipe(name)
        with self._changed:
            self._selector.register(reading, selectors.EVENT_READ, pipe)
        os.write(self._wake, b"+")
        return writing, pipe

    def put(self, line: bytes) -> None:
        """Write a line, with its end, soon; never waits."""
        with self._changed:
            if self._waiting_bytes + len(line) > MAX_WAITING_BYTES:
                self._left_out += 1
                return
            self._waiting.append(line)
            self._waiting_bytes += len(line)
            self._changed.notify_all()

    def flush(self, timeout_s: float = END_S) -> None:
        """Wait until the lines are written, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_writing, timeout_s)

    def close(self) -> None:
        """Take what children have written, and write it; they have ended."""
        self._is_closing = True
        os.write(self._wake, b".")
        self._reader.join(END_S)
        self.flush()

    def _read(self) -> None:
        while True:
            is_last = self._is_closing
            for key, _ in self._selector.select(0 if is_last else None):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(key.fd, _READ_BYTES)
                else:
                    self._take(key.fd, key.data)
            if is_last and not self._has_more():
                break
        # A process of a model may have the pipe still.
        for key in self._selector.get_map().values():
            if key.data is not None and key.data.unended:
                self._pass_on(key.data.unended, key.data)

    def _has_more(self) -> bool:
        return any(key.data is not None for key, _ in self._selector.select(0))

    def _take(self, descriptor: int, pipe: _Pipe) -> None:
        """Read what a child has written."""
        try:
            chunk = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        *lines, rest = (pipe.unended + chunk).split(b"\n")
        if rest and (not chunk or len(rest) > MAX_LINE_BYTES):
            lines.append(rest)
            rest = b""
        pipe.unended = rest
        for line in lines:
            self._pass_on(line, pipe)
        if not chunk:
            with self._changed:
                self._selector.unregister(descriptor)
            os.close(descriptor)

    def _pass_on(self, line: bytes, pipe: _Pipe) -> None:
        """Write a line of ours as it is, and any other within one."""
        if line.startswith(self._marker) and line.endswith(b"}"):
            self.put(line[len(self._marker) :] + b"\n")
            return
        text = line.replace(self._marker, b"").decode(errors="replace").strip()
        if not text:
            return
        left_out = pipe.budget.take()
        if left_out is None:
            return
        if left_out:
            text = f"{text} ({left_out} lines like this were left out before)"
        self.put(_line(pipe.name, pipe.pid, redact(_COLOUR.sub("", text), self._secrets)))

    def _write(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                lines = b"".join(self._waiting)
                self._waiting.clear()
                self._waiting_bytes, left_out, self._left_out = 0, self._left_out, 0
                self._is_writing = True
            if left_out:
                text = f"{left_out} lines were left out: the log was not read"
                lines += _line("supervisor", os.getpid(), text)
            self._write_out(lines)

    def _write_out(self, lines: bytes) -> None:
        rest = memoryview(lines)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError:  # nobody reads the log any more
                return


class SupervisorLines(logging.Handler):
    """Writes the lines of the supervisor, in order with those of its children."""

    def __init__(self, pipes: LogPipes) -> None:
        super().__init__()
        self._pipes = pipes

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        try:
            self._pipes.put(self.format(record).encode(errors="replace") + b"\n")
        except Exception:  # noqa: BLE001 - as every handler of the standard library
            self.handleError(record)

    def flush(self) -> None:
        """Wait until the lines are written; the end of the process calls it."""
        self._pipes.flush()


def _line(process: str, pid: int, text: str) -> bytes:
    """Return a line about what is no line of the log."""
    now_s = time.time()
    line = {
        "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{int(now_s % 1 * 1000):03d}Z",
        "level": "warning",
        "process": process,
        "pid": pid,
        "logger": "stderr",
        "message": text,
    }
    encoded = msgspec.json.encode(line).decode()
    return encoded.translate(LINE_ENDS).encode() + b"\n"
