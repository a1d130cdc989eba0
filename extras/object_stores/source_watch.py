"""Follows a source of models: what it has is fetched at the start, and new states are loaded as they come.

One worker at a time looks at the source, and loads what is new beside what is served; the others follow. A state that
fails to load is not served, and is tried again later. All workers say the same of it, by a file that they share.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import msgspec

from quadriga.extras.object_stores.interface import SETTLE_S, Models, ModelSource
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.errors import ProtocolError
from quadriga.store.disk import lock, try_lock, write_atomically

_LOOK_TIMEOUT_S = 3600.0
"""Maximum time that a look waits for that of another server on the same cache."""

_IDLE_S = 0.5
_FIRST_RETRY_S = 30.0
_MAX_RETRY_S = 3600.0
"""Maximum time until a state that failed to load is tried again."""

_MAX_REASON = 1000
"""Characters of a reason that all lists of models show."""

_log = logging.getLogger("quadriga.models")

LoadNewest = Callable[[str], bool]
"""Loads the newest state of a model in every worker; returns False where a client decides what is served."""

TryVersions = Callable[[str, Mapping[str, Path]], None]
"""Tries the versions of a model in a process of its own; raises `LoadError` for one that does not work."""


class SourceStatus(msgspec.Struct, frozen=True):
    """What is to be said of a source."""

    problem: str = ""
    """Why the last look failed; empty if it did not."""
    failures: dict[str, str] = {}
    """Why the newest state of a model is not served, by its name."""
    failed_looks: int = 0
    """Looks that failed since the server's start."""
    seen_at: float = 0.0
    """When the source was last seen as it is, in seconds since 1970."""


class _Failure(msgspec.Struct):
    """A state of a model that failed to load."""

    state: str
    reason: str
    delay_s: float
    retry_at_s: float


class SourceWatch:
    """The watch of one worker over the source; safe to use from several threads.

    Args:
        source: The source.
        directory: Folder that the workers share, for as long as the server runs.
        poll_s: Seconds between two looks; 0 looks by request alone.
        settle_s: Seconds for which a new state must stay as it is.
    """

    def __init__(
        self, source: ModelSource, directory: Path, poll_s: float, settle_s: float = SETTLE_S
    ) -> None:
        self.source = source
        self._directory = directory
        self._poll_s = poll_s
        self._settle_s = settle_s
        self._status = SourceStatus()
        self._status_stamp = (0, 0)
        self._failures: dict[str, _Failure] = {}
        self._incomplete: set[str] = set()
        """Models whose newest state is not served by every worker."""
        self._stop = threading.Event()

    def prepare(self, try_versions: TryVersions) -> None:
        """Look at the source and decide what the start serves; for the first worker of the server, which others await.

        A model whose state has changed since it was served last is tried first; if it fails, the last one is served.

        Raises:
            OSError: There is nothing to serve yet.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock(self._directory / "prepare.lock"):
            if (self._directory / "prepared").exists() and self.source.is_kept():
                return
            served = self.source.begin()
            problem = ""
            try:
                self.source.look(time.monotonic() + _LOOK_TIMEOUT_S)
            except OSError as error:
                if not served:
                    raise
                problem = reason_of(error)
                _log.warning(
                    "the source of the models cannot be read, so those of its cache are served: %s",
                    error,
                )
            states = dict(served) if problem else self.source.newest()
            failures = self._try_changed(states, served, try_versions)
            self.source.keep({**states, **{name: served[name] for name in failures}})
            self._write(SourceStatus(problem, failures, int(bool(problem)), self.source.seen_at()))
            (self._directory / "prepared").touch()

    def _try_changed(
        self, newest: Mapping[str, str], served: Mapping[str, str], try_versions: TryVersions
    ) -> dict[str, str]:
        """Try the models whose states have changed; return why some fail, by name."""
        failures = {}
        models = self.source.find(newest)
        for name in served.keys() & models.keys():
            if served[name] == newest[name]:
                continue
            try:
                try_versions(name, models[name])
            except LoadError as error:
                failures[name] = _shortened(str(error))
                _log.error("%s: its newest files fail, the last ones are served: %s", name, error)
        return failures

    def find_served(self) -> Models:
        """Return the models that are served, or were last."""
        return self.source.find(self.source.served())

    def start(self, load_newest: LoadNewest) -> None:
        """Look at the source every `poll_s` in a thread, in one worker at a time; not where that is 0."""
        if self._poll_s > 0:
            arguments = (load_newest,)
            threading.Thread(
                target=self._run, args=arguments, name="model-source", daemon=True
            ).start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()

    def _run(self, load_newest: LoadNewest) -> None:
        while (leading := self._try_lead()) is None:
            if self._stop.wait(_IDLE_S):
                return
        with leading:
            while not self._stop.wait(self._poll_s):
                self.follow(load_newest)

    def _try_lead(self) -> IO[str] | None:
        """Return the lock of the worker that looks; None while another one has it."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return try_lock(self._directory / "watch.lock")
        except OSError:  # as while the data folder is made again
            return None

    def follow(self, load_newest: LoadNewest) -> None:
        """Look once, and load what is new."""
        status = self.status()
        problem = ""
        try:
            self.source.look(time.monotonic() + _LOOK_TIMEOUT_S, self._settle_s)
            self._load_changed(load_newest)
        except OSError as error:
            problem = reason_of(error)
            if problem != status.problem:
                _log.error(
                    "the source of the models cannot be read, what is served stays: %s", error
                )
        except Exception:  # noqa: BLE001 - the loop must go on
            problem = "a fault of the server: its log has the reason"
            _log.exception("the source of the models cannot be followed")
        if status.problem and not problem:
            _log.info("the source of the models can be read again")
        failures = {name: failure.reason for name, failure in self._failures.items()}
        if not problem or self._failures:
            status = msgspec.structs.replace(status, failures=failures)
        failed_looks = status.failed_looks + bool(problem)
        self._write(SourceStatus(problem, status.failures, failed_looks, self.source.seen_at()))

    def _load_changed(self, load_newest: LoadNewest) -> None:
        """Load all models with a new state; those that fail once more after another was loaded, as it may be behind them."""
        served = self.source.served()
        newest = self.source.newest()
        changed = {
            name: state
            for name, state in newest.items()
            if served.get(name) != state or name in self._incomplete
        }
        for name in self._failures.keys() - changed.keys():  # what was there before is there again
            del self._failures[name]
        waiting = {name: state for name, state in changed.items() if self._is_due(name, state)}
        progress = True
        while waiting and progress:
            loaded = [
                name for name, state in waiting.items() if self._load(name, state, load_newest)
            ]
            progress = bool(loaded)
            for name in loaded:
                del waiting[name]

    def _is_due(self, name: str, state: str) -> bool:
        failure = self._failures.get(name)
        return failure is None or failure.state != state or time.monotonic() >= failure.retry_at_s

    def _load(self, name: str, state: str, load_newest: LoadNewest) -> bool:
        self._incomplete.discard(name)
        try:
            if load_newest(name):
                _log.info("%s: its new files are served", name)
        except (LoadError, ProtocolError, OSError) as error:
            if self.source.served().get(name) == state:  # another worker has not followed
                self._incomplete.add(name)
            self._note_failure(name, state, error)
            return False
        self._failures.pop(name, None)
        return True

    def _note_failure(self, name: str, state: str, error: Exception) -> None:
        previous = self._failures.get(name)
        is_same = previous is not None and previous.state == state
        delay_s = (
            min(previous.delay_s * 2, _MAX_RETRY_S) if is_same and previous else _FIRST_RETRY_S
        )
        reason = reason_of(error) if isinstance(error, OSError) else _shortened(str(error))
        if not (is_same and previous and previous.reason == reason):
            _log.error("%s: its new files are not served: %s", name, error)
        self._failures[name] = _Failure(state, reason, delay_s, time.monotonic() + delay_s)

    def look_for_client(self, timeout_s: float) -> None:
        """Look at the source before a load that a client asks for; raises as `ModelSource.look`."""
        self.source.look(time.monotonic() + timeout_s)
        seen_at = self.source.seen_at()
        self._write(msgspec.structs.replace(self.status(), problem="", seen_at=seen_at))

    def note_loaded(self, name: str) -> None:
        """Note that the newest state of a model is served."""
        status = self.status()
        if name in status.failures:
            failures = {key: text for key, text in status.failures.items() if key != name}
            self._write(msgspec.structs.replace(status, failures=failures))

    def remark(self, name: str) -> str:
        """Return why the newest state of a model is not served; empty if it is."""
        reason = self.status().failures.get(name)
        return f"newer files of it are not served: {reason}" if reason else ""

    def problem(self) -> str | None:
        """Return what is wrong with the source or with its newest state; None if nothing is."""
        status = self.status()
        if status.problem:
            return f"{status.problem}; the models are served as they were"
        name, reason = next(iter(status.failures.items()), ("", ""))
        return f"newer files of {name} are not served: {reason}" if name else None

    def status(self) -> SourceStatus:
        """Return what the worker that looks at the source says of it."""
        path = self._directory / "source.json"
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp != self._status_stamp:
                self._status = msgspec.json.decode(path.read_bytes(), type=SourceStatus)
                self._status_stamp = stamp
        except (OSError, msgspec.MsgspecError):
            pass
        return self._status

    def _write(self, status: SourceStatus) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._directory / "source.json", msgspec.json.encode(status), 0o600)
        except OSError as error:
            _log.error("cannot write the state of the source of the models: %s", error)


def reason_of(error: OSError) -> str:
    """Return the reason of an error, for clients."""
    return error.strerror or "the log of the server has the reason"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"
