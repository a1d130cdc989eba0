"""Ground truth that clients state and read: checked against the task, journaled, and awaited until it is applied."""

import re
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from quadriga.quoting import quoted
from quadriga.store.changes.ground_truth import (
    REFUSED,
    StoredStatement,
    current_revision,
    current_statement,
    follow_repeated,
    statements_about,
)
from quadriga.store.changes.journaling import ChangeJournal
from quadriga.store.changes.truth_requests import (
    ParsedStatements,
    Refusal,
    parse_ground_truth,
    parse_statements,
)
from quadriga.store.changes.truth_statements import (
    JoinedSubjects,
    LabelsOf,
    ScopedStatements,
    joined_subjects,
    scope_statements,
    stated_tasks,
    unknown_labels,
)
from quadriga.store.database.database import execute, execute_in
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.sql.catalog import Catalog
from quadriga.store.records.errors import ChangeError, NotFoundError, RevisionError
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import (
    ANY_REVISION,
    StoredInference,
    TruthStatement,
    live_name,
    timestamp_text,
)
from quadriga.store.records.truth_scope import check_fit

MAX_HISTORY = 100
"""Maximum number of statements in a history."""

MAX_REFUSED = 100
"""Maximum number of refused lines that a response lists."""

_IDS_PER_FILTER = 1000
_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_ID = re.compile("[0-9]{1,19}", re.ASCII)


class GroundTruth(msgspec.Struct, frozen=True):
    """Ground truth of one inference, or what it was."""

    task: str
    model: str
    """Name of the model that the statement is limited to; empty for every one."""
    owner: str
    annotations: Any
    """Annotations in the wire form; None in a history where the ground truth was removed."""
    source: str
    review: str
    """Review status: `needs_review`, `approved` or `rejected`; empty for none."""
    created_at: str
    revision: str


class StatedTruth(GroundTruth, frozen=True):
    """A statement in the history of an inference's ground truth."""

    join: str
    value: str


class GroundTruthHistory(msgspec.Struct, frozen=True):
    """Statements that are joined to one inference and apply to it, newest first; at most `MAX_HISTORY`."""

    history: list[StatedTruth]


class StatementResult(msgspec.Struct, frozen=True):
    """Result of statements of ground truth."""

    stated: int
    """Lines or items that were stated."""
    matched: int
    """Stored inferences whose ground truth is one of these now; the statements hold for later ones, too."""
    refused: list[Refusal] = []
    """Lines or items that were not stated; at most `MAX_REFUSED`."""
    refused_more: int = 0
    """Number of refused lines that are not listed."""
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Labels that the model does not have, which may be meant, or be a mistake; left out where there are none."""


class StatedInference(StoredInference, frozen=True):
    """One inference whose ground truth was stated."""

    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Labels that the model does not have; left out where there are none."""


class Condition(NamedTuple):
    """Revisions of which one has to be current, so that a change is made."""

    revisions: Collection[int] = ()
    is_any: bool = False
    """Whether any revision will do, if there is one."""
    is_none: bool = False
    """Whether there has to be no ground truth yet."""


class GroundTruthService:
    """States and reads ground truth; safe to use from several threads.

    Methods raise a `ChangeError` if the body cannot be understood or the annotations do not fit the task, a
    `NotFoundError` if there is no such inference, a `RevisionError` if a condition is not met, a `NotReadyError` if the
    writer is behind, and a `JournalError` if the statements could not be journaled.

    Args:
        inferences: Reads the store.
        journal: Journals the statements.
        labels_of: Knows the labels of models.
    """

    def __init__(
        self, inferences: InferenceReader, journal: ChangeJournal, labels_of: LabelsOf
    ) -> None:
        self._inferences = inferences
        self._journal = journal
        self._labels_of = labels_of

    def get(self, inference_id: str) -> GroundTruth:
        """Return the ground truth of an inference; raise a `NotFoundError` if there is none."""
        inference = self._inferences.get_committed(inference_id)
        with self._inferences.snapshot() as connection:
            statement = current_statement(connection, int(inference.id))
        if statement is None:
            raise NotFoundError(f"ground truth not found: none is stated for {inference_id}")
        return GroundTruth(**_fields(statement, inference.task))

    def history(self, inference_id: str) -> GroundTruthHistory:
        """Return the statements that apply to an inference, newest first."""
        inference = self._inferences.get_committed(inference_id)
        with self._inferences.snapshot() as connection:
            statements = statements_about(connection, int(inference.id), MAX_HISTORY)
        return GroundTruthHistory(
            [
                StatedTruth(
                    **_fields(statement, inference.task), join=statement.join, value=statement.value
                )
                for statement in statements
            ]
        )

    def put(
        self, inference_id: str, body: bytes, condition: Condition | None = None
    ) -> tuple[StatedInference, str]:
        """Replace the ground truth of an inference; return the inference and the new revision."""
        inference = self._inferences.get_committed(inference_id)
        stated = parse_ground_truth(body)
        check_fit(inference.task, stated.annotations)
        statement = TruthStatement(
            "id",
            inference.id,
            **stated._asdict(),
            task=inference.task,
            owner=self._inferences.scope.owner,
        )
        warnings = self._unknown_labels(
            [msgspec.structs.replace(statement, model=live_name(inference.model.name))], {}
        )
        changed, revision = self._state(statement, condition)
        return StatedInference(**msgspec.structs.asdict(changed), warnings=warnings), revision

    def delete(self, inference_id: str, condition: Condition | None = None) -> StoredInference:
        """Remove the ground truth of an inference, and return it."""
        inference = self._inferences.get_committed(inference_id)
        owner = self._inferences.scope.owner
        statement = TruthStatement("id", inference.id, None, task=inference.task, owner=owner)
        return self._state(statement, condition)[0]

    def add_statements(self, body: bytes) -> StatementResult:
        """Give ground truth to many inferences, stored already or later."""
        scope = self._inferences.scope
        with self._inferences.snapshot() as connection:
            stored_tasks = {model.task for model in Catalog(connection, scope).models}
        resolve_model = self._inferences.names.resolve
        parsed = parse_statements(body, stored_tasks, resolve_model, owner=scope.owner)
        scoped, warnings = self._scoped(parsed)
        if not scoped.statements:
            more = len(scoped.refused) - 1
            suffix = f"; {more} more cannot be stated either" if more > 0 else ""
            raise ChangeError(f"{scoped.refused[0].reason}{suffix}")
        change_ids = self._journal.apply(scoped.statements)
        with self._inferences.snapshot() as connection:
            count = "SELECT count(*) FROM ground_truth WHERE truth_id IN ({})"
            matched = sum(int(count_) for (count_,) in execute_in(connection, count, change_ids))
        listed = scoped.refused[:MAX_REFUSED]
        more = len(scoped.refused) - len(listed)
        return StatementResult(scoped.stated, matched, listed, refused_more=more, warnings=warnings)

    def _unknown_labels(
        self, statements: Sequence[TruthStatement], joined: JoinedSubjects
    ) -> list[str] | msgspec.UnsetType:
        team = self._inferences.scope.team
        return unknown_labels(statements, joined, self._labels_of, team) or msgspec.UNSET

    def _scoped(
        self, parsed: ParsedStatements
    ) -> tuple[ScopedStatements, list[str] | msgspec.UnsetType]:
        """Give each statement its task, as of the inferences that are acknowledged now; return warnings, too."""
        scope = self._inferences.scope
        if not parsed.lines:
            return scope_statements(parsed, {}, {}, None, scope=scope), msgspec.UNSET
        if parsed.where is not None:
            self._inferences.check_where(parsed.where)
        self._inferences.wait_for_journal()
        with self._inferences.snapshot() as connection:
            followed = follow_repeated(connection, [line.statement for line in parsed.lines])
            lines = [
                line._replace(statement=statement)
                for line, statement in zip(parsed.lines, followed, strict=True)
            ]
            joined = joined_subjects(connection, lines, scope)
            earlier = stated_tasks(connection, lines, scope)
        find = None if parsed.where is None else partial(self._matching, parsed.where)
        parsed = parsed._replace(lines=lines)
        scoped = scope_statements(parsed, joined, earlier, find, scope=scope)
        return scoped, self._unknown_labels(scoped.statements, joined)

    def _matching(self, where: Any, seqs: Collection[int]) -> set[int]:
        """Return those of some inferences that a filter matches."""
        ids = [str(seq) for seq in sorted(seqs)]
        matching: set[int] = set()
        for start in range(0, len(ids), _IDS_PER_FILTER):
            of_ids = {"id": {"in": ids[start : start + _IDS_PER_FILTER]}}
            tree = {"and": [where, of_ids]} if where else of_ids
            matching.update(seq for page in self._inferences.matching_ids(tree) for seq in page)
        return matching

    def _state(
        self, statement: TruthStatement, condition: Condition | None
    ) -> tuple[StoredInference, str]:
        seq = int(statement.value)
        with self._inferences.snapshot() as connection:
            current = current_revision(connection, seq)
        expected = None if condition is None else _expected_revision(current, condition)
        conditional = msgspec.structs.replace(statement, expected=expected)
        (id_,) = self._journal.apply([conditional], floor=current)
        with self._inferences.snapshot() as connection:
            query = "SELECT join_on FROM truth WHERE id = ?"
            join = execute(connection, query, (id_,)).scalar()
            if join == REFUSED:
                raise _outdated(current_revision(connection, seq))
        return self._inferences.get(statement.value), str(id_)


def _expected_revision(current: int, condition: Condition) -> int:
    """Return the revision that the writer shall expect; raise a `RevisionError` if none of them is current now."""
    if condition.is_none:
        is_met, expected = not current, 0
    elif condition.is_any:
        is_met, expected = bool(current), ANY_REVISION
    else:
        is_met, expected = current in condition.revisions, current
    if not is_met:
        raise _outdated(current)
    return expected


def parse_condition(if_match: str | None, if_none_match: str | None) -> Condition | None:
    """Parse the headers `If-Match` and `If-None-Match`; None without either.

    Raises:
        ChangeError: They are malformed, or both are sent.

    Source: RFC 9110, 13.1.1 and 13.1.2.
    """
    if if_none_match is not None:
        if if_match is not None or if_none_match.strip() != "*":
            raise ChangeError(
                f"expected If-None-Match to be * alone, got {quoted(if_none_match, 80)}"
            )
        return Condition(is_none=True)
    if if_match is None:
        return None
    if if_match.strip() == "*":
        return Condition(is_any=True)
    tags = [_TAG.fullmatch(tag.strip()) for tag in if_match.split(",")]
    if not all(tags):
        raise ChangeError(
            f"expected If-Match to be a revision in quotes, got {quoted(if_match, 80)}"
        )
    # A weak tag never matches, nor does one that no revision has.
    return Condition({int(tag[2]) for tag in tags if tag and not tag[1] and _ID.fullmatch(tag[2])})


def _outdated(current: int) -> RevisionError:
    actual = f"{current}" if current else "none"
    return RevisionError(
        f"the ground truth was changed meanwhile: its revision is {actual} now; read it, and change it again"
    )


def _fields(statement: StoredStatement, task: str) -> dict[str, Any]:
    """Return the fields of `GroundTruth`."""
    annotations = statement.annotations
    return {
        "task": statement.task or task,
        "model": statement.model,
        "owner": statement.owner,
        "annotations": None if annotations is None else msgspec.Raw(annotations.encode()),
        "source": statement.source,
        "review": statement.review,
        "created_at": timestamp_text(time_ms(statement.id)),
        "revision": str(statement.id),
    }
