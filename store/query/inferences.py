"""Reading stored inferences: pages of query results, single inferences, and their inputs."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from quadriga.store.blobs.interface import KEY_PATTERN, KEY_PREFIX, Blobs, blob_key
from quadriga.store.blobs.urls import BlobUrls
from quadriga.store.database.database import (
    Cancellation,
    ReaderPool,
    execute,
    execute_in,
    journal_offsets,
)
from quadriga.store.database.rows import (
    RECORD_COLUMNS,
    RecordRow,
    models_by_id,
    stored_inference,
    uncommitted_inference,
)
from quadriga.store.journal import journal
from quadriga.store.journal.journal_lag import oldest_waiting_id, wait_until_moved
from quadriga.store.query.filters.syntax import ResolvedFilter
from quadriga.store.query.names import (
    CellIds,
    ModelNames,
    NamesOf,
    first_ids,
    follow_ids,
    no_reports,
    resolve,
    unknown_key_warnings,
)
from quadriga.store.query.request import (
    QueryRequest,
    cursor_range,
    encode_cursor,
    query_digest,
    range_after,
)
from quadriga.store.query.sql.search import (
    NARROW_ROWS,
    Budget,
    IdRange,
    Planner,
    Search,
    SearchResult,
    find_first,
)
from quadriga.store.records.errors import (
    NotFoundError,
    NotReadyError,
    QueryError,
    QueryTimeoutError,
)
from quadriga.store.records.ids import LARGEST_ID, time_ms
from quadriga.store.records.records import (
    JournaledRecord,
    StoredFeedback,
    StoredInference,
    StoredSignals,
    is_change,
    timestamp_text,
)
from quadriga.store.records.scope import EVERYTHING, Scope

JOURNAL_TIMEOUT_S = 5.0
_LATEST = (
    "SELECT max(seq) FROM inference WHERE seq <= ?",
    "SELECT max(id) FROM metadata_change WHERE id <= ?",
    "SELECT max(id) FROM truth WHERE id <= ?",
    "SELECT max(id) FROM feedback WHERE id <= ?",
)
"""Statements that return the largest id, up to a limit, of each table whose rows get one."""

IDS_PER_BATCH = 10_000
DEFAULT_MEDIA_TYPE = "application/octet-stream"
_JOINS = (  # outer joins never drive
    " inference AS i LEFT JOIN ground_truth AS g ON g.seq = i.seq"
    " LEFT JOIN truth AS t ON t.id = g.truth_id"
)
_COLUMNS = f"{RECORD_COLUMNS}, t.annotations, t.review"
_SELECT = f"SELECT {_COLUMNS} FROM {_JOINS} WHERE i.seq = ?"
_FEEDBACK = "SELECT id, kind, value, comment, source FROM feedback WHERE seq = ? ORDER BY id"
_MODELS_OF_IMAGE = "SELECT DISTINCT model_id FROM inference WHERE input_hash = ? AND input_kept = 1"
_SELECT_ALL = f"SELECT {_COLUMNS} FROM ({{}}) AS m CROSS JOIN {_JOINS} WHERE i.seq = m.seq"

MAX_SHORT_CHARACTERS = 65_536
"""Largest JSON of predictions, metadata or ground truth that `InferenceReader.read_short` reads."""

_LARGE = {"i.predictions": "predictions", "i.meta": "metadata", "t.annotations": "ground_truth"}
_SHORT_COLUMNS = ", ".join(
    f"CASE WHEN length({column}) > {MAX_SHORT_CHARACTERS} THEN '' ELSE {column} END"
    if column in _LARGE
    else column
    for column in _COLUMNS.split(", ")
)
_SELECT_WHOLE = f"SELECT {_COLUMNS} FROM {_JOINS} WHERE i.seq IN ({{}})"
_SELECT_SHORT = f"SELECT {_SHORT_COLUMNS} FROM {_JOINS} WHERE i.seq IN ({{}})"

_COUNT_CAP = 10_001
"""Limit of a capped count; a count that reaches it means: more than 10,000."""


class Page(msgspec.Struct, frozen=True):
    """Page of query results, in order."""

    inferences: list[StoredInference]
    cursor: str | None
    """Cursor of the next page, or None if this is the last."""
    count: int | None
    partial: bool = False
    """Whether the time limit was reached before the page was full; `cursor` continues from there."""
    count_is_exact: bool | None = None
    """`False` if there may be more than `count`, None if nothing was counted."""
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class Count(msgspec.Struct, frozen=True):
    """Number of matches."""

    count: int
    is_exact: bool
    """`False` if there may be more."""
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Why nothing may be found, left out where something is; see `quadriga.store.query.names.unknown_key_warnings`."""


_record_decoder = msgspec.json.Decoder(JournaledRecord)


class InferenceReader:
    """Reads stored inferences; safe to use from several threads.

    Methods with an id raise a `QueryError` if it is malformed, and a `NotFoundError` if the inference or its
    input does not exist. All methods raise a `NotReadyError` or a `QueryTimeoutError` if the database does
    not answer.

    Args:
        url: URL of the database.
        journal_directory: Journal of the workers, for records that are not committed yet.
        blobs: Stored inputs.
        narrow_rows: See `quadriga.store.query.sql.search.NARROW_ROWS`.
        timeout_s: Time limit of a query.
        connections: Queries that may run at once; further ones wait.
        budget: Limits after which a page is returned as far as it is filled.
        url_secret: Text from which servers behind one address derive the key of signed URLs; empty for a key of their own.
        served: Returns the names of the models that the server knows, so that a filter by an unknown one is
            refused with a `NotFoundError`; None where no name counts as unknown.
        cell_ids: Finds the inferences that reports list.
    """

    def __init__(
        self,
        url: str,
        journal_directory: Path,
        blobs: Blobs,
        *,
        narrow_rows: int = NARROW_ROWS,
        timeout_s: float = 5.0,
        connections: int = 8,
        budget: Budget = Budget(),  # noqa: B008 - it is immutable
        url_secret: str = "",
        served: NamesOf | None = None,
        cell_ids: CellIds = no_reports,
    ) -> None:
        self._readers = ReaderPool(url, connections, timeout_s)
        self._directory = journal_directory
        self._blobs = blobs
        key_file = journal_directory.parent / "url.key"
        self.urls = BlobUrls(blobs, key_file, shared_secret=url_secret)
        self._narrow_rows = narrow_rows
        self.budget = budget
        self._served = served
        self._cell_ids = cell_ids
        self.scope = EVERYTHING
        """What may be seen: everything, until `within` says less."""
        self._with_replays = False

    @property
    def names(self) -> ModelNames:
        """Finds the model that a name means, among those that may be seen."""
        return ModelNames(self.stored_names, self._served and self._served_names)

    def within(self, scope: Scope) -> "InferenceReader":
        """Return a view of this reader that sees what a scope admits."""
        view = copy(self)
        view.scope = scope
        return view

    def with_replays(self) -> "InferenceReader":
        """Return a view of this reader whose filters find replays, too, where they name no model."""
        view = copy(self)
        view._with_replays = True  # noqa: SLF001 - it is one of these
        return view

    def cancelled_by(self, cancellation: Cancellation) -> "InferenceReader":
        """Return a view of this reader whose queries raise a `QueryCancelledError` once they are cancelled."""
        view = copy(self)
        view._readers = self._readers.cancelled_by(cancellation)  # noqa: SLF001 - it is one of these
        return view

    def read_filter(self, request: QueryRequest, now_us: int | None = None) -> ResolvedFilter:
        """Parse the filter of a request, `now_us` as there, and resolve its names.

        Raises:
            QueryError: The filter is invalid.
            NotFoundError: The filter compares with a model or a report that is not known.
        """
        resolved = resolve(
            request.parse_filter(now_us),
            self.names,
            partial(self._cell_ids, self.scope),
        )
        return resolved._replace(with_replays=resolved.with_replays or self._with_replays)

    def check_where(self, where: Any) -> None:
        """Check a filter as JSON or text before a job uses it; raises as `read_filter`."""
        self.read_filter(QueryRequest(where=where))

    def query(self, request: QueryRequest, now_us: int | None = None) -> Page:
        """Return a page of matches; `now_us` as for `QueryRequest.parse_filter`.

        Raises:
            QueryError: The filter or the cursor is invalid.
            NotFoundError: The filter compares with a model that is not known.
            NotReadyError: There is no database yet, or the journal was not committed in time.
            QueryTimeoutError: The query took too long.
        """
        digest = query_digest(request)
        id_range = cursor_range(request, digest)
        self._wait_if_asked(request, now_us)
        resolved = self.read_filter(request, now_us)
        with self._readers.snapshot() as connection:
            planner = self.planner(connection, resolved)
            rows, resume_id = self._first_rows(connection, planner, request, id_range)
            page_rows = [RecordRow(*row) for row in rows[: request.limit]]
            models = models_by_id(connection, (row.model_id for row in page_rows))
            count = self._count_of(connection, planner, request)
        if len(rows) > request.limit:
            resume_id = page_rows[-1].seq
        elif resume_id is not None and request.offset:
            raise _late_offset(request.offset)
        is_empty = not (page_rows or request.cursor or request.offset) and resume_id is None
        return Page(
            inferences=[stored_inference(row, models[row.model_id]) for row in page_rows],
            cursor=None if resume_id is None else encode_cursor(resume_id, digest),
            count=count.count if count else None,
            partial=len(rows) < request.limit and resume_id is not None,
            count_is_exact=count.is_exact if count else None,
            warnings=self._warnings(resolved) if is_empty else msgspec.UNSET,
        )

    def _first_rows(
        self, connection: sa.Connection, planner: Planner, request: QueryRequest, id_range: IdRange
    ) -> SearchResult:
        """Return the rows of a page, and one more if there is another page."""
        is_descending = request.order == "-ts"
        if request.offset:
            search = Search(connection, planner.plan, descending=is_descending)
            id_range = _skip_matches(search, request, id_range, self.budget)
        return find_first(
            connection,
            planner,
            descending=is_descending,
            limit=request.limit + 1,
            id_range=id_range,
            budget=self.budget,
            select=_SELECT_ALL,
        )

    def _count_of(
        self, connection: sa.Connection, planner: Planner, request: QueryRequest
    ) -> Count | None:
        """Return the count that a request asks for; None if it asks for none."""
        if request.count in (None, "none"):
            return None
        search = Search(connection, planner.plan, descending=request.order == "-ts")
        return _count_matches(search, self.budget, is_capped=request.count == "capped")

    def pages(self, request: QueryRequest, now_us: int | None = None) -> Iterator[Page]:
        """Yield a page and all that follow it, as `query`, with the same `now_us` for all of them."""
        now_us = time.time_ns() // 1000 if now_us is None else now_us
        while True:
            page = self.query(request, now_us)
            yield page
            if page.cursor is None:
                return
            request = msgspec.structs.replace(request, cursor=page.cursor)

    def matching_ids(
        self, where: Any, now_us: int | None = None, *, descending: bool = False
    ) -> Iterator[list[int]]:
        """Yield the ids of all matches of a filter in batches, oldest first, or newest first; errors as for `query`."""
        for ids, _ in self.id_batches(where, now_us, descending=descending):
            yield ids

    def id_batches(
        self,
        where: Any,
        now_us: int | None = None,
        *,
        id_range: IdRange | None = None,
        descending: bool = False,
    ) -> Iterator[tuple[list[int], int | None]]:
        """Yield the ids of the matches of a filter in a range, as `matching_ids`, each batch with the id that the next one follows."""
        resolved = self.read_filter(QueryRequest(where=where), now_us)
        id_range = id_range or IdRange()
        while True:
            with self._readers.snapshot() as connection:
                plan = self.planner(connection, resolved).plan
                search = Search(connection, plan, descending=descending)
                rows, resume_id = search.first_matches(IDS_PER_BATCH, id_range, self.budget)
            ids = [int(row[0]) for row in rows]
            if len(ids) == IDS_PER_BATCH:
                resume_id = ids[-1]
            yield ids, resume_id
            if resume_id is None:
                return
            id_range = id_range.after(resume_id, descending=descending)

    def count(self, request: QueryRequest, budget: Budget | None = None) -> Count:
        """Count all matches of a filter; errors as for `query`.

        Args:
            request: The filter, and whether a large number may stay a lower bound.
            budget: Limits of the search for a lower bound; None for those of a query.
        """
        self._wait_if_asked(request, None)
        resolved = self.read_filter(request)
        with self._readers.snapshot() as connection:
            plan = self.planner(connection, resolved).plan
            search = Search(connection, plan, descending=True)
            is_capped = request.count == "capped"
            return _count_matches(search, budget or self.budget, is_capped=is_capped)

    def count_with_warnings(self, request: QueryRequest) -> Count:
        """Count all matches of a filter, as `count`; of one that finds nothing with its warnings."""
        count = self.count(request)
        warnings = [] if count.count else self.unknown_keys(request.where)
        return msgspec.structs.replace(count, warnings=warnings) if warnings else count

    def unknown_keys(self, where: Any) -> list[str]:
        """Return a sentence about each metadata key of a filter that no stored inference has; raises as `read_filter`."""
        return self._warnings(self.read_filter(QueryRequest(where=where))) or []

    def _warnings(self, resolved: ResolvedFilter) -> list[str] | msgspec.UnsetType:
        """Return why a filter finds nothing, if that is known.

        Nothing is said where the database takes too long: the answer beside which it would stand is there already.
        """
        warnings: list[str] = []
        with suppress(QueryTimeoutError, NotReadyError), self._readers.snapshot() as connection:
            warnings = unknown_key_warnings(connection, self.scope, resolved.paths)
        return warnings or msgspec.UNSET

    def get(self, inference_id: str) -> StoredInference:
        """Return one inference, also if it is only in the journal yet.

        It has another id where the one given leads to it, see `quadriga.store.query.names.first_ids`.
        """
        if not (inference_id.isascii() and inference_id.isdigit() and len(inference_id) < 20):
            raise QueryError(f"expected an id as a string of digits, got {inference_id[:80]!r}")
        seq = int(inference_id)
        # The writer may commit the record between the first look and that into the journal.
        inference = self._row(seq) or self._journaled(seq) or self._row(seq) or self._first(seq)
        if inference is None:
            raise NotFoundError(f"inference not found: {inference_id}")
        return inference

    def by_id(self, ids: Iterable[str]) -> dict[str, StoredInference]:
        """Return those of some inferences that may be seen and are still there, whole, by id."""
        seqs = [seq for id_ in ids if len(id_) < 20 and (seq := int(id_)) <= LARGEST_ID]
        return {inference.id: inference for inference in self._read(_SELECT_WHOLE, seqs)}

    def read_short(self, ids: Sequence[int]) -> list[StoredInference]:
        """Return those of some inferences that may be seen and are still there, oldest first, without large JSON."""
        return [
            msgspec.structs.replace(inference, **dict.fromkeys(inference.left_out))
            if inference.left_out
            else inference
            for inference in self._read(_SELECT_SHORT, ids)
        ]

    def _read(self, statement: str, ids: Sequence[int]) -> list[StoredInference]:
        """Return what a statement selects of those of some inferences that may be seen, oldest first."""
        with self._readers.snapshot() as connection:
            rows = [RecordRow(*row) for row in execute_in(connection, statement, ids)]
            models = models_by_id(connection, (row.model_id for row in rows))
        return [
            stored_inference(row, models[row.model_id])
            for row in sorted(rows, key=lambda row: row.seq)
            if self.scope.admits(models[row.model_id].name, models[row.model_id].team)
        ]

    def oldest_waiting_id(self) -> int | None:
        """Return the oldest id at the front of the journal, as `quadriga.store.journal.journal_lag.oldest_waiting_id`."""
        return oldest_waiting_id(self._directory)

    def get_committed(self, inference_id: str) -> StoredInference:
        """Return one inference once it is committed to the database, so that it can be changed."""
        inference = self.get(inference_id)
        if self._row(int(inference.id)) is None:
            self.wait_for_journal()
            inference = self.get(inference_id)
        return inference

    def signals(self, ids: Sequence[int]) -> dict[int, StoredSignals]:
        """Return the signals of those inferences that have any."""
        statement = "SELECT seq, picture, embedding, space FROM signal WHERE seq IN ({})"
        with self._readers.snapshot() as connection:
            return {
                int(seq): StoredSignals(*signals)
                for seq, *signals in execute_in(connection, statement, ids)
            }

    def stored_inputs(
        self, ids: Sequence[int], media_type: str, max_bytes: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the stored inputs of a media type, each with its inference, those up to a size."""
        statement = (
            "SELECT seq, input_hash FROM inference"
            " WHERE input_kept = 1 AND input_mime = ? AND input_bytes <= ? AND seq IN ({})"
        )
        with self._readers.snapshot() as connection:
            rows = execute_in(connection, statement, ids, (media_type, max_bytes))
        for seq, digest in rows:
            data = self._blobs.get(digest)
            if data is not None:
                yield int(seq), data

    def snapshot(self) -> AbstractContextManager[sa.Connection]:
        """Open a connection that reads one state of the database; see `ReaderPool.snapshot`."""
        return self._readers.snapshot()

    def get_with_input_url(self, inference_id: str, blobs_url: str) -> StoredInference:
        """Return one inference, as `get`, with a signed URL of its input if that is kept.

        `blobs_url` is the URL under which this server serves blobs, with a slash at its end.
        """
        inference = self.get(inference_id)
        image = inference.input
        if not (image.hash and image.kept):
            return inference
        mime = image.mime or DEFAULT_MEDIA_TYPE
        url = self.urls.sign(image.hash, mime, blobs_url, inference_id=inference.id)
        return msgspec.structs.replace(inference, input=msgspec.structs.replace(image, url=url))

    def signed_input(
        self, digest: str, expires: str, mime: str, signature: str, *, inference_id: str
    ) -> bytes:
        """Return the bytes that a signed URL names, as long as the inference that it names keeps them.

        Whether another inference keeps the same bytes makes no difference. Raises as `BlobUrls.verify`.
        """
        data = self.urls.verify(digest, expires, mime, signature, inference_id=inference_id)
        with suppress(NotFoundError):
            image = self.get(inference_id).input
            if image.kept and image.hash == KEY_PREFIX + digest:
                return data
        raise NotFoundError(f"blob not found: {digest} was removed")

    def kept_input(self, inference_id: str) -> tuple[str, str]:
        """Return the hash and the media type of the stored input of an inference."""
        image = self.get(inference_id).input
        if not (image.hash and image.kept):
            raise NotFoundError(f"input of {inference_id} is not available: not stored")
        return image.hash, image.mime or DEFAULT_MEDIA_TYPE

    def input_bytes(self, inference_id: str) -> tuple[bytes, str]:
        """Return the input image of an inference, and its media type."""
        key, mime = self.kept_input(inference_id)
        data = self._blobs.get(key)
        if data is None:
            raise NotFoundError(f"input of {inference_id} is not available: removed since")
        return data, mime

    def image(self, key: str) -> bytes | None:
        """Return an image by its hash; None if it is no hash, or no inference that may be seen keeps the image."""
        if re.fullmatch(KEY_PATTERN, key) is None:
            return None
        if not self.scope.is_everything:
            with self._readers.snapshot() as connection:
                rows = execute(connection, _MODELS_OF_IMAGE, (key,)).all()
                models = models_by_id(connection, [int(model_id) for (model_id,) in rows]).values()
            if not any(self.scope.admits(model.name, model.team) for model in models):
                return None
        return self._blobs.get(key)

    def thumbnail(self, key: str, width: int) -> bytes | None:
        """Return a kept thumbnail, as `Blobs`, of an image that the caller may see."""
        return self._blobs.thumbnail(key, width)

    def make_thumbnail(
        self, inference_id: str, width: int, make: Callable[[bytes], bytes]
    ) -> bytes:
        """Make a thumbnail of the input of an inference, and keep it for as long as the image is there."""
        data, _ = self.input_bytes(inference_id)
        thumbnail = make(data)
        self._blobs.put_thumbnail(blob_key(data), width, thumbnail)
        return thumbnail

    def latest_seq(self, until: int = LARGEST_ID) -> int:
        """Return the largest id, up to a limit, in the database or the journal; 0 if there is none."""
        journaled = journal.latest_seq(self._directory, until)
        if not self._readers.has_database():
            return journaled
        with self._readers.snapshot() as connection:
            stored = [
                execute(connection, statement, (until,)).scalar() or 0 for statement in _LATEST
            ]
        return max(journaled, *stored)

    def close(self) -> None:
        """Close all connections."""
        self._readers.close()

    def stored_names(self) -> set[str]:
        """Return the names of all models that ever had stored inferences."""
        with self._readers.snapshot() as connection:
            rows = execute(connection, "SELECT DISTINCT name, team FROM model").all()
        return {name for name, team in rows if self.scope.admits(name, team)}

    def _served_names(self) -> set[str]:
        names = self._served() if self._served is not None else ()
        return {name for name in names if self.scope.admits_model(name)}

    def planner(self, connection: sa.Connection, resolved: ResolvedFilter) -> Planner:
        """Plan a filter of what may be seen, within a snapshot."""
        resolved = follow_ids(connection, resolved)
        return Planner(connection, resolved, self.scope, narrow_rows=self._narrow_rows)

    def _row(self, seq: int) -> StoredInference | None:
        if seq > LARGEST_ID:
            return None
        try:
            with self._readers.snapshot() as connection:
                row = execute(connection, _SELECT, (seq,)).first()
                if row is None:
                    return None
                model = models_by_id(connection, [row.model_id])[row.model_id]
                if not self.scope.admits(model.name, model.team):
                    return None
                feedback_rows = execute(connection, _FEEDBACK, (seq,)).all()
        except NotReadyError:
            return None
        feedback = [
            StoredFeedback(str(id_), timestamp_text(time_ms(id_)), *columns)
            for id_, *columns in feedback_rows
        ]
        return msgspec.structs.replace(stored_inference(RecordRow(*row), model), feedback=feedback)

    def _first(self, seq: int) -> StoredInference | None:
        """Return the inference that is stored in place of an id, as another server answered its request, too."""
        try:
            with self._readers.snapshot() as connection:
                first_seq = first_ids(connection, [seq]).get(seq)
        except NotReadyError:
            return None
        return None if first_seq is None else self._row(first_seq)

    def _wait_if_asked(self, request: QueryRequest, now_us: int | None) -> None:
        """Wait for the journal if a request wants that, before its filter's models are looked up.

        A model that is served elsewhere is known by its inferences alone.
        """
        if request.consistency == "journal":
            request.parse_filter(now_us)  # an invalid one need not wait
            self.wait_for_journal()

    def _journaled(self, seq: int) -> StoredInference | None:
        offsets = self._offsets()
        for path in journal.segment_paths(self._directory):
            for record_seq, payload, _ in journal.read_frames(path, offsets.get(path.name, 0)):
                if record_seq == seq and not is_change(payload):
                    record = _record_decoder.decode(payload)
                    is_admitted = self.scope.admits(record.model.name, record.team or "")
                    return uncommitted_inference(record) if is_admitted else None
        return None

    def _offsets(self) -> dict[str, int]:
        try:
            with self._readers.snapshot() as connection:
                return journal_offsets(connection, journal.journal_id(self._directory))
        except NotReadyError:
            return {}

    def wait_for_journal(self) -> None:
        """Wait until the database has all that is in the journal at present; raise a `NotReadyError` if it takes too long."""
        wait_until_moved(self._directory, self._offsets, JOURNAL_TIMEOUT_S)


def _skip_matches(
    search: Search, request: QueryRequest, id_range: IdRange, budget: Budget
) -> IdRange:
    """Return the ids behind the matches that an offset skips.

    Raises:
        QueryTimeoutError: The budget ended before that.
    """
    rows, resume_id = search.first_matches(request.offset, id_range, budget)
    if len(rows) == request.offset:
        return range_after(rows[-1][0], request.order)
    if resume_id is not None:
        raise _late_offset(request.offset)
    return IdRange(1, 0)


def _late_offset(offset: int) -> QueryTimeoutError:
    """Return the error of a page that was not full in time: the next offset would leave out the rest of it."""
    return QueryTimeoutError(
        f"cannot read a whole page at offset {offset} in time: narrow the filter, or send the cursor that the page "
        "before answered"
    )


def _count_matches(search: Search, budget: Budget, *, is_capped: bool) -> Count:
    """Count up to the cap, and beyond it if required."""
    rows, resume_id = search.first_matches(_COUNT_CAP, IdRange(), budget)
    if resume_id is None and len(rows) < _COUNT_CAP:
        return Count(len(rows), is_exact=True)
    if is_capped:
        return Count(len(rows), is_exact=False)
    return Count(search.count(), is_exact=True)
