"""Rows of what is erased: its images and joins are noted first, as nothing tells them once the rows are gone."""

from collections.abc import Collection, Iterable

import sqlalchemy as sa

from quadriga.store.changes.applying import delete_inferences
from quadriga.store.changes.ground_truth import (
    candidate_ids,
    join_values,
    read_subjects,
    stated_joins,
)
from quadriga.store.database import rollups
from quadriga.store.database.database import execute, execute_in
from quadriga.store.database.rows import NameIds
from quadriga.store.query.repeated_ids import repeated_ids

_CANDIDATES = 100
"""Inferences that are looked at for one statement; one that may be joined to more stays."""


class NotedTraces:
    """What inferences that are erased are joined to, before their rows go.

    Args:
        joins: Joins and values that the erasure names itself.
    """

    def __init__(self, joins: Iterable[tuple[str, str]] = ()) -> None:
        self.joins = set(joins)
        self.digests: set[str] = set()
        self.repeated: set[int] = set()
        """Ids that lead to the inferences: other servers wrote them to their journals, and sent them to ClickHouse."""
        self.inferences = 0

    def add(self, connection: sa.Connection, seqs: Collection[int]) -> None:
        """Add the images and joins of some inferences."""
        subjects = read_subjects(connection, seqs)
        joins = stated_joins(connection, subjects) - {"id"}
        pairs = {pair for subject in subjects for pair in join_values(subject, joins)}
        stated = "SELECT DISTINCT value FROM truth WHERE join_on = ? AND value IN ({})"
        for join in joins:
            values = {value for join_, value in pairs if join_ == join}
            rows = execute_in(connection, stated, values, (join,))
            self.joins.update((join, str(value)) for (value,) in rows)
        self.digests.update(str(subject.input_hash) for subject in subjects if subject.input_hash)
        self.repeated.update(repeated_ids(connection, seqs))
        self.inferences += len(subjects)


def remove_rows(connection: sa.Connection, names: NameIds, seqs: Collection[int]) -> None:
    """Remove inferences as deleting does, in an exclusive transaction; those that are gone have no effect."""
    rollups.subtract(connection, seqs)
    delete_inferences(connection, names, seqs)


def remove_statements(
    connection: sa.Connection, joins: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Remove statements of ground truth that no remaining inference is joined to; return their joins."""
    removed = []
    for join, value in joins:
        candidates = candidate_ids(connection, [(join, value)], _CANDIDATES)
        is_needed = len(candidates) > _CANDIDATES or any(
            (join, value) in join_values(subject, {join})
            for subject in read_subjects(connection, candidates)
        )
        if not is_needed:
            statement = "DELETE FROM truth WHERE join_on = ? AND value = ?"
            execute(connection, statement, (join, value))
            removed.append((join, value))
    return removed
