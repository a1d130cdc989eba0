"""The worker's side of changes: checked, journaled, and awaited until they are applied."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from litestar.params import FromPath, RawBody

from quadriga.store import metadata
from quadriga.store.changes import requests as change_requests
from quadriga.store.changes.applying import changed_metadata
from quadriga.store.changes.ground_truth import candidate_ids
from quadriga.store.database import execute, execute_in
from quadriga.store.errors import ChangeError, NotReadyError, QueryTimeoutError
from quadriga.store.ids import IdSource, time_ms
from quadriga.store.inferences import InferenceReader
from quadriga.store.journal import Journal
from quadriga.store.query.json_form import parse
from quadriga.store.query.request import QueryRequest
from quadriga.store.query.syntax import leaves
from quadriga.store.records import (
    Change,
    Deletion,
    JournaledChange,
    MetadataChange,
    StoredInference,
    TruthStatement,
    timestamp_text,
)
from quadriga.store.rows import storable_text

MAX_MATCHES = 20_000  # stored inferences that the statements of one request may be joined to
MAX_DELETED = 10_000  # inferences that one request deletes
MAX_HISTORY = 1000
SEARCH_S = 20.0  # how long a deletion looks for inferences
_PAGE = 1000
_MADE = msgspec.json.Decoder(MetadataChange)


class MadeChange(msgspec.Struct, frozen=True):
    """A change of metadata that was made."""

    id: str
    created_at: str
    set: dict[str, Any]
    remove: list[str]
    before: Any  # `msgspec.Raw` in fact: the metadata until then


class History(msgspec.Struct, frozen=True):
    """Changes of one inference's metadata, newest first; at most `MAX_HISTORY`."""

    history: list[MadeChange]


class Stated(msgspec.Struct, frozen=True):
    """What became of statements of ground truth."""

    stated: int
    matched: int
    """Stored inferences whose truth is one of these now; those that come later are joined too."""


class Deleted(msgspec.Struct, frozen=True):
    """Inferences that were deleted, or would be."""

    count: int
    ids: list[str]  # newest first
    more: bool  # whether there may be more that match: the same request deletes them


class Retention(msgspec.Struct, frozen=True):
    """How long a model's inferences and inputs are kept; null is for ever."""

    model: str
    inputs_days: float | None
    inferences_days: float | None


class Changes:
    """Changes what is stored, as `quadriga.store.changes.routes` asks; safe to use from several threads.

    Methods that change raise a `ChangeError` where the body says nothing that can be done, a `NotFoundError`
    where there is no such inference, a `NotReadyError` where the writer is behind, and a `JournalError`
    where the change could not be kept. Journal and ids are the worker's; `read_metadata` reads metadata in
    the forms that requests carry it in, from JSON and a name for errors.
    """

    def __init__(
        self,
        inferences: InferenceReader,
        journal: Journal,
        ids: IdSource,
        read_metadata: Callable[[Any, str], dict[str, Any]],
    ) -> None:
        self._inferences = inferences
        self._journal = journal
        self._ids = ids
        self._read_metadata = read_metadata

    def change_metadata(self, inference_id: FromPath[str], body: RawBody) -> StoredInference:
        """Add, replace or remove metadata of an inference."""
        found = self._inferences.get_committed(inference_id)
        change = change_requests.parse_metadata_change(int(inference_id), body, self._read_metadata)
        metadata.check(changed_metadata(metadata.decode(found.metadata), change))
        applied = self._apply([change])
        found = self._inferences.get(inference_id)
        if not self._counted("SELECT count(*) FROM metadata_change WHERE id IN ({})", applied):
            raise ChangeError(
                "expected the metadata to keep its rules, got other changes at the same time with "
                "which it does not"
            )
        return found

    def get_metadata_history(self, inference_id: FromPath[str]) -> History:
        """Answer how the metadata of an inference was changed, newest first."""
        found = self._inferences.get_committed(inference_id)
        statement = (
            "SELECT id, change, before FROM metadata_change WHERE seq = ? ORDER BY id DESC LIMIT ?"
        )
        with self._inferences.snapshot() as connection:
            rows = execute(connection, statement, (int(found.id), MAX_HISTORY)).all()
        made = []
        for number, given, before in rows:
            change, at = _MADE.decode(given), timestamp_text(time_ms(number))
            was = msgspec.Raw(before.encode())
            made.append(MadeChange(str(number), at, change.set, change.remove, was))
        return History(made)

    def put_ground_truth(self, inference_id: FromPath[str], body: RawBody) -> StoredInference:
        """State what is true of an inference."""
        target = self._inferences.get_committed(inference_id).id
        self._apply([change_requests.parse_ground_truth(target, body)])
        return self._inferences.get(inference_id)

    def delete_ground_truth(self, inference_id: FromPath[str]) -> StoredInference:
        """Take back what is true of an inference."""
        target = self._inferences.get_committed(inference_id).id
        self._apply([TruthStatement("id", target, None)])
        return self._inferences.get(inference_id)

    def state_ground_truth(self, body: RawBody) -> Stated:
        """State what is true of many inferences, stored already or to come."""
        statements = change_requests.parse_statements(body)
        joined = [(one.join, one.value) for one in statements]
        with self._inferences.snapshot() as connection:
            if len(candidate_ids(connection, joined, MAX_MATCHES)) > MAX_MATCHES:
                raise ChangeError(
                    f"expected statements that tell at most {MAX_MATCHES} inferences, got more"
                )
        applied = self._apply(statements)
        held = "SELECT count(*) FROM ground_truth WHERE truth_id IN ({})"
        return Stated(len(statements), self._counted(held, applied))

    def give_feedback(self, inference_id: FromPath[str], body: RawBody) -> StoredInference:
        """Add feedback to an inference."""
        seq = int(self._inferences.get_committed(inference_id).id)
        self._apply([change_requests.parse_feedback(seq, body)])
        return self._inferences.get(inference_id)

    def delete_inferences(self, body: RawBody) -> Deleted:
        """Delete inferences by a filter, newest first, or say which it would be."""
        wanted = "a JSON object with where, dry_run and all"
        asked = change_requests.decode_change(body, change_requests.DeleteBody, wanted)
        if not leaves(parse(asked.where, time.time_ns() // 1000)) and not asked.all:
            raise ChangeError('expected where to name inferences, or "all": true, got neither')
        ids, more = self._find(asked.where)
        if ids and not asked.dry_run:
            seqs = [int(one) for one in ids]
            steps = range(0, len(seqs), _PAGE)
            self._apply([Deletion(seqs[first : first + _PAGE]) for first in steps])
        return Deleted(len(ids), ids, more)

    def get_retention(self, name: FromPath[str]) -> Retention:
        """Answer how long a model's inferences and inputs are kept."""
        statement = "SELECT inputs_days, inferences_days FROM retention WHERE model = ?"
        with self._inferences.snapshot() as connection:
            row = execute(connection, statement, (storable_text(name),)).first()
        return Retention(name, *(row or (None, None)))

    def put_retention(self, name: FromPath[str], body: RawBody) -> Retention:
        """Say how long a model's inferences and inputs are kept, those of the past and of the future."""
        self._apply([change_requests.parse_retention_rule(name, body)])
        return self.get_retention(name)

    def _counted(self, statement: str, ids: Sequence[int]) -> int:
        with self._inferences.snapshot() as connection:
            return sum(int(count) for (count,) in execute_in(connection, statement, ids))

    def _find(self, where: Any) -> tuple[list[str], bool]:
        until = time.monotonic() + SEARCH_S
        self._inferences.wait_for_journal()
        ids: list[str] = []
        for page in self._inferences.pages(QueryRequest(where=where, limit=_PAGE)):
            ids += [one.id for one in page.inferences]
            if len(ids) >= MAX_DELETED or time.monotonic() >= until:
                break
        return ids[:MAX_DELETED], page.cursor is not None or len(ids) > MAX_DELETED

    def _apply(self, changes: Sequence[Change]) -> list[int]:
        """Journal changes, all or none, wait until the writer has applied them, and return their ids."""
        journaled = [JournaledChange(self._ids.next(), change) for change in changes]
        self._journal.append(journaled)
        try:
            self._inferences.wait_for_journal()
        except (NotReadyError, QueryTimeoutError) as error:
            text = f"the change is journaled and will be applied, but {error}"
            raise NotReadyError(text) from error
        return [one.seq for one in journaled]
