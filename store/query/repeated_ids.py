"""Ids of the table `repeated_id`, which lead to the inference of another id.

Servers that share a database may both answer a request that is sent again under its idempotency key, each with an id of
its own. One inference is stored; the other id leads to it for as long as it is there.
"""

from collections.abc import Collection, Mapping
from typing import TypeGuard

import sqlalchemy as sa

from quadriga.store.database.database import execute_in
from quadriga.store.query.filters.syntax import And, Compare, Filter, Not, Or, leaves
from quadriga.store.query.sql.sql import compared_values
from quadriga.store.records.ids import LARGEST_ID

_IS_NOT_STORED = "NOT EXISTS (SELECT 1 FROM inference AS i WHERE i.seq = r.seq)"


def first_ids(connection: sa.Connection, seqs: Collection[int]) -> dict[int, int]:
    """Return the ids that are stored in place of those ids that lead to one; an id that is stored leads nowhere."""
    statement = (
        f"SELECT seq, first_seq FROM repeated_id AS r WHERE seq IN ({{}}) AND {_IS_NOT_STORED}"
    )
    rows = execute_in(connection, statement, [seq for seq in seqs if seq <= LARGEST_ID])
    return {int(seq): int(first_seq) for seq, first_seq in rows}


def repeated_ids(connection: sa.Connection, first_seqs: Collection[int]) -> list[int]:
    """Return the ids that lead to some inferences, rising."""
    statement = f"SELECT seq FROM repeated_id AS r WHERE first_seq IN ({{}}) AND {_IS_NOT_STORED}"
    return sorted(int(seq) for (seq,) in execute_in(connection, statement, first_seqs))


def follow_ids(connection: sa.Connection, tree: Filter) -> Filter:
    """Return a filter in which ids that lead to an inference are that of the inference; only `eq` and `in` name ids."""
    named = [
        int(value) for leaf in leaves(tree) if _names_ids(leaf) for value in compared_values(leaf)
    ]
    first = first_ids(connection, named) if named else {}
    return _with_ids(tree, first) if first else tree


def _names_ids(leaf: Filter) -> TypeGuard[Compare]:
    return isinstance(leaf, Compare) and leaf.field == "id" and leaf.operator in {"eq", "in"}


def _with_ids(tree: Filter, first: Mapping[int, int]) -> Filter:
    if isinstance(tree, Not):
        return Not(_with_ids(tree.operand, first))
    if isinstance(tree, And | Or):
        return type(tree)(tuple(_with_ids(operand, first) for operand in tree.operands))
    if not _names_ids(tree):
        return tree
    values = tuple(first.get(int(value), value) for value in compared_values(tree))
    return Compare("id", tree.operator, values if tree.operator == "in" else values[0])
