"""A place that models come from, an object store or a polled folder, and the watch that loads its new states.

One worker at a time looks at the source, and loads what is new beside what is served; the others follow. A state that
fails to load is not served, and is tried again later. All workers say the same of it, by a file that they share.
"""

import errno
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.metrics import TEXTS
from quadriga.engine.models.model import Model
from quadriga.engine.models.model_archives import archive_name
from quadriga.engine.models.model_control import reason_of
from quadriga.engine.models.model_host import ModelHost
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.errors import ProtocolError
from quadriga.store.records.disk import lock, try_lock, write_atomically
from quadriga.store.records.redaction import without_folders

SETTLE_S = 2.0
"""Seconds for which a source must stay as it is before a new state is taken without a request."""

RECORD = "served-models.json"
"""File of the record of the served states."""

_SHORTEST_POLL_S = 0.2
_LOOK_TIMEOUT_S = 3600.0
"""Maximum time that a look waits for that of another server on the same cache."""

_IDLE_S = 0.5
_FIRST_RETRY_S = 30.0
_MAX_RETRY_S = 3600.0
"""Maximum time until a state that failed to load is tried again."""

_MAX_REASON = 1000
"""Characters of a reason that all lists of models show."""

_log = logging.getLogger("quadriga.models")

Models = Mapping[str, Mapping[str, Path]]
"""Versions of models by name, each with its path, the highest version first."""

States = Mapping[str, str]
"""States of models by name: a hash of the files of each."""

LoadNewest = Callable[[str], bool]
"""Loads the newest state of a model in every worker; returns False where a client decides what is served."""

TryVersions = Callable[[str, Mapping[str, Path]], None]
"""Tries the versions of a model in a process of its own; raises `LoadError` for one that does not work."""


class SourceError(OSError):
    """A source that cannot be read now, or holds too much.

    Its reason is for clients, so it names neither the URL nor a host; `detail` is for the log.
    """

    def __init__(self, reason: str, number: int = errno.EIO, *, detail: str = "") -> None:
        super().__init__(number, reason)
        self.detail = detail

    def __str__(self) -> str:
        """Return the reason with the detail."""
        return f"{self.strerror} ({self.detail})" if self.detail else str(self.strerror)


class ChangingSourceError(SourceError):
    """A source that was changed while it was read: what was read may be half of a new state."""

    def __init__(self) -> None:
        super().__init__("their source was changed while it was read", errno.EAGAIN)


class ModelSource(Protocol):
    """A place that models come from; safe to use from several threads and processes.

    Its newest states are what the last look saw; what is served follows model by model, by `keep`.
    """

    folder: Path
    """Folder that the paths of its models are in, which errors for clients leave out."""

    def look(self, deadline_s: float, settle_s: float = 0.0) -> None:
        """Look for a new state; a look of another process is awaited until a time of the monotonic clock.

        Raises:
            OSError: The source does not answer, changes, or cannot be kept; the newest states stay.
        """

    def newest(self) -> dict[str, str]:
        """Return the newest state of each model."""

    def served(self) -> dict[str, str]:
        """Return the served state of each model."""

    def find(self, states: States) -> Models:
        """Return models in some states; the files of these stay until `release`."""

    def keep(self, states: States) -> None:
        """Note the states of all models that are served from now on, also after a restart."""

    def is_kept(self) -> bool:
        """Check whether all that is served is there, for a worker that starts again."""

    def begin(self) -> dict[str, str]:
        """Check what was served before a start, forget what is no more, and return the rest."""

    def release(self, paths: Collection[Path]) -> None:
        """Let go of all but what some paths of models lie in, and remove what nothing needs."""

    def seen_at(self) -> float:
        """Return when the source was last seen as it is, in seconds since 1970; 0 if never."""


class ServedRecord:
    """The record of the served states, in a file that only a change of models writes.

    Args:
        path: The file.
        source: Id of the source; a record of another one is no record.
    """

    def __init__(self, path: Path, source: str) -> None:
        self._path = path
        self._source = source

    def read(self) -> dict[str, str]:
        """Return the served state of each model by name."""
        try:
            record = msgspec.json.decode(self._path.read_bytes(), type=_Record)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}
        return record.models if record.source == self._source else {}

    def write(self, states: States) -> None:
        """Replace the record."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = msgspec.json.encode(_Record(self._source, dict(states)))
        write_atomically(self._path, data, 0o600, is_synced=True)


class _Record(msgspec.Struct, frozen=True):
    source: str
    models: dict[str, str]


def settled(
    read: Callable[[], Mapping[str, str]], settle_s: float
) -> tuple[dict[str, str], set[str]]:
    """Read twice, some seconds apart; return what was read last, and the keys whose values differ."""
    first = read()
    time.sleep(settle_s)
    last = dict(read())
    return last, {key for key in {*first, *last} if first.get(key) != last.get(key)}


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


class SourceWatch(Collector):
    """The watch of one worker over the source; safe to use from several threads.

    Args:
        source: The source.
        directory: Folder that the workers share, for as long as the server runs.
        poll_s: Seconds between two looks; 0 looks by request alone.
        try_versions: Tries versions before a start serves them.
        settle_s: Seconds for which a new state must stay as it is.
    """

    def __init__(
        self,
        source: ModelSource,
        directory: Path,
        poll_s: float,
        try_versions: TryVersions,
        settle_s: float = SETTLE_S,
    ) -> None:
        self.source = source
        self._directory = directory
        self._poll_s = poll_s
        self._try_versions = try_versions
        self._settle_s = settle_s
        self._status = SourceStatus()
        self._status_stamp = (0, 0)
        self._failures: dict[str, _Failure] = {}
        self._incomplete: set[str] = set()
        """Models whose newest state is not served by every worker."""
        self._stop = threading.Event()

    def prepare(self) -> None:
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
            failures = self._try_changed(states, served)
            self.source.keep({**states, **{name: served[name] for name in failures}})
            self._write(SourceStatus(problem, failures, int(bool(problem)), self.source.seen_at()))
            (self._directory / "prepared").touch()

    def _try_changed(self, newest: States, served: States) -> dict[str, str]:
        """Try the models whose states have changed; return why some fail, by name."""
        failures = {}
        models = self.source.find(newest)
        for name in served.keys() & models.keys():
            if served[name] == newest[name]:
                continue
            try:
                self._try_versions(name, models[name])
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

    def newest(self) -> dict[str, str]:
        """Return the newest state of each model."""
        return self.source.newest()

    def find(self, states: States) -> Models:
        """Return models in some states; the files of these stay until `release`."""
        return self.source.find(states)

    def release(self, paths: Collection[Path]) -> None:
        """Let go of all but what some paths of models lie in, and remove what nothing needs."""
        self.source.release(paths)

    def note_loaded(self, name: str, states: States) -> None:
        """Note that a model of these states is served."""
        if name not in states:
            return
        self.source.keep({**self.source.served(), name: states[name]})
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

    def collect(self) -> Iterable[Metric]:
        """Yield every metric of the source with its current value."""
        status = self.status()
        if status.seen_at:
            name = "quadriga_model_source_age_seconds"
            yield GaugeMetricFamily(name, TEXTS[name], max(time.time() - status.seen_at, 0.0))
        name = "quadriga_model_source_failed_looks"
        yield CounterMetricFamily(name, TEXTS[name], status.failed_looks)
        name = "quadriga_model_source_unserved"
        yield GaugeMetricFamily(name, TEXTS[name], len(status.failures))

    def _write(self, status: SourceStatus) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._directory / "source.json", msgspec.json.encode(status), 0o600)
        except OSError as error:
            _log.error("cannot write the state of the source of the models: %s", error)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"


def open_watch(
    source: ModelSource, settings: Settings, directory: Path, host: ModelHost
) -> SourceWatch:
    """Return the watch over a source, as the settings have it; `directory` is shared by the workers."""
    poll_s = max(settings.models_poll_s, _SHORTEST_POLL_S) if settings.models_poll_s else 0.0
    trial = partial(try_versions, score_threshold=settings.score_threshold, host=host)
    return SourceWatch(source, directory, poll_s, trial)


def try_versions(
    name: str, versions: Mapping[str, Path], score_threshold: float | None, host: ModelHost
) -> None:
    """Load the versions of a model in a process of its own, and drop them; what is packed is not tried.

    Raises:
        LoadError: One does not work; the text is for clients.
    """
    for version, path in versions.items():
        if not path.is_dir() and archive_name(path) is not None:
            continue
        try:
            Model(
                name,
                version,
                path,
                score_threshold=score_threshold,
                host=msgspec.structs.replace(host, origin="trial"),
            )
        except LoadError as error:
            text = without_folders(str(error), path.parent, path)
            raise LoadError(f"version {version}: {text}") from error
