"""Changes of stored data that clients ask for: each is checked, journaled, and awaited until it is applied."""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from quadriga.store.changes import requests as change_requests
from quadriga.store.changes.applying import changed_metadata
from quadriga.store.changes.erasures import (
    ErasureReceipt,
    Erasures,
    demanded_texts,
    filter_fields,
)
from quadriga.store.changes.journaling import ChangeJournal
from quadriga.store.changes.truth_service import GroundTruthService, LabelsOf
from quadriga.store.database.database import execute
from quadriga.store.database.rows import storable_text
from quadriga.store.journal.journal import Journal
from quadriga.store.query.filters.forms import parse
from quadriga.store.query.filters.syntax import Filter, leaves
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records import metadata
from quadriga.store.records.errors import ChangeError
from quadriga.store.records.ids import IdSource, time_ms
from quadriga.store.records.records import (
    Deletion,
    MetadataChange,
    StoredInference,
    timestamp_text,
)
from quadriga.store.records.scope import Scope

MAX_DELETED = 10_000
"""Maximum number of inferences that one request deletes."""

MAX_HISTORY = 1000
"""Maximum number of changes in a history."""

DELETE_SEARCH_TIMEOUT_S = 20.0
"""Maximum time that a deletion searches for inferences."""

MAX_ERASED = 1_000_000
"""Maximum number of inferences that one request erases."""

ERASURE_WAIT_S = 10.0
"""Maximum time that a request waits for its erasure; it goes on afterwards."""

_POLL_S = 0.02
_PAGE_SIZE = 1000
_metadata_change_decoder = msgspec.json.Decoder(MetadataChange)


class MetadataHistoryEntry(msgspec.Struct, frozen=True):
    """A change of metadata that was made."""

    id: str
    created_at: str
    set: dict[str, Any]
    remove: list[str]
    before: Any  # `msgspec.Raw`: the JSON of the metadata before the change


class MetadataHistory(msgspec.Struct, frozen=True):
    """Changes of one inference's metadata, newest first; at most `MAX_HISTORY`."""

    history: list[MetadataHistoryEntry]


class DeletionResult(msgspec.Struct, frozen=True):
    """Inferences that were deleted, or would be."""

    count: int
    ids: list[str]  # newest first
    more: bool  # whether there may be more matches: the same request deletes them
    erasure: ErasureReceipt | msgspec.UnsetType = msgspec.UNSET
    """Receipt of an erasure; `ids` is empty then."""


class Retention(msgspec.Struct, frozen=True):
    """How long a model's inferences and inputs are kept; null is for ever."""

    model: str
    inputs_days: float | None
    inferences_days: float | None


class ChangeService:
    """Makes the changes that the bodies of requests ask for; safe to use from several threads.

    Methods that change raise a `ChangeError` if the body cannot be understood or the change breaks a rule,
    a `NotFoundError` if there is no such inference, a `NotReadyError` if the writer is behind, and a
    `JournalError` if the change could not be journaled.

    Args:
        inferences: Reads the store.
        journal: The worker's journal.
        ids: The worker's ids.
        read_metadata: Reads metadata in any form that requests have; takes JSON and a name for errors.
        erasures: The erasures of the data folder.
        labels_of: Returns the labels of a model of a team, of which statements of ground truth may have others.

    Attributes:
        ground_truth: Statements of ground truth.
        erasures: Receipts of erasures.
    """

    def __init__(
        self,
        inferences: InferenceReader,
        journal: Journal,
        ids: IdSource,
        read_metadata: Callable[[Any, str], dict[str, Any]],
        *,
        erasures: Erasures,
        labels_of: LabelsOf = lambda *_: (),
    ) -> None:
        self._inferences = inferences
        self._journal = ChangeJournal(inferences, journal, ids)
        self.ground_truth = GroundTruthService(inferences, self._journal, labels_of)
        self._labels_of = labels_of
        self._read_metadata = read_metadata
        self.erasures = erasures
        self._source = journal, ids

    def within(self, scope: Scope) -> "ChangeService":
        """Return a service that changes what a scope admits."""
        return ChangeService(
            self._inferences.within(scope),
            *self._source,
            self._read_metadata,
            erasures=self.erasures.within(scope),
            labels_of=self._labels_of,
        )

    def change_metadata(self, inference_id: str, body: bytes) -> StoredInference:
        """Add, replace or remove metadata of an inference, and return it."""
        inference = self._inferences.get_committed(inference_id)
        change = change_requests.parse_metadata_change(int(inference.id), body, self._read_metadata)
        metadata.check(change.set)
        metadata.check_rules(changed_metadata(metadata.decode(inference.metadata), change))
        (change_id,) = self._journal.apply([change])
        inference = self._inferences.get(inference.id)
        statement = "SELECT count(*) FROM metadata_change WHERE id = ?"
        with self._inferences.snapshot() as connection:
            is_applied = execute(connection, statement, (change_id,)).scalar()
        if not is_applied:
            raise ChangeError(
                "the metadata was not changed: together with other changes made at the same time, "
                "it would break the rules of metadata"
            )
        return inference

    def metadata_history(self, inference_id: str) -> MetadataHistory:
        """Return the changes of an inference's metadata, newest first."""
        inference = self._inferences.get_committed(inference_id)
        statement = (
            "SELECT id, change, before FROM metadata_change WHERE seq = ? ORDER BY id DESC LIMIT ?"
        )
        with self._inferences.snapshot() as connection:
            rows = execute(connection, statement, (int(inference.id), MAX_HISTORY)).all()
        entries = []
        for change_id, encoded, before in rows:
            change = _metadata_change_decoder.decode(encoded)
            entries.append(
                MetadataHistoryEntry(
                    id=str(change_id),
                    created_at=timestamp_text(time_ms(change_id)),
                    set=change.set,
                    remove=change.remove,
                    before=msgspec.Raw(before.encode()),
                )
            )
        return MetadataHistory(entries)

    def add_feedback(self, inference_id: str, body: bytes) -> StoredInference:
        """Add feedback to an inference, and return it."""
        inference = self._inferences.get_committed(inference_id)
        self._journal.apply([change_requests.parse_feedback(int(inference.id), body)])
        return self._inferences.get(inference.id)

    def delete_inferences(self, body: bytes) -> DeletionResult:
        """Delete or erase the inferences that match a filter, or with `dry_run` only find them."""
        expected = "a JSON object with where, dry_run, all and erase"
        request = change_requests.decode_change(body, change_requests.DeleteBody, expected)
        tree = parse(request.where, time.time_ns() // 1000)
        if not leaves(tree) and not request.all:
            raise ChangeError('a filter in where, or "all": true, is required')
        if request.erase:
            self.erasures.check_scope()
            ids, has_more = self._find(request.where, MAX_ERASED, descending=False)
            if request.dry_run:
                return DeletionResult(len(ids), [], has_more)
            return self._erase(tree, ids, has_more=has_more)
        ids, has_more = self._find(request.where, MAX_DELETED, descending=True)
        if ids and not request.dry_run:
            starts = range(0, len(ids), _PAGE_SIZE)
            self._journal.apply([Deletion(ids[start : start + _PAGE_SIZE]) for start in starts])
        return DeletionResult(len(ids), [str(seq) for seq in ids], has_more)

    def _find(self, where: Any, limit: int, *, descending: bool) -> tuple[list[int], bool]:
        """Return the ids of matches, newest or oldest first, up to a limit, and whether there may be more."""
        deadline = time.monotonic() + DELETE_SEARCH_TIMEOUT_S
        self._inferences.wait_for_journal()
        ids: list[int] = []
        stored = self._inferences.with_replays()  # what is to go has no copies that stay
        for batch in stored.matching_ids(where, descending=descending):
            ids += batch
            if len(ids) > limit or time.monotonic() >= deadline:
                return ids[:limit], True
        return ids, False

    def _erase(self, tree: Filter, ids: list[int], *, has_more: bool) -> DeletionResult:
        """Have the writer erase inferences, and wait a while for it.

        Without any the rest goes all the same: what was deleted, and not erased, before.
        """
        erasure_id = self.erasures.submit(ids, filter_fields(tree), demanded_texts(tree))
        deadline = time.monotonic() + ERASURE_WAIT_S
        while (receipt := self.erasures.read(erasure_id)).state == "running":
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
        return DeletionResult(len(ids), [], has_more, erasure=receipt)

    def retention(self, model: str) -> Retention:
        """Return the retention rule of a model, the team's own within its scope; a `NotFoundError` if it is not known."""
        model = self._inferences.names.resolve(model)
        statement = (
            "SELECT inputs_days, inferences_days FROM retention WHERE model = ? AND team = ?"
        )
        key = storable_text(model), self._inferences.scope.team
        with self._inferences.snapshot() as connection:
            row = execute(connection, statement, key).first()
        return Retention(model, *(row or (None, None)))

    def put_retention(self, model: str, body: bytes) -> Retention:
        """Replace the retention rule of a model, as `retention`; it holds for stored and for later inferences."""
        model = self._inferences.names.resolve(model)
        rule = change_requests.parse_retention_rule(model, body)
        self._journal.apply([msgspec.structs.replace(rule, team=self._inferences.scope.team)])
        return self.retention(model)
