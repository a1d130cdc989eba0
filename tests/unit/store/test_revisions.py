"""A revision that was released is never edited: its SQL is the one recorded in `tests/data/revisions`."""

import io
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory

from quadriga.store.database import migrations

RECORDED = Path(__file__).parents[2] / "data" / "revisions"
DATABASES = ("sqlite", "postgresql")


def revisions() -> list[Script]:
    """Return all revisions, the first one first."""
    config = Config()
    folder = str(Path(migrations.__file__).parent)
    config.set_main_option("script_location", folder.replace("%", "%%"))
    return [*ScriptDirectory.from_config(config).walk_revisions()][::-1]


def sql_of(revision: Script, database: str) -> str:
    """Return what a revision would execute."""
    buffer = io.StringIO()
    context = MigrationContext.configure(
        dialect_name=database, opts={"as_sql": True, "output_buffer": buffer}
    )
    with Operations.context(context):
        revision.module.upgrade()
    return buffer.getvalue().strip() + "\n"


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("revision", revisions(), ids=lambda revision: revision.revision)
def test_a_released_revision_stays_as_it_was(revision: Script, database: str):
    path = RECORDED / f"{revision.revision}.{database}.sql"
    if not path.exists():  # a new one
        path.write_text(sql_of(revision, database))
        pytest.fail(f"{path.name} was not recorded: it is now; read it, and commit it")
    assert sql_of(revision, database) == path.read_text()


def test_no_released_revision_is_removed():
    there = {f"{revision.revision}.{name}.sql" for revision in revisions() for name in DATABASES}
    assert {path.name for path in RECORDED.iterdir()} <= there
