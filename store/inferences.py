"""The reading side: pages of inferences, single ones, and their inputs."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from quadriga.store import journal
from quadriga.store.blobs.interface import Blobs
from quadriga.store.blobs.urls import PRESIGN_S, BlobUrls
from quadriga.store.database import ReaderPool, execute, execute_in, journal_offsets
from quadriga.store.errors import NotFoundError, NotReadyError, QueryError
from quadriga.store.ids import LARGEST_ID, time_ms
from quadriga.store.query.plan import NARROW_ROWS, IdRange, Planner
from quadriga.store.query.request import QueryRequest, cursor_range, encode_cursor, query_digest
from quadriga.store.query.search import Budget, Search
from quadriga.store.records import (
    InputReference,
    JournaledRecord,
    ModelReference,
    StoredFeedback,
    StoredInference,
    StoredSignals,
    is_change,
    timestamp_text,
)
from quadriga.store.rows import RECORD_COLUMNS, models_by_id

COUNT_CAP = 10_001
"""A capped count that reaches it means: more than 10,000."""

JOURNAL_TIMEOUT_S = 5.0
_LATEST = (
    "SELECT max(seq) FROM inference",
    "SELECT max(id) FROM metadata_change",
    "SELECT max(id) FROM truth",
    "SELECT max(id) FROM feedback",
)
"""Where ids have gone."""

IDS_PER_BATCH = 10_000
DEFAULT_MEDIA_TYPE = "application/octet-stream"
_JOINS = (  # outer joins never drive
    " inference AS i LEFT JOIN ground_truth AS g ON g.seq = i.seq"
    " LEFT JOIN truth AS t ON t.id = g.truth_id"
)
_COLUMNS = f"{RECORD_COLUMNS}, t.annotations"
_SELECT = f"SELECT {_COLUMNS} FROM {_JOINS} WHERE i.seq = ?"
_FEEDBACK = "SELECT id, kind, value, comment, source FROM feedback WHERE seq = ? ORDER BY id"
_SELECT_ALL = f"SELECT {_COLUMNS} FROM ({{}}) AS m CROSS JOIN {_JOINS} WHERE i.seq = m.seq"


class Page(msgspec.Struct, frozen=True):
    """Some of the matches, in order."""

    inferences: list[StoredInference]
    cursor: str | None
    """Of the next page; `None` where this is the last."""
    count: int | None
    partial: bool = False
    """Whether the time for one page was up before it was full: `cursor` goes on from there."""
    count_is_exact: bool | None = None
    """`False` where there may be more than `count`; `None` where nothing was counted."""


class Count(msgspec.Struct, frozen=True):
    """How many match."""

    count: int
    is_exact: bool
    """`False` where there may be more."""


_record_decoder = msgspec.json.Decoder(JournaledRecord)


class InferenceReader:
    """Finds stored inferences; safe to use from several threads.

    What is asked by an id raises a `QueryError` where that is none, and a `NotFoundError` where there is no
    such inference, or no input of it; everything raises a `NotReadyError` or a `QueryTimeoutError` where the database does
    not answer.

    Args:
        url: The database.
        journal_directory: The workers' journal, for what the database does not have yet.
        blobs: The inputs that were kept.
        narrow: See `quadriga.store.query.plan.NARROW_ROWS`.
        timeout_s: What a query may take.
        budget: What a page may take before it is answered as it is.
        presign_s: How long a signed URL of an input is good.
    """

    def __init__(
        self,
        url: str,
        journal_directory: Path,
        blobs: Blobs,
        *,
        narrow: int = NARROW_ROWS,
        timeout_s: float = 5.0,
        budget: Budget = Budget(),  # noqa: B008 - it is immutable
        presign_s: float = PRESIGN_S,
    ) -> None:
        self._readers = ReaderPool(url, timeout_s=timeout_s)
        self._directory = journal_directory
        self._blobs = blobs
        self.urls = BlobUrls(blobs, journal_directory.parent / "url.key", presign_s)
        self._narrow = narrow
        self._budget = budget

    def query(self, request: QueryRequest, now_us: int | None = None) -> Page:
        """Return a page of matches; `now_us` as of `QueryRequest.tree`.

        Raises:
            QueryError: The filter or the cursor means nothing.
            NotReadyError: There is no database yet, or the journal was not moved in time.
            QueryTimeoutError: It took too long.
        """
        tree = request.parse_filter(now_us)
        query = query_digest(request)
        after = cursor_range(request, query)
        if request.consistency == "journal":
            self.wait_for_journal()
        with self._readers.snapshot() as connection:
            planner = Planner(connection, tree, self._narrow)
            search = partial(Search, connection, descending=request.order == "-ts")
            limit = request.limit + 1  # one more tells whether there is another page
            guess, resume = planner.early_plan(), None
            rows = search(guess).early_matches(limit, after, _SELECT_ALL) if guess else []
            if not rows:
                rows, resume = search(planner.plan).first_matches(
                    limit, after, self._budget, _SELECT_ALL
                )
            models, count = models_by_id(connection, rows), None
            if request.count not in (None, "none"):
                is_capped = request.count == "capped"
                count = _count(search(planner.plan), self._budget, is_capped=is_capped)
        if len(rows) > request.limit:
            resume = rows[request.limit - 1][0]
        return Page(
            [_stored(row, *models[row[3]]) for row in rows[: request.limit]],
            None if resume is None else encode_cursor(resume, query),
            count.count if count else None,
            len(rows) < request.limit and resume is not None,
            count.is_exact if count else None,
        )

    def pages(self, request: QueryRequest, now_us: int | None = None) -> Iterator[Page]:
        """Yield a page and all that follow it, as `query`; `now` is the same for all of them."""
        now_us = time.time_ns() // 1000 if now_us is None else now_us
        while True:
            page = self.query(request, now_us)
            yield page
            if page.cursor is None:
                return
            request = msgspec.structs.replace(request, cursor=page.cursor)

    def matching_ids(self, where: Any, now_us: int | None = None) -> Iterator[list[int]]:
        """Yield the ids of all matches of a filter, oldest first, some at a time; errors as `query`."""
        tree, after = QueryRequest(where=where).parse_filter(now_us), IdRange()
        while True:
            with self._readers.snapshot() as connection:
                plan = Planner(connection, tree, self._narrow).plan
                search = Search(connection, plan, descending=False)
                rows, resume = search.first_matches(IDS_PER_BATCH, after, self._budget)
            ids = [int(row[0]) for row in rows]
            yield ids
            if len(ids) == IDS_PER_BATCH:
                resume = ids[-1]
            if resume is None:
                return
            after = IdRange(low=resume + 1)

    def count(self, request: QueryRequest) -> Count:
        """Count all matches of a filter; errors as `query`."""
        tree = request.parse_filter()
        with self._readers.snapshot() as connection:
            plan = Planner(connection, tree, self._narrow).plan
            search = Search(connection, plan, descending=True)
            return _count(search, self._budget, is_capped=False)

    def get(self, inference_id: str) -> StoredInference:
        """Return one inference, also when it is only journaled yet."""
        if not (inference_id.isascii() and inference_id.isdigit() and len(inference_id) < 20):
            raise QueryError(f"expected an id as a string of digits, got {inference_id[:80]!r}")
        seq = int(inference_id)
        # Between the first look and the journal's, the writer may move it.
        found = self._row(seq) or self._journaled(seq) or self._row(seq)
        if found is None:
            raise NotFoundError(f"expected {inference_id} to be a stored inference, got none")
        return found

    def get_committed(self, inference_id: str) -> StoredInference:
        """Return one inference once the database has it, so that it can be changed."""
        found = self.get(inference_id)
        if self._row(int(inference_id)) is None:
            self.wait_for_journal()
            found = self.get(inference_id)
        return found

    def signals(self, ids: Sequence[int]) -> dict[int, StoredSignals]:
        """Return the signals of those inferences that have some."""
        statement = "SELECT seq, picture, embedding, space FROM signal WHERE seq IN ({})"
        with self._readers.snapshot() as connection:
            return {
                int(seq): StoredSignals(*of) for seq, *of in execute_in(connection, statement, ids)
            }

    def snapshot(self) -> AbstractContextManager[sa.Connection]:
        """Give a connection that reads one state of the database; see `Readers.snapshot`."""
        return self._readers.snapshot()

    def get_with_input_url(self, inference_id: str, blobs_url: str) -> StoredInference:
        """Return one inference, as `get`, with a signed URL of its input if that is kept.

        `blobs_url` is the URL under which this server serves blobs, with a slash at its end.
        """
        found = self.get(inference_id)
        image = found.input
        if not (image.hash and image.kept):
            return found
        url = self.urls.sign(image.hash, image.mime or DEFAULT_MEDIA_TYPE, blobs_url)
        return msgspec.structs.replace(found, input=msgspec.structs.replace(image, url=url))

    def input_bytes(self, inference_id: str) -> tuple[bytes, str]:
        """Return the bytes that an inference was asked about, and their media type."""
        image = self.get(inference_id).input
        data = self._blobs.get(image.hash) if image.hash and image.kept else None
        if data is None:
            was = "removed since" if image.kept else "not kept"
            raise NotFoundError(f"expected the input of {inference_id} to be there, got one {was}")
        return data, image.mime or DEFAULT_MEDIA_TYPE

    def latest_seq(self) -> int:
        """Return the largest id that is kept, 0 where there is none."""
        journaled = journal.latest_seq(self._directory)
        if not self._readers.has_database():
            return journaled
        with self._readers.snapshot() as connection:
            stored = [execute(connection, statement).scalar() or 0 for statement in _LATEST]
        return max(journaled, *stored)

    def close(self) -> None:
        """Close all connections."""
        self._readers.close()

    def _row(self, seq: int) -> StoredInference | None:
        if seq > LARGEST_ID:
            return None
        try:
            with self._readers.snapshot() as connection:
                row = execute(connection, _SELECT, (seq,)).first()
                if row is None:
                    return None
                model, task = models_by_id(connection, [row])[row[3]]
                given = execute(connection, _FEEDBACK, (seq,)).all()
        except NotReadyError:
            return None
        feedback = [
            StoredFeedback(str(number), timestamp_text(time_ms(number)), *rest)
            for number, *rest in given
        ]
        return msgspec.structs.replace(_stored(row, model, task), feedback=feedback)

    def _journaled(self, seq: int) -> StoredInference | None:
        offsets = self._offsets()
        for path in journal.segment_paths(self._directory):
            for found, payload, _ in journal.read_frames(path, offsets.get(path.name, 0)):
                if found == seq and not is_change(payload):
                    return _answered(_record_decoder.decode(payload))
        return None

    def _offsets(self) -> dict[str, int]:
        try:
            with self._readers.snapshot() as connection:
                return journal_offsets(connection, journal.journal_id(self._directory))
        except NotReadyError:
            return {}

    def wait_for_journal(self) -> None:
        """Wait until the database has all of the journal of now; raise a `NotReadyError` if not."""
        waiting = journal.segment_sizes(self._directory)
        deadline = time.monotonic() + JOURNAL_TIMEOUT_S
        while True:
            offsets = self._offsets()
            waiting = {
                name: size
                for name, size in waiting.items()
                if offsets.get(name, 0) < size and (self._directory / name).exists()
            }
            if not waiting:
                return
            if time.monotonic() > deadline:
                lag = sum(size - offsets.get(name, 0) for name, size in waiting.items())
                raise NotReadyError(
                    f"expected the journal to be moved within {JOURNAL_TIMEOUT_S:g} s, got {lag} bytes behind"
                )
            time.sleep(0.01)


def _count(search: Search, budget: Budget, *, is_capped: bool) -> Count:
    """Count up to the cap, and if need be the rest."""
    rows, resume = search.first_matches(COUNT_CAP, IdRange(), budget)
    if resume is None and len(rows) < COUNT_CAP:
        return Count(len(rows), is_exact=True)
    if is_capped:
        return Count(len(rows), is_exact=False)
    return Count(search.count(), is_exact=True)


def _stored(row: Any, model: ModelReference, task: str) -> StoredInference:
    """Answer a row of `_COLUMNS`."""
    seq, request_id, image_no, _, action, status, latency_us = row[:7]
    input_name, digest, width, height, mime, size, kept = row[7:14]
    predictions, given, standard, truth = row[14:]
    return StoredInference(
        str(seq), request_id, image_no, model, task, action,
        timestamp_text(time_ms(seq)), latency_us / 1000,
        InputReference(input_name, digest, width, height, mime, bool(kept), size),
        msgspec.Raw(predictions), msgspec.Raw(given), status,
        msgspec.Raw(standard), None if truth is None else msgspec.Raw(truth),
    )  # fmt: skip


def _answered(record: JournaledRecord) -> StoredInference:
    """Answer a record of the journal, as the database will."""
    return StoredInference(
        str(record.seq), record.request_id, record.image_no, record.model, record.task,
        record.action, timestamp_text(time_ms(record.seq)),
        round(record.latency_ms * 1000) / 1000, record.input, record.predictions, record.metadata,
        record.status, record.standard, feedback=[],
    )  # fmt: skip
