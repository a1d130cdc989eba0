"""Baselines of models: a frozen summary of inferences, or, if rolling, the window before the current one.

`<directory>/<model>/<name>.json` is a `Baseline`, `<name>.summary` the summary of its inferences, and
`<name>.similarity` the references of the semantic score.
"""

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from quadriga.monitor.drift import similarity
from quadriga.monitor.drift.parameters import (
    DEFAULT_BASELINE,
    SOURCE_KEYS,
    DriftParameters,
    StoredWindow,
    fixed_window,
)
from quadriga.monitor.drift.samples import EMBEDDING, DriftError
from quadriga.monitor.drift.summary import decode_summary, encode_summary
from quadriga.monitor.drift.windows import WindowInfo, WindowSummary
from quadriga.monitor.model_files import (
    model_folder,
    read_model_file,
    team_folder,
    write_model_file,
)
from quadriga.monitor.report.schema import ReportedModel, Window
from quadriga.monitor.spans import parse_span_s
from quadriga.quoting import quoted
from quadriga.store.query.filters.comparisons import parse_moment_us
from quadriga.store.query.filters.forms import parse
from quadriga.store.query.request import decode_body
from quadriga.store.records.disk import translate_disk_errors, write_atomically
from quadriga.store.records.errors import NotFoundError, NotReadyError, QueryError
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scope

_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}", re.ASCII)

BaselineState = Literal["building", "ready", "stale", "failed"]


class BaselineRequest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}
):
    """Request to create a baseline: the inferences of a model within a span of time, or those before each window."""

    name: str = DEFAULT_BASELINE
    version: str | None = None
    where: Any = None
    """Filter that inferences must match, as in a query."""
    start: str | None = None
    """Start of the baseline, included, as in `StoredWindow`."""
    end: str | None = None
    dataset: str | None = None
    """Snapshot id of the dataset that the model was run over, as in the metadata key `dataset_snapshot_id`."""
    rolling: str | None = None
    """Length of a rolling baseline, such as `7d`: the time just before the window that is compared."""
    source_keys: Annotated[list[str], msgspec.Meta(max_length=20)] = msgspec.field(
        default_factory=SOURCE_KEYS.copy
    )
    """Metadata keys; the first that any inference has is the source."""

    @property
    def window(self) -> StoredWindow:
        """Window of the inferences to read."""
        filter_tree = self.where
        if self.dataset is not None:
            in_dataset = {"meta.dataset_snapshot_id": {"eq": self.dataset}}
            filter_tree = in_dataset if filter_tree is None else {"and": [in_dataset, filter_tree]}
        return StoredWindow(self.start, self.end, self.version, filter_tree)


class Baseline(msgspec.Struct, frozen=True):
    """A baseline of a model, and its state."""

    name: str
    model: str
    state: BaselineState
    created: str
    """Time of creation, RFC 3339, UTC."""
    version: str = ""
    """Versions of the model whose inferences were read, separated by commas."""
    sha256: str = ""
    """Hash of the model file; empty if inferences of several were read."""
    window: Window = Window()
    """Window of the inferences that were read, or will be."""
    n: int = 0
    """Number of inferences."""
    job: str | None = None
    """Id of the job that reads the inferences; None of a rolling baseline."""
    error: str = ""
    """Reason why it failed."""
    rolling: str | None = None
    """Length of a rolling baseline, such as `7d`."""
    references: int = 0
    """Number of embeddings that the semantic score compares with."""
    task: str = ""
    source_key: str | None = None
    """Metadata key that holds the source; None where no inference has any."""
    space: str = ""
    """Embedding space; empty where there are no embeddings."""
    excluded: dict[str, int] = {}
    """Numbers of inferences or embeddings that do not count, by reason."""
    left_out: dict[str, str] = {}
    """Reasons why columns are no signals, by name."""

    @property
    def order_key(self) -> tuple[str, str]:
        """Sort key that puts newer baselines last."""
        return self.created, self.job or ""

    @property
    def window_info(self) -> WindowInfo:
        """Model and circumstances of the window that was read."""
        model = ReportedModel(self.model, self.version, self.sha256)
        return WindowInfo(model, **{name: getattr(self, name) for name in _INFO_FIELDS})


_INFO_FIELDS = ("task", "window", "source_key", "space", "excluded", "left_out")
"""Fields that `Baseline` copies from `WindowInfo`."""


def decode_baseline(model: str, body: bytes, now_us: int) -> BaselineRequest:
    """Decode a request for a baseline from JSON, with its relative times replaced by moments.

    Raises:
        QueryError: The body cannot be decoded, or a value in it is invalid.
    """
    request = decode_body(body, BaselineRequest)
    if _NAME_PATTERN.fullmatch(request.name) is None:
        raise QueryError(
            f"expected name to be up to 64 of letters, digits, _, - and ., got {quoted(request.name, 80)}"
        )
    parse(request.where, 0)
    window = fixed_window(model, request.window, now_us)
    if request.rolling is not None:
        parse_span_s(request.rolling, "rolling")
        if (request.start, request.end, request.dataset) != (None, None, None):
            raise QueryError("rolling cannot be used with from, to or dataset")
    return replace(request, start=window.start, end=window.end)


class BaselineStore:
    """The baselines in a folder; safe to use from several threads and processes.

    Methods raise a `NotFoundError` if there is no such baseline, and a `QueryError` for an invalid model name.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def within(self, scope: Scope) -> "BaselineStore":
        """Return the baselines of the team of a scope; those of no team are in the folder itself."""
        return BaselineStore(team_folder(self.directory, scope.team))

    def all(self, model: str) -> list[Baseline]:
        """Return a model's baselines, by name."""
        paths = sorted(
            model_folder(self.directory, model).glob("*.json"), key=lambda path: path.stem
        )
        return [
            baseline for path in paths if (baseline := read_model_file(path, Baseline)) is not None
        ]

    def get(self, model: str, name: str) -> Baseline:
        """Return a baseline as saved."""
        path = self._path(model, name, "json")
        baseline = (
            None if _NAME_PATTERN.fullmatch(name) is None else read_model_file(path, Baseline)
        )
        if baseline is None:
            raise NotFoundError(
                f"baseline not found: {quoted(name, 80)} of {quoted(model, 80)}; create it with `quadriga baseline`, or PUT it"
                " on the model's /baseline"
            )
        return baseline

    def save_pending(self, baseline: Baseline) -> Baseline:
        """Save a baseline that is still to be read, or is rolling, replacing its namesake.

        Returns:
            The saved baseline: the newer one if another was requested at the same time.

        Raises:
            JournalError: The file could not be written, as on a full disk.
        """
        model, name = baseline.model, baseline.name
        with translate_disk_errors("store the baseline"), self._locked(model):
            existing = read_model_file(self._path(model, name, "json"), Baseline)
            if existing is not None and baseline.job and existing.order_key >= baseline.order_key:
                return existing
            self._clear(model, name)
            write_model_file(self._path(model, name, "json"), baseline)
        return baseline

    def save_ready(self, baseline: Baseline, window: WindowSummary) -> Baseline | None:
        """Save a baseline with the summary that was read; return None if a newer one has replaced it meanwhile.

        Raises:
            OSError: A file could not be written.
        """
        info = window.info
        model, name = baseline.model, baseline.name
        with self._locked(model):
            existing = read_model_file(self._path(model, name, "json"), Baseline)
            if existing is not None and existing.order_key > baseline.order_key:
                return None
            self._clear(model, name)
            saved = replace(
                baseline,
                state="ready",
                version=info.model.version,
                sha256=info.model.sha256,
                n=info.window.n,
                references=_write_references(self._path(model, name, "similarity"), window),
                **{field: getattr(info, field) for field in _INFO_FIELDS},
            )
            summary = encode_summary(window.summary.with_max_embeddings())
            write_atomically(self._path(model, name, "summary"), summary)
            write_model_file(self._path(model, name, "json"), saved)
            return saved

    def read_summary(self, model: str, name: str) -> WindowSummary:
        """Read the summary of a baseline.

        Raises:
            NotReadyError: The baseline is not ready.
            DriftError: The file is damaged.
        """
        baseline = self.get(model, name)
        try:
            data = self._path(model, name, "summary").read_bytes()
        except FileNotFoundError as error:
            # The job may have failed: then it says why.
            message = f"baseline is not ready: {name}; see its job {baseline.job}"
            raise NotReadyError(message) from error
        return WindowSummary(decode_summary(data), baseline.window_info)

    def resolve_rolling(self, parameters: DriftParameters) -> DriftParameters:
        """Replace the name of a rolling baseline by its window.

        Raises:
            QueryError: There is no such baseline, or it is rolling and the current window has no start.
        """
        if not isinstance(parameters.baseline, str):
            return parameters
        try:
            baseline = self.get(parameters.model, parameters.baseline)
        except NotFoundError as error:
            raise QueryError(str(error)) from error
        if baseline.rolling is None:
            return parameters
        if parameters.start is None:
            raise QueryError(f"`from` is required with the rolling baseline {baseline.name}")
        start_ms = parse_moment_us(parameters.start, 0) // 1000
        baseline_start_ms = max(start_ms - parse_span_s(baseline.rolling) * 1000, 0)
        start, end = timestamp_text(baseline_start_ms), timestamp_text(start_ms)
        window = StoredWindow(start, end, baseline.version or None, baseline.window.filter)
        return replace(parameters, baseline=window)

    def remove(self, model: str, name: str) -> Baseline:
        """Remove a baseline, and return it.

        Raises:
            JournalError: A file could not be removed.
        """
        baseline = self.get(model, name)
        with translate_disk_errors("remove the baseline"), self._locked(model):
            self._clear(model, name)
        return baseline

    def _clear(self, model: str, name: str) -> None:
        for suffix in ("json", "summary", "similarity"):
            self._path(model, name, suffix).unlink(missing_ok=True)

    def _path(self, model: str, name: str, suffix: str) -> Path:
        return model_folder(self.directory, model) / f"{name}.{suffix}"

    @contextmanager
    def _locked(self, model: str) -> Iterator[None]:
        folder = model_folder(self.directory, model)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _write_references(path: Path, window: WindowSummary) -> int:
    """Write the references of the semantic score, and return their number; 0, and no file, if there are too few."""
    sample = window.summary.sample
    column = sample.column(EMBEDDING)
    with suppress(DriftError):
        if column is not None:
            ids = sample.order[column.rows]
            return similarity.write_references(path, column.values, ids, space=window.info.space)
    return 0
