"""Ids that are made to lead to the inference of another id, in the writer's transaction; see `quadriga.store.query.repeated_ids`."""

from collections.abc import Mapping

import sqlalchemy as sa

from quadriga.store.changes.ground_truth import REFUSED, link_stored
from quadriga.store.database.database import execute, execute_in, stored_ids, upsert


def keep_repeated(connection: sa.Connection, first_seqs: Mapping[int, int]) -> None:
    """Let ids lead to stored inferences, and give these the ground truth that was stated by the ids before.

    Args:
        connection: Connection in a transaction after `lock_repeated`: no other one writes of these inferences meanwhile.
        first_seqs: Ids, each with that of its inference; an id that is stored itself is passed over.
    """
    if not first_seqs:
        return
    stored = stored_ids(connection, first_seqs.keys())
    rows = [pair for pair in first_seqs.items() if pair[0] not in stored]
    upsert(connection, "repeated_id", rows)
    by_value = {str(seq): first_seq for seq, first_seq in rows}
    query = "SELECT DISTINCT value FROM truth WHERE join_on IN (?, ?) AND value IN ({})"
    joins = ("id", REFUSED)
    stated = {value for (value,) in execute_in(connection, query, by_value, joins)}
    for value in sorted(stated):
        statement = "UPDATE truth SET value = ? WHERE join_on IN (?, ?) AND value = ?"
        execute(connection, statement, (str(by_value[value]), *joins, value))
    link_stored(connection, {by_value[value] for value in stated})
