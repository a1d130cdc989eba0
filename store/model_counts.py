"""What is stored of each model: counted from the rollups, which retention does not shrink."""

from typing import NamedTuple

import sqlalchemy as sa

from quadriga.store.database import execute
from quadriga.store.records import timestamp_text
from quadriga.store.rollups import MINUTE_MS

_COUNTS = (
    "SELECT m.name, m.version, m.sha256, m.task, r.n, r.errors, r.first, r.last FROM model AS m JOIN"
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


def stored_versions(connection: sa.Connection) -> list[StoredVersion]:
    """Return the versions of all models that have stored inferences, or had some, the oldest first."""
    return [
        StoredVersion(
            name,
            version,
            sha256,
            task=task,
            inferences=int(count),
            errors=int(errors),
            first_at=timestamp_text(first * MINUTE_MS),
            last_at=timestamp_text(last * MINUTE_MS),
        )
        for name, version, sha256, task, count, errors, first, last in execute(connection, _COUNTS)
    ]
