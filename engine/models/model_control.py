"""Loading and unloading while the server runs, in every worker, and the statistics of all of them.

Workers coordinate in a folder of the server: `state.json` has the changes since the start that each worker
has to make, and each worker writes its progress and its statistics to a file of its own. One worker at a time
makes a change: it loads the model itself, and if that works, it writes the state and waits for the others.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from quadriga.engine.measures.model_counts import merge_statistics
from quadriga.engine.models.overrides import Override, write_files
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.errors import (
    InternalError,
    InvalidRequest,
    ModelNotReady,
    ProtocolError,
    Unsupported,
)
from quadriga.proto.messages import ModelStatistics
from quadriga.proto.request import QueueStatistics, current_caller

Read = TypeVar("Read", bound=msgspec.Struct)

_POLL_INTERVAL_S = 0.05
_REPORT_INTERVAL_S = 0.2
_MAX_TRIALS, _MAX_TRIALS_OF_KEY = 4, 2
"""Maximum models of clients that a worker loads at once, of all keys and of one: each may take a core, and some GB."""

_log = logging.getLogger("quadriga.models")


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Raise the errors of a load as those of a request."""
    try:
        yield
    except LoadError as error:
        raise InvalidRequest(str(error)) from error


class ModelWatch(Protocol):
    """The watch of this worker over an object store or a polled folder that the models come from: an extra has it."""

    def look_for_client(self, timeout_s: float) -> None:
        """Look for new states, before a load that a client asks for."""

    def newest(self) -> dict[str, str]:
        """Return the newest state of each model, as the last look has it."""

    def find(self, states: Mapping[str, str]) -> Mapping[str, Mapping[str, Path]]:
        """Return the versions of models in some states, whose files stay until `release`."""

    def note_loaded(self, name: str, states: Mapping[str, str]) -> None:
        """Note that a model of these states is served from now on."""

    def release(self, paths: Collection[Path]) -> None:
        """Let go of all files but those of some models."""


class _ModelChange(msgspec.Struct, frozen=True):
    """The last requested change of a model."""

    generation: int
    override: Override | None
    """Override to load with; None if the model was unloaded."""


class _DesiredState(msgspec.Struct, frozen=True):
    """Changes that every worker has to make after its start."""

    generation: int = 0
    models: dict[str, _ModelChange] = {}


class _WorkerReport(msgspec.Struct, frozen=True):
    """Progress and statistics of a worker."""

    generation: int = 0
    errors: dict[str, str] = {}
    """Why the last change of a model failed, by model name."""
    statistics: list[ModelStatistics] = []
    queues: list[QueueStatistics] = []


class ModelControl:
    """Loads and unloads models while the server runs, if that is `allowed`.

    Args:
        repository: Models of this worker.
        directory: Folder through which workers coordinate; None for a single process, which takes no files.
        worker: Number of this worker.
        workers: Number of workers.
        max_file_bytes: Maximum bytes of the files that a client may send for a model.
        timeout_s: Maximum time that a change waits for another change, and for the other workers.
        allowed: Whether models may be loaded and unloaded.
        queues: Returns the statistics of this worker's queue of requests.
        watch: Watch over the source that models come from; None for a folder that is read as it is.
    """

    def __init__(
        self,
        repository: ModelRepository,
        directory: Path | None = None,
        *,
        worker: int = 0,
        workers: int = 1,
        max_file_bytes: int = 0,
        timeout_s: float = 120.0,
        allowed: bool = True,
        queues: Callable[[], Sequence[QueueStatistics]] = list,
        watch: ModelWatch | None = None,
    ) -> None:
        self._repository = repository
        self._directory = directory
        self._worker = worker
        self._others = [number for number in range(workers) if number != worker]
        self._max_file_bytes = max_file_bytes
        self._timeout_s = timeout_s
        self._allowed = allowed
        self._queues = queues
        self._watch = watch
        self._state_lock = threading.Lock()
        self._report = _WorkerReport()
        self._trials: Counter[str] = Counter()
        """Models of clients that are being loaded, by the id of the key."""
        self._trial_ended = threading.Condition()

    @_refusing()
    def load(self, name: str, config: Mapping[str, Any] | None, files: Mapping[str, bytes]) -> None:
        """Load a model in every worker; see `quadriga.proto.messages.Serving.load_model`."""
        deadline_s = time.monotonic() + self._timeout_s
        self._check_allowed()
        if self._watch is not None and not files:
            self._load_from_source(self._watch, name, dict(config or {}), deadline_s)
            return
        if not files:
            override = Override(dict(config or {}))
            with self._exclusive(deadline_s):
                model_name = self._repository.load(name, override, by_client=True)
                self._publish(model_name, override, deadline_s)
            return
        if self._directory is None:
            raise Unsupported("expected no files, as this server has no folder for them")
        with self._trial(deadline_s), contextlib.ExitStack() as cleaning:
            folder = str(write_files(files, self._directory / "models", self._max_file_bytes))
            cleaning.callback(shutil.rmtree, folder, ignore_errors=True)
            override = Override(dict(config or {}), folder)
            opened = self._repository.open(
                name, override, by_client=True
            )  # others change models meanwhile
            with self._exclusive(deadline_s):
                model_name = self._repository.serve(opened, by_client=True)
                cleaning.pop_all()
                self._publish(model_name, override, deadline_s)

    @contextlib.contextmanager
    def _trial(self, deadline_s: float) -> Iterator[None]:
        """Count a model of a client while it is loaded, once the caller and all together may load one more."""
        key_id, trials = current_caller().key_id, self._trials

        def has_room() -> bool:
            return trials.total() < _MAX_TRIALS and trials[key_id] < _MAX_TRIALS_OF_KEY

        with self._trial_ended:
            if not self._trial_ended.wait_for(has_room, deadline_s - time.monotonic()):
                raise ModelNotReady(
                    f"expected at most {_MAX_TRIALS_OF_KEY} models of one key and {_MAX_TRIALS} of all to load at "
                    f"once, got more for {self._timeout_s} s"
                )
            trials[key_id] += 1
        try:
            yield
        finally:
            with self._trial_ended:
                trials[key_id] -= 1
                self._trial_ended.notify_all()

    def _load_from_source(
        self, watch: ModelWatch, name: str, config: dict[str, Any], deadline_s: float
    ) -> None:
        """Look at the source, and load what it has now."""
        try:
            watch.look_for_client(self._timeout_s)
            with self._exclusive(deadline_s):
                self._load_newest(watch, name, Override(config), deadline_s)
        except OSError as error:
            _log.warning("%s: cannot be loaded: %s", name, error)
            raise ModelNotReady(f"cannot load {name!r}: {reason_of(error)}") from error

    def load_newest(self, name: str) -> bool:
        """Load the newest state of a model in every worker, with the configuration that a client gave it.

        Returns:
            Whether it was loaded: not if a client has unloaded it, or sent other files.

        Raises:
            LoadError, ProtocolError, OSError: A worker cannot load it.
        """
        assert self._watch is not None
        deadline_s = time.monotonic() + self._timeout_s
        with self._exclusive(deadline_s):
            change = self._read("state.json", _DesiredState).models.get(name)
            override = Override() if change is None else change.override
            if override is None or override.folder is not None:
                return False
            self._load_newest(self._watch, name, override, deadline_s)
            return True

    def _load_newest(
        self, watch: ModelWatch, name: str, override: Override, deadline_s: float
    ) -> None:
        states = watch.newest()
        find = partial(watch.find, states)
        model_name = self._repository.load(name, override, by_client=True, find=find)
        watch.note_loaded(model_name, states)
        self._publish(model_name, override, deadline_s)
        watch.release(self._repository.paths())

    def unload(self, name: str) -> None:
        """Stop serving a model in every worker; see `quadriga.proto.messages.Serving.unload_model`."""
        deadline_s = time.monotonic() + self._timeout_s
        self._check_allowed()
        with self._exclusive(deadline_s):
            self._publish(self._repository.unload(name), None, deadline_s)

    def statistics(self, name: str | None, version: str | None) -> Sequence[ModelStatistics]:
        """Return the statistics summed over the workers; those of others are a fraction of a second old."""
        own_statistics = self._repository.statistics(name, version)
        by_version = {(entry.name, entry.version): [entry] for entry in own_statistics}
        for report in self._reports():
            for entry in report.statistics:
                if (entry.name, entry.version) in by_version:
                    by_version[entry.name, entry.version].append(entry)
        return [merge_statistics(same_version) for same_version in by_version.values()]

    def queue_statistics(self) -> Sequence[QueueStatistics]:
        """Return the statistics of queues summed over the workers; those of others are a fraction of a second old."""
        return merge_queue_statistics(
            [self._queues(), *(report.queues for report in self._reports())]
        )

    def start(self) -> None:
        """Make the changes from before this worker started, and start following those of other workers."""
        self._follow()
        if self._others and self._directory is not None:
            self._write_report()
            threading.Thread(target=self._follow_others, name="model-control", daemon=True).start()

    def _check_allowed(self) -> None:
        if not self._allowed:
            raise Unsupported(
                "this server neither loads nor unloads models: its setting model_control is off"
            )

    @contextlib.contextmanager
    def _exclusive(self, deadline_s: float) -> Iterator[None]:
        """Prevent other changes by any worker."""
        if self._directory is None:
            yield
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() > deadline_s:
                    raise ModelNotReady(
                        "expected no other model to be loaded or unloaded, got one that takes "
                        f"more than {self._timeout_s} s"
                    )
                time.sleep(0.01)
            self._follow()
            yield
        finally:
            os.close(descriptor)

    def _publish(self, name: str, override: Override | None, deadline_s: float) -> None:
        """Write the state, wait for the other workers, and remove files that are no longer needed."""
        if self._directory is None:
            return
        with self._state_lock:
            previous = self._read("state.json", _DesiredState)
            generation = max(previous.generation, self._report.generation) + 1
            change = _ModelChange(generation, override)
            errors = {key: text for key, text in self._report.errors.items() if key != name}
            self._report = _WorkerReport(generation, errors)
            self._write("state.json", _DesiredState(generation, {**previous.models, name: change}))
        if self._others:
            self._write_report()
        for worker in self._others:
            self._wait(worker, name, generation, deadline_s)
        replaced = previous.models.get(name)
        if replaced and replaced.override and replaced.override.folder is not None:
            shutil.rmtree(replaced.override.folder, ignore_errors=True)

    def _wait(self, worker: int, name: str, generation: int, deadline_s: float) -> None:
        while (report := self._read(_report_name(worker), _WorkerReport)).generation < generation:
            if time.monotonic() > deadline_s:
                raise ModelNotReady(
                    f"expected every worker to have changed {name!r} within {self._timeout_s} s, "
                    f"not yet: worker {worker}; it goes on"
                )
            time.sleep(0.01)
        if name in report.errors:
            raise InternalError(
                f"expected every worker to change {name!r}, got from worker {worker}: "
                f"{report.errors[name]}"
            )

    def _follow(self) -> None:
        """Make the changes that this worker has not made yet."""
        with self._state_lock:
            state = self._read("state.json", _DesiredState)
            errors = dict(self._report.errors)
            for name, change in state.models.items():
                if change.generation <= self._report.generation:
                    continue
                errors.pop(name, None)
                try:
                    if change.override is None:
                        self._repository.unload(name)
                    else:
                        self._repository.load(name, change.override)
                        if self._watch is not None:
                            self._watch.release(self._repository.paths())
                except (LoadError, ProtocolError) as error:
                    errors[name] = str(error)
                except Exception as error:  # noqa: BLE001 - the loop must go on
                    _log.exception("%s: a change failed", name)
                    errors[name] = f"a fault of the server: {type(error).__name__}"
            self._report = _WorkerReport(max(state.generation, self._report.generation), errors)

    def _follow_others(self) -> None:
        """Make the changes of other workers as they come, and write the report of this one."""
        last_state, written, report_at_s, failing = (0, 0), _WorkerReport(), 0.0, False
        while True:
            time.sleep(_POLL_INTERVAL_S)
            try:
                if last_state != (last_state := self._state_version()):
                    self._follow()
                    report_at_s = 0.0
                if time.monotonic() > report_at_s:
                    report_at_s = time.monotonic() + _REPORT_INTERVAL_S
                    if self._current_report() != written:
                        written = self._write_report()
                        failing = False  # not in rounds that write nothing: on a full disk each failure would have a line
            except OSError as error:
                if not failing:
                    _log.error("cannot write to the folder of the workers: %s", error)
                failing = True

    def _state_version(self) -> tuple[int, int]:
        """Return modification time and inode of the state file, which change with the state."""
        assert self._directory is not None
        try:
            status = (self._directory / "state.json").stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_mtime_ns, status.st_ino

    def _write_report(self) -> _WorkerReport:
        with self._state_lock:
            report = self._current_report()
            self._write(_report_name(self._worker), report)
            return report

    def _current_report(self) -> _WorkerReport:
        statistics, queues = self._repository.statistics(None, None), list(self._queues())
        return msgspec.structs.replace(self._report, statistics=statistics, queues=queues)

    def _reports(self) -> list[_WorkerReport]:
        return [self._read(_report_name(number), _WorkerReport) for number in self._others]

    def _read(self, name: str, type_: type[Read]) -> Read:
        """Read a file of the folder; return an empty struct if there is none yet."""
        if self._directory is None:
            return type_()
        try:
            return msgspec.json.decode((self._directory / name).read_bytes(), type=type_)
        except FileNotFoundError:
            return type_()

    def _write(self, name: str, value: msgspec.Struct) -> None:
        """Replace a file of the folder atomically; called with `_state_lock` held."""
        assert self._directory is not None
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._directory / f"{name}.{self._worker}.new"
        new.write_bytes(msgspec.json.encode(value))
        new.replace(self._directory / name)


def merge_queue_statistics(
    statistics: Iterable[Sequence[QueueStatistics]],
) -> list[QueueStatistics]:
    """Add up the statistics of several processes, by model."""
    merged: dict[str, QueueStatistics] = {}
    for process in statistics:
        for entry in process:
            total = merged.get(entry.model, QueueStatistics(entry.model))
            merged[entry.model] = msgspec.structs.replace(
                total,
                waiting=total.waiting + entry.waiting,
                running=total.running + entry.running,
                expected_wait_s=max(total.expected_wait_s, entry.expected_wait_s),
                refused=dict(Counter(total.refused) + Counter(entry.refused)),
                stopped=dict(Counter(total.stopped) + Counter(entry.stopped)),
            )
    return list(merged.values())


def reason_of(error: OSError) -> str:
    """Return the reason of an error, for clients."""
    return error.strerror or "the log of the server has the reason"


def _report_name(worker: int) -> str:
    return f"worker-{worker}.json"
