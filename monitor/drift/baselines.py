"""Baselines of models: what is usual, frozen as a summary, or a window that moves along.

`<directory>/<model>/<name>.json` is a `Baseline`, `<name>.summary` what was read for it, and `<name>.similarity`
what the semantic score compares with.
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
    parse_span_s,
)
from quadriga.monitor.drift.samples import EMBEDDING, DriftError
from quadriga.monitor.drift.summary import decode_summary, encode_summary
from quadriga.monitor.drift.windows import WindowInfo, WindowSummary
from quadriga.monitor.model_files import model_folder, read_model_file, write_model_file
from quadriga.monitor.report.schema import ReportedModel, Window
from quadriga.store.disk import write_atomically
from quadriga.store.errors import NotFoundError, NotReadyError, QueryError, translate_disk_errors
from quadriga.store.query.json_form import parse
from quadriga.store.query.moments import parse_moment_us
from quadriga.store.query.request import decode_body
from quadriga.store.records import timestamp_text

_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}", re.ASCII)

BaselineState = Literal["building", "ready", "stale", "failed"]


class BaselineRequest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}
):
    """What a baseline shall be: inferences of the model within a time, or those before each window."""

    name: str = DEFAULT_BASELINE
    version: str | None = None
    where: Any = None
    """A filter, as of a query."""
    start: str | None = None
    """As of `StoredWindow`."""
    end: str | None = None
    dataset: str | None = None
    """What a dataset that the model was run over is called: `meta.dataset_snapshot_id`."""
    rolling: str | None = None
    """Such as `7d`: the time before the window that is compared."""
    source_keys: Annotated[list[str], msgspec.Meta(max_length=20)] = msgspec.field(
        default_factory=SOURCE_KEYS.copy
    )
    """As of `DriftParameters`."""

    @property
    def window(self) -> StoredWindow:
        """What is read."""
        where = self.where
        if self.dataset is not None:
            of_dataset = {"meta.dataset_snapshot_id": {"eq": self.dataset}}
            where = of_dataset if where is None else {"and": [of_dataset, where]}
        return StoredWindow(self.start, self.end, self.version, where)


class Baseline(msgspec.Struct, frozen=True):
    """What is usual of a model."""

    name: str
    model: str
    state: BaselineState
    created: str
    """RFC 3339, UTC."""
    version: str = ""
    """All that answered."""
    sha256: str = ""
    """Of the model that answered; empty where several did."""
    window: Window = Window()
    """What was read, or is to be."""
    n: int = 0
    job: str | None = None
    """What reads it; None of one that moves along."""
    error: str = ""
    """Why it failed."""
    rolling: str | None = None
    references: int = 0
    """Embeddings that the semantic score compares with."""
    task: str = ""
    source_key: str | None = None
    space: str = ""
    excluded: dict[str, int] = {}
    left_out: dict[str, str] = {}

    @property
    def order_key(self) -> tuple[str, str]:
        """What tells the newer of two."""
        return self.created, self.job or ""

    @property
    def window_info(self) -> WindowInfo:
        """What was read."""
        model = ReportedModel(self.model, self.version, self.sha256)
        return WindowInfo(model, **{name: getattr(self, name) for name in _INFO_FIELDS})


_INFO_FIELDS = ("task", "window", "source_key", "space", "excluded", "left_out")
"""What a baseline has as `WindowInfo` has it."""


def decode_baseline(model: str, body: bytes, now_us: int) -> BaselineRequest:
    """Read what a baseline shall be from JSON; its times become moments.

    Raises:
        QueryError: It is none.
    """
    request = decode_body(body, BaselineRequest)
    if _NAME_PATTERN.fullmatch(request.name) is None:
        raise QueryError(
            f"expected name to be up to 64 of letters, digits, _, - and ., got {request.name!r:.80}"
        )
    parse(request.where, 0)
    window = fixed_window(model, request.window, now_us)
    if request.rolling is not None:
        parse_span_s(request.rolling, "rolling")
        if (request.start, request.end, request.dataset) != (None, None, None):
            raise QueryError("expected rolling without from, to and dataset, got one of them")
    return replace(request, start=window.start, end=window.end)


class BaselineStore:
    """The baselines of a folder; safe to use from several threads and processes.

    What is asked of a baseline that there is not is a `NotFoundError`, what cannot be the name of a model a
    `QueryError`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def all(self, model: str) -> list[Baseline]:
        """Return a model's baselines, by name."""
        paths = sorted(
            model_folder(self.directory, model).glob("*.json"), key=lambda path: path.stem
        )
        return [
            baseline for path in paths if (baseline := read_model_file(path, Baseline)) is not None
        ]

    def get(self, model: str, name: str) -> Baseline:
        """Return one."""
        path = self._path(model, name, "json")
        baseline = (
            None if _NAME_PATTERN.fullmatch(name) is None else read_model_file(path, Baseline)
        )
        if baseline is None:
            raise NotFoundError(
                f"expected {name!r:.80} to be a baseline of {model!r:.80}, got none: `quadriga baseline`, or"
                " PUT on the model's /baseline, says what is usual"
            )
        return baseline

    def save_pending(self, baseline: Baseline) -> Baseline:
        """Keep one that is to be read, or moves along, in place of what had its name.

        Returns:
            What is kept: of two that are asked for at once, the newer.

        Raises:
            JournalError: It could not be kept, as on a full disk.
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
        """Keep what was read; None where a newer one took its place meanwhile.

        Raises:
            OSError: It could not be kept.
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
                **{one: getattr(info, one) for one in _INFO_FIELDS},
            )
            summary = encode_summary(window.summary.with_max_embeddings())
            write_atomically(self._path(model, name, "summary"), summary)
            write_model_file(self._path(model, name, "json"), saved)
            return saved

    def read_summary(self, model: str, name: str) -> WindowSummary:
        """Return a baseline to compare with.

        Raises:
            NotReadyError: It is not read yet.
            DriftError: It is damaged.
        """
        baseline = self.get(model, name)
        try:
            data = self._path(model, name, "summary").read_bytes()
        except FileNotFoundError as error:
            job = f"nothing yet of its job {baseline.job}"  # which may have failed, too
            raise NotReadyError(f"expected the baseline {name} to be ready, got {job}") from error
        return WindowSummary(decode_summary(data), baseline.window_info)

    def resolve_rolling(self, parameters: DriftParameters) -> DriftParameters:
        """Put a window in place of a baseline that moves along.

        Raises:
            QueryError: There is no such baseline, or it moves along with a window that begins nowhere.
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
            raise QueryError(f"expected from with the rolling baseline {baseline.name}, got none")
        start_ms = parse_moment_us(parameters.start, 0) // 1000
        baseline_start_ms = max(start_ms - parse_span_s(baseline.rolling) * 1000, 0)
        start, end = timestamp_text(baseline_start_ms), timestamp_text(start_ms)
        window = StoredWindow(start, end, baseline.version or None, baseline.window.filter)
        return replace(parameters, baseline=window)

    def remove(self, model: str, name: str) -> Baseline:
        """Remove one, and return what it was.

        Raises:
            JournalError: It could not be.
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
    """Write what the semantic score compares with, and return how many; of too few there is no score."""
    sample = window.summary.sample
    column = sample.column(EMBEDDING)
    with suppress(DriftError):
        if column is not None:
            ids = sample.order[column.rows]
            return similarity.write_references(path, column.values, ids, window.info.space)
    return 0
