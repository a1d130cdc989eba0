"""The model repository: models and versions in folders, their states, and the loaded ones.

A model that fails to load does not stop the others. Models are reloaded and unloaded while others serve: a
request keeps the model that it started with.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.model import Model, model_folder
from quadriga.engine.models.model_archives import NO_ROOM, UnpackedArchives, archive_name
from quadriga.engine.models.model_folders import NAME, FindModels, find_models, find_versions
from quadriga.engine.models.model_host import ModelHost, files_bytes
from quadriga.engine.models.overrides import Override, check_config, read_config
from quadriga.engine.models.recognition.model_toml import ThenOptions, read_model_toml
from quadriga.engine.models.runners.crashes import forget_crashes
from quadriga.engine.models.runners.free_memory import return_free_memory
from quadriga.engine.models.runners.session import CPU, LoadError
from quadriga.proto.errors import ModelNotReady, NotFound
from quadriga.proto.messages import ModelInfo, ModelState, ModelStatistics, ModelStatus
from quadriga.quoting import quoted
from quadriga.store.query.names import find_model_name, unknown_model_text
from quadriga.store.records.redaction import without_folders

_SHOWN_DIGITS = 12
_SHOWN_LABEL = 60

_log = logging.getLogger("quadriga.models")


class VersionEntry(msgspec.Struct, eq=False):
    """One version of one model: its path and state."""

    name: str
    version: str
    path: Path
    overrides: Mapping[str, Any] | None = None
    state: ModelState = "LOADING"
    reason: str = ""
    model: Model | None = None
    is_from_client: bool = False
    """Whether a client sent its files."""
    sha256: str = ""
    """SHA-256 of the file that was loaded last, also after an unload; empty before the first load."""

    def written_then(self) -> ThenOptions | None:
        """Return what model.toml says of the model behind this one, also before it is loaded."""
        if self.model is not None:
            return self.model.recognition.written.then
        if self.state == "UNLOADED" or archive_name(self.path) is not None:
            return None
        folder = self.path if self.path.is_dir() else model_folder(self.path)
        with suppress(LoadError, OSError):
            return read_model_toml(folder, self.overrides).then
        return None

    def load(
        self, score_threshold: float | None, host: ModelHost, check: Callable[[Model], None]
    ) -> None:
        """Load the version, and log the outcome; raises as `Model` and the further `check` do."""
        started = time.perf_counter()
        if self.is_from_client:
            host = msgspec.structs.replace(host, origin="client")
        try:
            model = self._open(score_threshold, host)
            check(model)
            self.model = model
        except LoadError as error:
            _log.error("%s %s: failed to load: %s", self.name, self.version, error)
            raise
        self.state, self.sha256 = "READY", model.sha256
        task = self.model.recognition.task
        elapsed_s = time.perf_counter() - started
        providers = self.model.session.providers
        by = "" if providers == (CPU,) else f" by {', '.join(providers)}"
        _log.info("%s %s: %s%s, ready in %.2f s", self.name, self.version, task, by, elapsed_s)

    def try_first(self, score_threshold: float | None, host: ModelHost) -> None:
        """Load the version in a process of its own and drop it, so that the worker opens nothing that crashes it.

        A version that has its own process anyway is not tried.
        """
        overrides = self.overrides or {}
        isolation = overrides.get("runtime", {}).get("isolation")
        if isolation == "process" or (self.is_from_client and host.isolation != "none"):
            return
        self._open(score_threshold, msgspec.structs.replace(host, origin="trial"))

    def _open(self, score_threshold: float | None, host: ModelHost) -> Model:
        return Model(
            self.name,
            self.version,
            self.path,
            score_threshold=score_threshold,
            overrides=self.overrides,
            host=host,
        )

    def take_over(self, standing: "VersionEntry | None") -> bool:
        """Take the loaded model of the entry in this one's place; return whether it is one of the same files.

        They are the same if they are at another path as links to them: a snapshot of a source has those of the one before.
        """
        if (
            standing is None
            or standing.model is None
            or standing.is_from_client
            or standing.path == self.path
            or (standing.overrides or {}) != (self.overrides or {})
            or _file_ids(standing.path) != _file_ids(self.path)
        ):
            return False
        self.path, self.model, self.state = standing.path, standing.model, "READY"
        self.sha256 = standing.sha256
        return True


def _file_ids(path: Path) -> dict[str, tuple[int, int]]:
    """Return the device and number of each file of a model's folder, by its path below it."""
    folder = path if path.is_dir() else model_folder(path)
    return {
        str(file.relative_to(folder)): ((status := file.stat()).st_dev, status.st_ino)
        for file in folder.rglob("*")
        if file.is_file()
    }


def warn_of_changed_file(entry: VersionEntry, standing: VersionEntry | None) -> None:
    """Warn if a version was loaded from another file than the one that was served under its name before."""
    if standing is None or not standing.sha256 or standing.sha256 == entry.sha256:
        return
    _log.warning(
        "%s %s: the file changed, sha256 %s was %s: give it a new version so that reports can tell them apart",
        entry.name,
        entry.version,
        entry.sha256[:_SHOWN_DIGITS],
        standing.sha256[:_SHOWN_DIGITS],
    )


def warn_of_changed_labels(entries: Iterable[VersionEntry]) -> None:
    """Warn if the highest version that is ready has other labels than the one before it; versions come highest first."""
    ready = [entry.model for entry in entries if entry.model is not None]
    if len(ready) < 2:
        return
    newest, before = ready[:2]
    if not newest.labels or not before.labels or newest.labels == before.labels:
        return
    index, label, former = next(
        (index, label, former)
        for index, (label, former) in enumerate(zip_longest(newest.labels, before.labels))
        if label != former
    )
    _log.warning(
        "%s %s: its labels differ from those of version %s: class %d is %s, was %s",
        newest.name,
        newest.version,
        before.version,
        index,
        "absent" if label is None else quoted(label, _SHOWN_LABEL),
        "absent" if former is None else quoted(former, _SHOWN_LABEL),
    )


class ServedVersion(msgspec.Struct, frozen=True):
    """One version of a model, as lists show it."""

    name: str
    version: str
    state: ModelState
    reason: str
    sha256: str | None = None
    """Hash of the model's file; None where it is not loaded, as `task` and `labels`."""
    task: str | None = None
    labels: Sequence[str] = ()
    behind: str | None = None
    """Name of the model behind it; None without one."""


_LOAD_THREADS = 4
"""Models that load at once when the server starts."""

MAX_CLIENT_MODELS = 16
"""Maximum models of clients that are loaded: each takes memory that the operator did not plan for."""

_LARGE_MODEL_BYTES = 512 * 1024 * 1024


class ModelRepository:
    """All models of one folder, or the model of a model folder, an archive or an ONNX file.

    It is safe to use from several threads.

    Args:
        root: The folder or file.
        score_threshold: Lowest score of detections where the model says nothing.
        archives: Unpacks archives; without it they fail to load.
        host: What the process gives to its models.
        find: Finds the models of a source, once `fill` is called; by default they are found in the root.
        name: Name of the model in the root if there is only one; empty for that of its folder.
        remark: Returns what is to be said of a model that is ready, by its name.

    Raises:
        LoadError: There is no such folder, or no model in it.
    """

    def __init__(
        self,
        root: Path,
        score_threshold: float | None = None,
        archives: UnpackedArchives | None = None,
        host: ModelHost | None = None,
        *,
        find: FindModels | None = None,
        name: str = "",
        remark: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._root = root
        self._host = host or ModelHost()
        self._score_threshold = score_threshold
        self._archives = archives
        self._find: FindModels = find or partial(find_models, root, name=name)
        self._remark = remark
        self._entries: dict[str, dict[str, VersionEntry]] = {}
        if find is None:
            self.fill()
        self._change_lock = threading.RLock()  # readers take the current entries, and need no lock
        self._large_lock = threading.Lock()
        self.loaded = threading.Event()

    def fill(self) -> None:
        """Find the models, which are then waiting to be loaded; raises as the repository's creation."""
        self._entries = {
            name: {version: VersionEntry(name, version, path) for version, path in paths.items()}
            for name, paths in self._find().items()
        }
        if not self._entries:
            raise LoadError(
                f"no model found in {self._root}: expected <name>/model.onnx or <name>/<version>/model.onnx"
            )

    def load_all(self) -> None:
        """Load every model that is waiting, a few at once; states have the outcome.

        One that takes long does not keep others from loading. Large ones load one after the other, as the memory
        that loading takes besides is a multiple of the file's size.

        Raises:
            OSError: The disk has no room for an archive's files. Its model goes on waiting, so call this again.
        """
        waiting = iter(self._all())
        disk_errors: list[OSError] = []

        def load_in_turn() -> None:
            for entry in waiting:  # of a list, which gives each to one thread
                try:
                    self._load_waiting(entry)
                except OSError as error:
                    disk_errors.append(error)

        threads = [threading.Thread(target=load_in_turn, daemon=True) for _ in range(_LOAD_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._remove_unused_archives()
        if disk_errors:
            raise disk_errors[0]
        for versions in self._entries.values():
            warn_of_changed_labels(versions.values())
        self.loaded.set()

    def _load_waiting(self, waiting: VersionEntry) -> None:
        with self._change_lock:
            standing = self._entries[waiting.name].get(waiting.version) is waiting
            if not standing or waiting.state != "LOADING":
                return
            entries = self._unpack_entry(waiting)
        for entry in entries:
            is_large = files_bytes(entry.path) > _LARGE_MODEL_BYTES
            with self._large_lock if is_large else nullcontext():
                self._load_entry(entry)

    def _load_entry(self, entry: VersionEntry) -> None:
        if entry.state != "LOADING":
            return
        try:
            entry.load(self._score_threshold, self._host, self._check_chains)
        except LoadError as error:
            entry.state, entry.reason = "FAILED", self._text(error, entry)
        except Exception as error:  # noqa: BLE001 - one model's fault must not stop the others
            kind = type(error).__name__
            entry.state = "FAILED"
            entry.reason = f"internal error: {kind}: the log of the server has the reason"
            _log.exception("%s %s: failed to load", entry.name, entry.version)

    def _check_chains(self, model: Model) -> None:
        """Check the models behind a model, whatever their state; raises as `check_chains`."""

        def following(name: str) -> list[ThenOptions]:
            tables = [entry.written_then() for entry in self._entries.get(name, {}).values()]
            return [table for table in tables if table is not None]

        check_chains(model.name, model.recognition.written.then, self._entries, following)

    def _text(self, error: LoadError, entry: VersionEntry) -> str:
        """Return the message of an error for clients, to whom paths below the folder of models are relative."""
        return without_folders(str(error), self._root, entry.path.parent, entry.path)

    def _unpack_entry(self, entry: VersionEntry) -> list[VersionEntry]:
        """Replace the entry of an archive by those of the versions in it; it has failed if there are none."""
        try:
            paths = self._unpack({entry.version: entry.path})
        except LoadError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_ROOM:
                raise error.__cause__ from error
            entry.state, entry.reason = "FAILED", self._text(error, entry)
            _log.error("%s: failed to load: %s", entry.name, error)
            return [entry]
        if paths == {entry.version: entry.path}:
            return [entry]
        entries = [VersionEntry(entry.name, version, path) for version, path in paths.items()]
        self._put(entries)
        return entries

    def _unpack(self, paths: Mapping[str, Path]) -> Mapping[str, Path]:
        """Return the versions in an archive, if the paths are that of one, else the paths.

        Raises:
            LoadError: The archive cannot be unpacked, or has no model.
        """
        for path in paths.values():
            if path.is_dir() or archive_name(path) is None:
                continue
            if self._archives is None:
                raise LoadError(f"cannot unpack {path.name}: there is no data folder")
            versions = find_versions(self._archives.unpack(path))
            if not versions:
                raise LoadError(
                    f"no model found in {path.name}: expected model.onnx or <version>/model.onnx"
                )
            return versions
        return paths

    def _remove_unused_archives(self) -> None:
        if self._archives is not None:
            try:
                self._archives.remove_unused()
            except OSError as error:
                _log.warning("cannot remove unused archives: %s", error)

    def load(
        self,
        name: str,
        override: Override | None = None,
        *,
        by_client: bool = False,
        find: FindModels | None = None,
    ) -> str:
        """Load a model from the current content of its folder, and serve it once all its versions work.

        Until then, and if a version fails, the previous versions stay in service. The name is that of a folder
        of the repository, or any name if there are files. A load `by_client`, in the worker that it asked, first tries
        a model of other files or another configuration in a process of its own, and one that `find` finds; and it ends
        the refusal of a model that ended its process too often.

        Returns:
            The name under which it is served.

        Raises:
            NotFound: The repository has no such folder.
            LoadError: A version cannot be loaded.
        """
        with self._change_lock:
            opened = self.open(name, override, by_client=by_client, find=find)
            return self.serve(opened, by_client=by_client)

    def open(
        self,
        name: str,
        override: Override | None = None,
        *,
        by_client: bool = False,
        find: FindModels | None = None,
    ) -> list[VersionEntry]:
        """Load the versions of a model, and serve none of them yet; arguments and errors as of `load`."""
        entries = self._read(name, override or Override(), find or self._find)
        self._check_client_models(entries[0])
        host = msgspec.structs.replace(self._host, ignores_crashes=by_client)
        is_foreign = find or (override is not None and (override.folder or override.config))
        standing = self._entries.get(entries[0].name, {})
        for entry in entries:
            is_new = not entry.take_over(standing.get(entry.version))
            try:
                if is_new and by_client and is_foreign:
                    entry.try_first(self._score_threshold, host)
                if is_new:
                    entry.load(self._score_threshold, host, self._check_chains)
                if override is not None and entry.model is not None:
                    check_config(override.config, entry.model.info((entry.version,)))
            except LoadError as error:
                raise LoadError(
                    f"model {entry.name!r} version {entry.version} failed to load: "
                    f"{self._text(error, entry)}"
                ) from error
            if is_new:
                warn_of_changed_file(entry, standing.get(entry.version))
        warn_of_changed_labels(entries)
        return entries

    def serve(self, entries: list[VersionEntry], *, by_client: bool) -> str:
        """Let versions that `open` has loaded take the place of the model's others; return the name of the model."""
        with self._change_lock:
            self._check_client_models(entries[0])
            model_name = self._put(entries)
            if by_client:
                forget_crashes(self._host.counts, model_name)
            self._remove_unused_archives()
            return_free_memory()  # that of the versions before
            return model_name

    def _read(self, name: str, override: Override, find: FindModels) -> list[VersionEntry]:
        overrides, policy = read_config(override.config)
        if override.folder is None:
            try:
                models = find()
            except LoadError as error:
                raise LoadError("the folder of the models is not there any more") from error
            model_name = find_model_name(name, models)
            if model_name is None:
                raise NotFound(unknown_model_text(name, models))
            paths = self._unpack(models[model_name])
        else:
            model_name = find_model_name(name, self._entries) or name
            paths = find_versions(Path(override.folder))
            if not NAME.fullmatch(model_name) or not model_name.strip(".") or not paths:
                raise LoadError(
                    f"expected a name of {NAME.pattern}, and model.onnx or <version>/model.onnx among "
                    f"its files, got {quoted(name, 140)} with {'files' if paths else 'no model'}"
                )
        return [
            VersionEntry(
                model_name,
                version,
                paths[version],
                overrides,
                is_from_client=override.folder is not None,
            )
            for version in policy.choose(paths)
        ]

    def _check_client_models(self, entry: VersionEntry) -> None:
        """Check that one more model of a client is allowed.

        Raises:
            LoadError: There are too many.
        """
        if not entry.is_from_client:
            return
        others = {
            other.name
            for other in self._all()
            if other.is_from_client and other.state != "UNLOADED" and other.name != entry.name
        }
        if len(others) >= MAX_CLIENT_MODELS:
            raise LoadError(
                f"expected at most {MAX_CLIENT_MODELS} models of clients, got one more: "
                "unload one first"
            )

    def unload(self, name: str) -> str:
        """Stop serving a model; running requests are finished.

        Returns:
            The name under which it was served.
        """
        with self._change_lock:
            entries = [
                msgspec.structs.replace(entry, state="UNLOADED", reason="unloaded", model=None)
                for entry in self._versions(name).values()
            ]
            _log.info("%s: unloaded", entries[0].name)
            model_name = self._put(entries)
            return_free_memory()
            return model_name

    def _put(self, entries: list[VersionEntry]) -> str:
        """Replace the versions of a model."""
        name = entries[0].name
        self._entries = {**self._entries, name: {entry.version: entry for entry in entries}}
        return name

    def get(self, name: str, version: str | None = None) -> Model:
        """Return a model that is ready: the requested version, or the highest one that is ready.

        The case of the name does not matter; it may also be `m-<name>`.

        Raises:
            NotFound: No such model or version.
            ModelNotReady: The model is loading, has failed, is unloaded, or is refused as it ended its process.
        """
        candidates = self._requested_entries(name, version)
        for entry in candidates:
            if entry.model is not None:
                if refusal := entry.model.run_mark.refusal():
                    raise ModelNotReady(refusal.reason, math.ceil(refusal.seconds))
                return entry.model
        entry = candidates[0]
        states = {"LOADING": "is still loading", "UNLOADED": "is unloaded"}
        state = states.get(entry.state, f"failed to load: {entry.reason}")
        raise ModelNotReady(f"model {entry.name!r} version {entry.version} {state}")

    def ready_versions(self, name: str) -> list[Model]:
        """Return the versions of a model that can answer now, the highest first; none of an unknown one."""
        try:
            entries = self._versions(name).values()
        except NotFound:
            return []
        return [
            entry.model
            for entry in entries
            if entry.model is not None and entry.model.run_mark.refusal() is None
        ]

    def info(self, name: str, version: str | None = None) -> ModelInfo:
        """Return the description of a model; raises as `get` does."""
        return self.get(name, version).info(list(self._versions(name)))

    def is_folder(self, name: str) -> bool:
        """Check whether a model has this name, in this form."""
        return name in self._entries

    def names(self) -> list[str]:
        """Return the names of all models, whatever their state."""
        return list(self._entries)

    def statuses(self) -> list[ModelStatus]:
        """Return the state of every version of every model."""
        return [
            ModelStatus(entry.name, entry.version, *self._state(entry)) for entry in self._all()
        ]

    def _state(self, entry: VersionEntry) -> tuple[ModelState, str]:
        """Return the state of a version, and its reason."""
        if entry.model is not None and (refusal := entry.model.run_mark.refusal()):
            return "REFUSED", refusal.reason
        return entry.state, entry.reason or self._remark(entry.name)

    def paths(self) -> list[Path]:
        """Return the paths of all versions."""
        return [entry.path for entry in self._all()]

    def served_versions(self) -> list[ServedVersion]:
        """Return every version of every model with its state, and its file where it is loaded."""
        return [self._served(entry) for entry in self._all()]

    def _served(self, entry: VersionEntry) -> ServedVersion:
        state, reason = self._state(entry)
        served = ServedVersion(entry.name, entry.version, state, reason)
        if (model := entry.model) is None:
            return served
        then = model.recognition.written.then
        return msgspec.structs.replace(
            served,
            sha256=model.reference.sha256,
            task=model.recognition.task,
            labels=model.labels,
            behind=None if then is None else then.model,
        )

    def statistics(self, name: str | None, version: str | None) -> list[ModelStatistics]:
        """Return the statistics of one model, or of all, since they were loaded; none for unloaded ones."""
        return [
            entry.model.counters.statistics(entry.name, entry.version)
            for entry in (self._all() if name is None else self._requested_entries(name, version))
            if entry.model is not None
        ]

    def _all(self) -> list[VersionEntry]:
        return [entry for versions in self._entries.values() for entry in versions.values()]

    def _versions(self, name: str) -> Mapping[str, VersionEntry]:
        entries = self._entries
        if (versions := entries.get(name)) is not None:  # the search of other forms sorts all names
            return versions
        model_name = find_model_name(name, entries)
        if model_name is None and not entries:
            raise ModelNotReady("the models are still awaited from their source")
        if model_name is None:
            raise NotFound(unknown_model_text(name, entries))
        return entries[model_name]

    def _requested_entries(self, name: str, version: str | None) -> list[VersionEntry]:
        """Return one version of a model, or all of them."""
        versions = self._versions(name)
        if version is None:
            return list(versions.values())
        if version not in versions:
            expected = ", ".join(versions)
            raise NotFound(
                f"expected a version of {name!r} among {expected}, got {quoted(version, 60)}"
            )
        return [versions[version]]


MAX_MODELS_BEHIND = 2
"""Maximum models behind one another, without the first."""


def check_chains(
    name: str,
    then: ThenOptions | None,
    names: Collection[str],
    following: Callable[[str], Iterable[ThenOptions]],
) -> None:
    """Check the models behind a model, by what every version of each of them names.

    Args:
        name: The model that is loaded.
        then: The table `[then]` of it.
        names: Names of the models that the server knows, whatever their state.
        following: Returns the tables `[then]` of all versions of one of them.

    Raises:
        LoadError: A model is unknown, is behind itself, or is one too many.
    """
    chains = [] if then is None else [[name, then.model]]
    while chains:
        chain = chains.pop()
        written = chain[-1]
        next_name = find_model_name(written, {*names, name})
        if next_name is None:
            raise LoadError(f"model.toml, [then]: {unknown_model_text(written, names)}")
        text = " → ".join(chain)
        if next_name == name:
            raise LoadError(f"model.toml: expected no model behind itself by [then], got {text}")
        if len(chain) - 1 > MAX_MODELS_BEHIND:
            raise LoadError(
                f"model.toml: expected at most {MAX_MODELS_BEHIND} models behind one another by [then], got {text}"
            )
        chains += [[*chain, table.model] for table in following(next_name)]


def models_behind(model: Model, get: Callable[[str, str | None], Model]) -> list[Model]:
    """Return the models behind a model, in order; none for most.

    Args:
        model: The first one.
        get: Returns a model by name and version; raises as `quadriga.engine.models.repository.ModelRepository.get`.

    Raises:
        ModelNotReady: One of them cannot answer; the text names the model before it.
    """
    chain: list[Model] = []
    while (then := model.recognition.written.then) is not None:
        if len(chain) == MAX_MODELS_BEHIND:
            raise ModelNotReady(
                f"expected at most {MAX_MODELS_BEHIND} models behind one another, got one more behind {model.name!r}"
            )
        version = None if then.version is None else str(then.version)
        try:
            behind = get(then.model, version)
        except NotFound as error:
            of_version = "" if version is None else f" version {version}"
            raise ModelNotReady(
                f"model {model.name!r} needs the model behind it, which is not found: {then.model}{of_version}"
            ) from error
        except ModelNotReady as error:
            text = f"model {model.name!r} needs the model behind it: {error}"
            raise ModelNotReady(text, error.retry_after_s) from error
        if not isinstance(behind.image_predictor, ImageGraph):
            raise ModelNotReady(
                f"model {model.name!r} needs a model behind it that takes images, and no prompts, got "
                f"{behind.name!r} of the task {behind.recognition.task}"
            )
        chain.append(behind)
        model = behind
    return chain
