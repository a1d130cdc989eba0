"""The traffic rules of models in the database, so that all workers and servers on it share them."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import sqlalchemy as sa

from quadriga.store.database.database import clock_ms, execute, fetch_all, upsert
from quadriga.store.database.schema import COLUMNS
from quadriga.store.records.errors import NotReadyError

_SELECT = f"SELECT {', '.join(COLUMNS['traffic'])} FROM traffic"


class StoredRule(msgspec.Struct, frozen=True):
    """The traffic rule of a model."""

    model: str
    rule: str
    """The rule as JSON; a newer version of the engine may have written it."""
    changed_ms: int
    changed_by: str
    """Name of the key that set it."""


def read_rules(connection: sa.Connection) -> list[StoredRule]:
    """Return all rules, by model."""
    return [StoredRule(*row) for row in fetch_all(connection, f"{_SELECT} ORDER BY model")]


def write_rule(engine: sa.Engine, model: str, rule: str, changed_by: str) -> StoredRule:
    """Set the rule of a model, and return it; a rule that is set already stays as it is, with who set it.

    Args:
        engine: The database, open for writing.
        model: Name of the model.
        rule: The rule as JSON.
        changed_by: Name of the key that sets it.

    Raises:
        NotReadyError: The database takes no writes now.
    """
    with _transaction(engine) as connection:
        rows = execute(connection, f"{_SELECT} WHERE model = ?", (model,))
        present = next((StoredRule(*row) for row in rows), None)
        if present is not None and present.rule == rule:
            return present
        stored = StoredRule(model, rule, clock_ms(connection), changed_by)
        upsert(connection, "traffic", [(stored.model, stored.rule, stored.changed_ms, changed_by)])
        return stored


def remove_rule(engine: sa.Engine, model: str) -> None:
    """Remove the rule of a model, if it has one; raises as `write_rule`."""
    with _transaction(engine) as connection:
        execute(connection, "DELETE FROM traffic WHERE model = ?", (model,))


@contextmanager
def _transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    try:
        with engine.begin() as connection:
            yield connection
    except sa.exc.DBAPIError as error:
        raise NotReadyError(
            "the traffic of models cannot be changed now, as the database takes no writes: try again",
            detail=str(error),
        ) from error
