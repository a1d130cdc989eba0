"""Ids of the table `repeated_id`, which lead to the inference of another id.

Servers that share a database may both answer a request that is sent again under its idempotency key, each with an id of
its own. One inference is stored; the other id leads to it for as long as it is there.
"""

from collections.abc import Collection

import sqlalchemy as sa

from quadriga.store.database import execute_in
from quadriga.store.ids import LARGEST_ID

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
