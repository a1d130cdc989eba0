"""What is stored of each model: counted from the rollups, which retention does not shrink."""

from typing import NamedTuple

import sqlalchemy as sa

from quadriga.store.database import execute
from quadriga.store.records import timestamp_text
from quadriga.store.rollups import MINUTE_MS
from quadriga.store.scope import Scope

_COUNTS = (
    "SELECT m.name, m.version, m.sha256, m.task, m.team, r.n, r.errors, r.first, r.last FROM model AS m JOIN"
    " (SELECT model_id, sum(n) AS n, sum(errors) AS errors, min(minute) AS first, max(minute) AS last"
    " FROM rollup WHERE n > 0 GROUP BY model_id) AS r ON r.model_id = m.id ORDER BY m.id"
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


def stored_versions(connection: sa.Connection, scope: Scope) -> list[StoredVersion]:
    """Return the versions of the models that have stored inferences within a scope, or had some, the oldest first."""
    counts: dict[tuple[str, str, str, str], _Counts] = {}
    for name, version, sha256, task, team, *counted in execute(connection, _COUNTS):
        if scope.admits(name, team):
            key, row = (name, version, sha256, task), _Counts(*map(int, counted))
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
            last_at=timestamp_text(count.last * MINUTE_MS),
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

    def plus(self, other: "_Counts") -> "_Counts":
        return _Counts(
            self.inferences + other.inferences,
            self.errors + other.errors,
            min(self.first, other.first),
            last=max(self.last, other.last),
        )
