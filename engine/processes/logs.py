"""The log of a process: which process wrote a line, no secrets, and a bounded number of faults of requests."""

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Collection
from types import TracebackType
from typing import Any

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.accounting import LineBudget
from quadriga.store.records.redaction import redact

FAULTS_PER_S = 20
"""Maximum lines a second about requests that failed, so that an outage under load does not fill the disk."""

WARNINGS_PER_S = 1
"""Maximum lines a second in which uvicorn warns of bytes that are not HTTP: anybody may send them."""

LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""What some readers take for the end of a line, and JSON does not escape."""

_TALKATIVE = ("authlib", "hpack", "httpcore", "httpcore2", "httpx", "httpx2", "PIL")
"""Loggers of libraries that write at the level `debug` what they send and receive, which may have secrets."""

_LEVELS = {
    "uvicorn": logging.WARNING,
    "alembic": logging.WARNING,
    "clickhouse_connect": logging.CRITICAL,  # the sender logs an error once
    "urllib3": logging.ERROR,  # as above
    **dict.fromkeys(_TALKATIVE, logging.INFO),
}
"""Lowest levels of the loggers of libraries."""

_WORD = re.compile(r"[!#-~]+")

_log = logging.getLogger("quadriga")


def configure_logging(role: str, settings: Settings) -> None:
    """Send log lines of a process, and exceptions that nothing catches, to standard error, in the form that the settings say.

    No line has a secret of the settings; `role` is the name of the process, for each line.
    """
    lines, secrets = logging.StreamHandler(), settings.secrets
    plain = f"%(asctime)s %(levelname)s {role}[{os.getpid()}] %(name)s: %(message)s"
    lines.setFormatter(
        _Redacting(plain, secrets) if settings.log_format == "plain" else _JsonLines(role, secrets)
    )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[lines], force=True)
    for name in ("quadriga.http", "quadriga.proto.grpc.http2"):
        logging.getLogger(name).addFilter(RateLimit(FAULTS_PER_S))
    logging.getLogger("uvicorn.error").addFilter(RateLimit(WARNINGS_PER_S, logging.WARNING))
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    sys.excepthook = _log_end
    threading.excepthook = _log_end_of_thread


class _Redacting(logging.Formatter):
    """Formats lines, with their tracebacks, without secrets."""

    def __init__(self, line_format: str, secrets: Collection[str]) -> None:
        super().__init__(line_format)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record), self._secrets)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of the standard library
        """Append the fields that the text does not have, as `name=value`."""
        line = super().formatMessage(record)
        fields: dict[str, Any] = getattr(record, "fields", {})
        shown = [
            f"{name}={_shown(value)}" for name, value in fields.items() if str(value) not in line
        ]
        return " ".join([line, *shown])


def _shown(value: Any) -> str:
    """Return a value in one word: as JSON, but for a text without spaces and quotes."""
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    return msgspec.json.encode(value).decode().translate(LINE_ENDS)


class _JsonLines(logging.Formatter):
    """Formats lines as JSON, without secrets: an object in each line, whatever its text.

    It has `time` (RFC 3339, UTC), `level`, `process`, `pid`, `logger` and `message`; with a traceback `exception`, and further
    fields that whoever logs has put into `extra={"fields": …}`.
    """

    def __init__(self, role: str, secrets: Collection[str]) -> None:
        super().__init__()
        self._role = role
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        milliseconds = f"{int(record.msecs):03d}"
        line = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{milliseconds}Z",
            "level": record.levelname.lower(),
            "process": self._role,
            "pid": os.getpid(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        without = {
            name: redact(value, self._secrets) if isinstance(value, str) else value
            for name, value in line.items()
        }
        return msgspec.json.encode(without).decode().translate(LINE_ENDS)


def json_line(role: str, text: str) -> str:
    """Return a line of the JSON log at the level `info`, for a text that goes elsewhere than the log."""
    fields = {"name": f"quadriga.{role}", "levelname": "INFO", "msg": text}
    return _JsonLines(role, ()).format(logging.makeLogRecord(fields))


class RateLimit(logging.Filter):
    """Lets a maximum number of lines pass in each second; the next line says how many did not.

    Args:
        per_s: Maximum lines in a second.
        highest_level: Level above which all lines pass, and do not count.
    """

    def __init__(self, per_s: int, highest_level: int = logging.CRITICAL) -> None:
        super().__init__()
        self._budget = LineBudget(per_s)
        self._highest_level = highest_level

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line passes."""
        if record.levelno > self._highest_level:
            return True
        dropped = self._budget.take()
        if dropped is None:
            return False
        if dropped:
            record.msg = f"{record.getMessage()} ({dropped} lines like this were left out before)"
            record.args = None
        return True


def _log_end(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    _log.critical("the process ends by a fault of its own", exc_info=(kind, error, traceback))


def _log_end_of_thread(hook: Any) -> None:
    if hook.exc_value is not None and not isinstance(hook.exc_value, SystemExit):
        error = (hook.exc_type, hook.exc_value, hook.exc_traceback)
        _log.error("a thread ended by a fault of its own", exc_info=error)
