import os
import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from quadriga.store.database.database import (
    REVISION,
    ReaderPool,
    execute,
    make_durable,
    migrate,
    open_writer,
    writer_engine,
)
from quadriga.store.database.partitions import PARTITIONED_TABLES
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError, StoreError


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


def test_migrations_make_strict_tables(url: str) -> None:
    migrate(url)
    migrate(url)
    with writer_engine(url) as engine, engine.connect() as connection:
        created = dict(
            connection.exec_driver_sql(
                "SELECT name, sql FROM sqlite_schema WHERE type = 'table'"
            ).all()
        )
    del created["alembic_version"]
    assert {*PARTITIONED_TABLES, "rollup", "truth", "journal_offset"} <= created.keys()
    assert all("STRICT" in made for made in created.values())
    assert {name for name, made in created.items() if "WITHOUT ROWID" in made} == {
        "meta_num",
        "meta_str",
        "pred",
        "rollup",
        "rollup_sum",
        "journal_offset",
    }


def test_a_failed_migration_leaves_no_half_made_tables(url: str) -> None:
    with writer_engine(url) as engine, engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE pred (x INTEGER)")  # in the way of the 7th table
    with pytest.raises(sa.exc.OperationalError, match="already exists"):
        migrate(url)
    with writer_engine(url) as engine, engine.connect() as connection:
        assert "model" not in sa.inspect(connection).get_table_names()


def test_migrations_work_from_an_installed_copy(tmp_path: Path) -> None:
    wheel, site = tmp_path / "wheel.zip", tmp_path / "site 100%"
    package = Path(__file__).parents[3] / "src" / "quadriga"
    with zipfile.ZipFile(wheel, "w") as archive:
        modules = (
            path for path in (package / "store").rglob("*") if path.suffix in (".py", ".txt")
        )
        for path in [package / "__init__.py", *modules]:
            archive.write(path, path.relative_to(package.parent))
    zipfile.ZipFile(wheel).extractall(site)
    script = f"from quadriga.store.database.database import migrate; migrate('sqlite:///{tmp_path}/store.db')"
    subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, check=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )  # fmt: skip
    readers = ReaderPool(f"sqlite:///{tmp_path}/store.db")
    with closing(readers), readers.snapshot() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM inference").scalar_one() == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://localhost/x", "expected a sqlite or postgresql URL, got one of 'mysql'"),
        ("store.db", "expected a sqlite or postgresql URL, got a text without ://"),
        ("sqlite://", "a sqlite URL needs a file"),
        ("sqlite:///:memory:", "a sqlite URL needs a file"),
    ],
)
def test_other_databases_are_refused(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        open_writer(url)
    with pytest.raises(StoreError, match=message):
        ReaderPool(url)


def test_readers_wait_for_the_first_migration(url: str) -> None:
    readers = ReaderPool(url)
    with pytest.raises(NotReadyError, match="database not found"), readers.snapshot():
        pass
    engine = open_writer(url)
    engine.connect().close()
    engine.dispose()
    with pytest.raises(NotReadyError, match=f"revision {REVISION}, got None"), readers.snapshot():
        pass
    migrate(url)
    with readers.snapshot() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM inference").scalar_one() == 0
    readers.close()


def test_readers_cannot_write(url: str) -> None:
    migrate(url)
    readers = ReaderPool(url)
    with pytest.raises(NotReadyError) as caught, readers.snapshot() as connection:
        connection.exec_driver_sql("DELETE FROM inference")
    assert str(caught.value) == "the database does not answer"
    assert "readonly" in caught.value.detail
    readers.close()


def test_readers_see_one_state(url: str) -> None:
    migrate(url)
    readers, engine = ReaderPool(url), open_writer(url)
    count = "SELECT count(*) FROM label"
    with readers.snapshot() as connection:
        assert connection.exec_driver_sql(count).scalar_one() == 0
        with engine.begin() as writing:
            writing.exec_driver_sql("INSERT INTO label (name) VALUES ('circle')")
        assert connection.exec_driver_sql(count).scalar_one() == 0
    with readers.snapshot() as connection:
        assert connection.exec_driver_sql(count).scalar_one() == 1
    engine.dispose()
    readers.close()


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"


def test_an_endless_query_is_stopped(url: str) -> None:
    migrate(url)
    readers = ReaderPool(url, timeout_s=0.2)
    too_long = pytest.raises(QueryTimeoutError, match=r"longer than 0.2 s.*narrow it")
    with too_long, readers.snapshot() as connection:
        connection.exec_driver_sql(ENDLESS)
    with readers.snapshot() as connection:  # the connection is of use again
        assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
    readers.close()


def test_more_readers_than_connections_wait_only_so_long(url: str) -> None:
    migrate(url)
    readers = ReaderPool(url, connections=1, timeout_s=0.1)
    too_long = pytest.raises(QueryTimeoutError, match="no database connection")
    with readers.snapshot(), too_long, readers.snapshot():
        pass
    readers.close()


def test_readers_of_a_damaged_database_say_so(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no database" * 1000)
    readers = ReaderPool(f"sqlite:///{tmp_path}/store.db")
    with pytest.raises(NotReadyError) as caught, readers.snapshot():
        pass
    assert "not a database" in caught.value.detail
    readers.close()


def test_another_program_takes_no_log_away_from_a_writer_that_made_it_durable(
    url: str, tmp_path: Path
) -> None:
    migrate(url)
    path = tmp_path / "store.db"
    count = "SELECT count(*) FROM label"
    look = f"import sqlite3; print(sqlite3.connect({str(path)!r}).execute({count!r}).fetchone()[0])"
    engine, readers = open_writer(url), ReaderPool(url)
    for number in range(1, 4):
        with engine.begin() as connection:
            execute(connection, "INSERT INTO label (name) VALUES (?)", (str(number),))
        with engine.connect() as connection:
            make_durable(connection)
        seen = subprocess.run(
            [sys.executable, "-c", look], check=True, capture_output=True, text=True, timeout=60
        )
        assert seen.stdout == f"{number}\n"
        assert path.with_name("store.db-wal").exists()
        with readers.snapshot() as connection:
            assert execute(connection, count).scalar_one() == number
    readers.close()
    engine.dispose()
