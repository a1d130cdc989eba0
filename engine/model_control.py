"""Loading and unloading while the server runs, in every worker, and the statistics of all of them.

Workers meet in a folder of the server: `state.json` says what each is to serve beyond what it found at its
start, and each writes how far it has come, and what it counted, to a file of its own. A change is made by one
worker at a time: it loads the model itself, and when that works it writes the state and waits for the others.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quadriga.engine.overrides import Override, write_files
from quadriga.engine.repository import ModelRepository
from quadriga.engine.session import LoadError
from quadriga.engine.stopwatch import merge_statistics
from quadriga.proto.errors import (
    InternalError,
    InvalidRequest,
    ModelNotReady,
    ProtocolError,
    Unsupported,
)
from quadriga.proto.messages import ModelStatistics

Read = TypeVar("Read", bound=msgspec.Struct)

_POLL_S = 0.05
_REPORT_S = 0.2

_log = logging.getLogger("quadriga.models")


class _Change(msgspec.Struct, frozen=True):
    """The last thing that was asked of a model."""

    generation: int
    override: Override | None
    """None where the model was unloaded."""


class _State(msgspec.Struct, frozen=True):
    """What every worker is to serve, beyond what it finds at its start."""

    generation: int = 0
    models: dict[str, _Change] = {}


class _Report(msgspec.Struct, frozen=True):
    """How far a worker has come."""

    generation: int = 0
    errors: dict[str, str] = {}
    """Why a model's last change did not work, by its name."""
    statistics: list[ModelStatistics] = []
    numbers: dict[str, float] = {}
    """What else the worker counts, by name."""


class ModelControl:
    """Changes what a server serves while it runs, unless that is not `allowed`.

    The workers meet in `directory`; one process alone needs none, and then takes no files, of which a client
    may send `max_file_bytes` for a model. A change waits `timeout_s` for another one, and for the other
    workers. `counters` gives what else this worker counts, by name.
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
        counters: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._repository = repository
        self._directory = directory
        self._worker = worker
        self._others = [number for number in range(workers) if number != worker]
        self._max_file_bytes = max_file_bytes
        self._timeout_s = timeout_s
        self._allowed = allowed
        self._counters = counters
        self._following = threading.Lock()
        self._report = _Report()

    def load(self, name: str, config: Mapping[str, Any] | None, files: Mapping[str, bytes]) -> None:
        """Load a model in every worker; as `quadriga.proto.messages.Serving.load_model` says."""
        until = time.monotonic() + self._timeout_s
        with self._alone(until):
            folder = None
            if files:
                if self._directory is None:
                    raise Unsupported("expected no files, as this server has no folder for them")
                folder = str(write_files(files, self._directory / "models", self._max_file_bytes))
            override = Override(dict(config or {}), folder)
            try:
                real = self._repository.load(name, override)
            except Exception as error:
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                if isinstance(error, LoadError):
                    raise InvalidRequest(str(error)) from error
                raise
            self._publish(real, override, until)

    def unload(self, name: str) -> None:
        """Stop serving a model in every worker; as `quadriga.proto.messages.Serving.unload_model` says."""
        until = time.monotonic() + self._timeout_s
        with self._alone(until):
            self._publish(self._repository.unload(name), None, until)

    def statistics(self, name: str | None, version: str | None) -> Sequence[ModelStatistics]:
        """Add up what the workers counted; that of others is a fraction of a second old."""
        mine = self._repository.statistics(name, version)
        parts = {(each.name, each.version): [each] for each in mine}
        for report in self._reports():
            for each in report.statistics:
                if (each.name, each.version) in parts:
                    parts[each.name, each.version].append(each)
        return [merge_statistics(same_version) for same_version in parts.values()]

    def counters(self) -> dict[str, float]:
        """Add up what else the workers count; of what does not only rise, this worker knows best."""
        total = dict(self._counters())
        for report in self._reports():
            for name, value in report.numbers.items():
                if name in total and name.endswith("_total"):
                    total[name] += value
        return total

    def start(self) -> None:
        """Do what was asked before this worker started, and follow what the others are asked."""
        self._follow()
        if self._others and self._directory is not None:
            self._write_report()
            threading.Thread(target=self._follow_others, name="model-control", daemon=True).start()

    @contextlib.contextmanager
    def _alone(self, until: float) -> Iterator[None]:
        """Let no other change be made, by any worker."""
        if not self._allowed:
            raise Unsupported("expected a server with the setting model_control, got one without")
        if self._directory is None:
            yield
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _locked(descriptor):
                if time.monotonic() > until:
                    raise ModelNotReady(
                        "expected no other model to be loaded or unloaded, got one that takes "
                        f"more than {self._timeout_s} s"
                    )
                time.sleep(0.01)
            self._follow()
            yield
        finally:
            os.close(descriptor)

    def _publish(self, name: str, override: Override | None, until: float) -> None:
        """Write the state, wait for the others, and remove the files that nobody needs any more."""
        if self._directory is None:
            return
        with self._following:
            before = self._read("state.json", _State)
            generation = max(before.generation, self._report.generation) + 1
            change = _Change(generation, override)
            errors = {key: text for key, text in self._report.errors.items() if key != name}
            self._report = _Report(generation, errors)
            self._write("state.json", _State(generation, {**before.models, name: change}))
        if self._others:
            self._write_report()
        for number in self._others:
            self._wait(number, name, generation, until)
        replaced = before.models.get(name)
        if replaced and replaced.override and replaced.override.folder is not None:
            shutil.rmtree(replaced.override.folder, ignore_errors=True)

    def _wait(self, number: int, name: str, generation: int, until: float) -> None:
        while (report := self._read(_file_of(number), _Report)).generation < generation:
            if time.monotonic() > until:
                raise ModelNotReady(
                    f"expected every worker to have changed {name!r} within {self._timeout_s} s, "
                    f"not yet: worker {number}; it goes on"
                )
            time.sleep(0.01)
        if name in report.errors:
            raise InternalError(
                f"expected every worker to change {name!r}, got from worker {number}: "
                f"{report.errors[name]}"
            )

    def _follow(self) -> None:
        """Make the changes that this worker has not made yet."""
        with self._following:
            state = self._read("state.json", _State)
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
                except (LoadError, ProtocolError) as error:
                    errors[name] = str(error)
                except Exception as error:  # noqa: BLE001 - the loop must go on
                    _log.exception("%s: a change failed", name)
                    errors[name] = f"a fault of the server: {error!r}"
            self._report = _Report(max(state.generation, self._report.generation), errors)

    def _follow_others(self) -> None:
        """Make the changes of other workers as they come, and write what is counted."""
        seen, written, write_at, failing = (0, 0), _Report(), 0.0, False
        while True:
            time.sleep(_POLL_S)
            try:
                if seen != (seen := self._changed()):
                    self._follow()
                    write_at = 0.0
                if time.monotonic() > write_at:
                    write_at = time.monotonic() + _REPORT_S
                    if self._current() != written:
                        written = self._write_report()
                failing = False
            except OSError as error:
                if not failing:
                    _log.error("expected to write to the folder of the workers, got: %s", error)
                failing = True

    def _changed(self) -> tuple[int, int]:
        """Tell one state from the next without reading it."""
        assert self._directory is not None
        try:
            found = (self._directory / "state.json").stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino

    def _write_report(self) -> _Report:
        with self._following:
            report = self._current()
            self._write(_file_of(self._worker), report)
            return report

    def _current(self) -> _Report:
        statistics = self._repository.statistics(None, None)
        counters = dict(self._counters())
        return msgspec.structs.replace(self._report, statistics=statistics, numbers=counters)

    def _reports(self) -> list[_Report]:
        return [self._read(_file_of(number), _Report) for number in self._others]

    def _read(self, name: str, kind: type[Read]) -> Read:
        """Read a file of the folder; where there is none yet, what it would say."""
        if self._directory is None:
            return kind()
        try:
            return msgspec.json.decode((self._directory / name).read_bytes(), type=kind)
        except FileNotFoundError:
            return kind()

    def _write(self, name: str, value: msgspec.Struct) -> None:
        """Replace a file of the folder in one step; called with `_following`."""
        assert self._directory is not None
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._directory / f"{name}.{self._worker}.new"
        new.write_bytes(msgspec.json.encode(value))
        new.replace(self._directory / name)


def _file_of(worker: int) -> str:
    return f"worker-{worker}.json"


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
