"""What is stored of each model: counted from the rollups, which retention does not shrink."""

from collections import defaultdict
from typing import NamedTuple

import sqlalchemy as sa

from quadriga.store.database.database import execute
from quadriga.store.database.rollups import ALL_TIME, MINUTE_MS
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scope

_MINUTE = "(SELECT {}(minute) FROM rollup WHERE model_id = m.id AND n > 0)"
_COUNTS = (
    f"SELECT m.name, m.version, m.sha256, m.task, m.team, r.n, r.errors, {_MINUTE.format('min')}, {_MINUTE.format('max')},"
    " (SELECT max(seq) FROM inference WHERE model_id = m.id) FROM model AS m JOIN rollup_sum AS r ON r.model_id = m.id"
    f" AND r.period = {ALL_TIME} AND r.minute = 0 WHERE r.n > 0 ORDER BY m.id"
)


class StoredVersion(NamedTuple):
    """The inferences of one model file."""

    name: str
    version: str
    sha256: str
    task: str
    inferences: int
    """Number of inferences stored, those that retention removed since included."""
    errors: int
    """Number of them that the model failed to answer."""
    first_at: str
    """Minute of the first inference, RFC 3339, UTC."""
    last_at: str
    """Time of the last one, to the millisecond; its minute if it was deleted, or removed by retention."""


def stored_versions(connection: sa.Connection, scope: Scope) -> list[StoredVersion]:
    """Return the versions of the models that have stored inferences within a scope, or had some, the oldest first."""
    counts: dict[tuple[str, str, str, str], list[tuple[int, ...]]] = defaultdict(list)
    for name, version, sha256, task, team, *numbers, newest in execute(connection, _COUNTS):
        if scope.admits(name, team):
            n, errors, first, last = map(int, numbers)
            newest_ms = 0 if newest is None else time_ms(int(newest))
            last_ms = max(last * MINUTE_MS, newest_ms)  # the time if it is stored, else its minute
            counts[name, version, sha256, task].append((n, errors, first * MINUTE_MS, last_ms))
    return [
        StoredVersion(
            name,
            version,
            sha256,
            task=task,
            inferences=sum(n for n, *_ in of_teams),
            errors=sum(errors for _, errors, *_ in of_teams),
            first_at=timestamp_text(min(first_ms for *_, first_ms, _ in of_teams)),
            last_at=timestamp_text(max(last_ms for *_, last_ms in of_teams)),
        )
        for (name, version, sha256, task), of_teams in counts.items()
    ]
