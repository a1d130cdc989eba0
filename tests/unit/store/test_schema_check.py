"""A database whose tables differ from those of its revision is refused, before it is written or read."""

from contextlib import closing
from pathlib import Path

import pytest

from quadriga.store.database import migrations
from quadriga.store.database.database import ReaderPool, execute, migrate, writer_engine
from quadriga.store.database.schema_check import describe_schema
from quadriga.store.records.errors import NotReadyError, StoreError

CHANGES = {
    "a dropped column": ("ALTER TABLE feedback DROP COLUMN comment", "missing feedback.comment"),
    "a column more": ("ALTER TABLE truth ADD COLUMN team TEXT", "unexpected truth.team"),
    "a renamed column": ("ALTER TABLE rollup RENAME COLUMN n TO count", "missing rollup.n "),
    "a dropped table": ("DROP TABLE signal", "missing signal.embedding"),
    "a dropped index": (
        "DROP INDEX ix_inference_input_hash",
        "missing inference. index (input_hash)",
    ),
}
HARMLESS = (
    "CREATE TABLE notes (id INTEGER)",
    "CREATE INDEX ix_of_the_administrator ON inference (input_width)",
)


def change(url: str, statement: str) -> None:
    with writer_engine(url) as engine, engine.begin() as connection:
        execute(connection, statement)


def test_the_recorded_schema_is_what_the_migrations_make(database_url: str):
    with writer_engine(database_url) as engine, engine.connect() as connection:
        name, present = connection.dialect.name, describe_schema(connection)
    path = Path(migrations.__file__).with_name(f"{name}.schema.txt")
    text = "\n".join(sorted(present)) + "\n"
    if path.read_text() != text:
        path.write_text(text)
        pytest.fail(f"{path.name} was not up to date: it is now; read it, and commit it")


@pytest.mark.parametrize("changed", CHANGES)
def test_other_tables_under_the_same_revision_are_refused(database_url: str, changed: str):
    statement, difference = CHANGES[changed]
    change(database_url, statement)
    with pytest.raises(StoreError, match="restore a backup") as raised:
        migrate(database_url)
    assert difference in str(raised.value)
    assert not isinstance(raised.value, NotReadyError)  # which would be tried again


def test_readers_refuse_other_tables_too(database_url: str):
    change(database_url, "ALTER TABLE truth RENAME COLUMN source TO author")
    expected = pytest.raises(NotReadyError, match=r"missing truth\.source")
    with closing(ReaderPool(database_url)) as readers, expected, readers.snapshot():
        pass


@pytest.mark.parametrize("statement", HARMLESS)
def test_tables_and_indexes_of_others_may_stand_beside(database_url: str, statement: str):
    change(database_url, statement)
    migrate(database_url)


def test_partitions_are_not_compared(postgres, tmp_path: Path):
    url = postgres.create()
    months = "PARTITION OF inference FOR VALUES FROM (1) TO (2)"
    change(url, f"CREATE TABLE inference_by_hand {months}")
    migrate(url)
    postgres.drop(url)
