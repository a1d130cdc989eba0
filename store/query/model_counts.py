"""What is stored of each model: counted from the rollups, which retention does not shrink."""

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
    counts: dict[tuple[str, str, str, str], _Counts] = {}
    for name, version, sha256, task, team, *counted in execute(connection, _COUNTS):
        if scope.admits(name, team):
            *numbers, newest = counted
            n, errors, first, last = map(int, numbers)
            row = _Counts(n, errors, first, last=_last_ms(last, newest))
            key = name, version, sha256, task
            counts[key] = counts[key].plus(row) if key in counts else row
    return [
        StoredVersion(
            name,
            version,
            sha256,
            task=task,
            inferences=count.inferences,
            errors=count.errors,
            first_at=timestamp_text(count.first * MINUTE_MS),
            last_at=timestamp_text(count.last),
        )
        for (name, version, sha256, task), count in counts.items()
    ]


class _Counts(NamedTuple):
    """Counts of one model file, of one team or of several."""

    inferences: int
    errors: int
    first: int
    """Minute since 1970 of the first inference."""
    last: int
    """Time of the last one, in milliseconds since 1970."""

    def plus(self, other: "_Counts") -> "_Counts":
        return _Counts(
            self.inferences + other.inferences,
            self.errors + other.errors,
            min(self.first, other.first),
            last=max(self.last, other.last),
        )


def _last_ms(minute: int, newest: int | None) -> int:
    """Return the time of the newest inference that is stored if it is of the last minute, else that minute."""
    newest_ms = 0 if newest is None else time_ms(int(newest))
    return max(minute * MINUTE_MS, newest_ms)
