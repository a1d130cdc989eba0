"""Which versions of the code may run on a database, as its tables say.

A version knows the revisions up to its own. A database may be at a later one: its table `schema_compatibility` has a
row for each revision since 2027.09, with the oldest revision that code must know to run on it. A revision that only
adds to the tables leaves that as it was; one that takes something away raises it.
"""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from quadriga.store.records.errors import StoreError

_RETIRED = frozenset({"2026.11", "2026.12", *(f"2027.{number:02}" for number in range(1, 9))})
"""Revisions before that of release 0.2.0, which alone brings their databases up."""

_OLDEST = sa.text("SELECT oldest FROM schema_compatibility WHERE revision = :revision")
_REFUSED = (
    "this version cannot read the database: it is at revision {revision}, which a newer version must have made{needed}, as "
    "this one knows those up to {own}. Start the newer version again, or restore a backup from before it (quadriga restore)"
)


class Revisions(NamedTuple):
    """The revision of a database beside that of the code."""

    database: str | None
    """None without tables."""
    own: str
    """Last revision that the code knows."""
    is_newer: bool = False
    """Whether the code may run on the database though it does not know its revision."""


def read_revision(connection: sa.Connection) -> str | None:
    """Return the revision that a database is marked with; None without tables."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return marked_revision(connection)


def marked_revision(connection: sa.Connection) -> str | None:
    """Return the revision of a database that has tables."""
    revision: str | None = connection.exec_driver_sql(
        "SELECT version_num FROM alembic_version"
    ).scalar()
    return revision


def compare(connection: sa.Connection, own: str) -> Revisions:
    """Compare the revision of a database with the last one that the code knows, `own`.

    Raises:
        StoreError: The code does not know the revision, and may not run on it.
    """
    revision = read_revision(connection)
    if revision in (None, own, *_RETIRED) or revision in known_revisions():
        return Revisions(revision, own)
    oldest = None
    if sa.inspect(connection).has_table("schema_compatibility"):
        oldest = connection.execute(_OLDEST, {"revision": revision}).scalar()
    if oldest in known_revisions():
        return Revisions(revision, own, is_newer=True)
    needed = f" and which needs code of revision {oldest} or later" if oldest else ""
    raise StoreError(_REFUSED.format(revision=revision, needed=needed, own=own))


def check_not_too_old(revision: str | None) -> None:
    """Check that a database of a revision that the code knows can be brought to the last one.

    Raises:
        StoreError: A release before 0.2.0 made it, or a version between them.
    """
    if revision in _RETIRED:
        raise StoreError(
            f"this version cannot read the database: it is at revision {revision}, of a version before 0.2.0. Bring it up by "
            "`quadriga migrate` of 0.2.0 first"
        )


def may_run_meanwhile(revision: str, own: str) -> bool:
    """Tell whether code of a revision may go on while, and after, its database is brought to `own`."""
    order = known_revisions()
    return order.index(_declared_oldest(own)) <= order.index(revision)


def migrations_config() -> Any:
    """Return the configuration of alembic."""
    from alembic.config import Config  # noqa: PLC0415 - slow to load, rarely needed

    config = Config()
    folder = Path(__file__).with_name("migrations")
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


@cache
def known_revisions() -> tuple[str, ...]:
    """Return the revisions that the code knows, the first one first."""
    return tuple(script.revision for script in _scripts().walk_revisions())[::-1]


def _declared_oldest(revision: str) -> str:
    """Return what a revision declares as `oldest`."""
    oldest: str = _scripts().get_revision(revision).module.oldest
    return oldest


def _scripts() -> Any:
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - slow to load, rarely needed

    return ScriptDirectory.from_config(migrations_config())
