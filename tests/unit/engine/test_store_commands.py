import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quadriga.engine.cli import main
from quadriga.store.database.database import REVISION
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import run_statements, select_rows, store_entries


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_tables_are_made_and_brought_up_to_date_once(data: Path) -> None:
    first, second = call("migrate", "--data", data), call("migrate", "--data", data)
    assert (first.exit_code, first.output) == (0, f"from nothing to revision {REVISION}\n")
    assert (second.exit_code, second.output) == (0, f"at revision {REVISION} already\n")
    assert (data / "store.db").exists()


@pytest.mark.parametrize(
    ("options", "code", "output"),
    [
        (["--months", "3"], 0, "SQLite has no partitions"),
        (["--months", "0"], 2, "0 is not in the range 1<=x<=120"),
        (["--since", "2026-01"], 2, "--since can only be used with --months"),
        (["--months", "3", "--since", "2024-12"], 2, "of 2025 to 2093, got 3 from 2024-12 on"),
        (["--months", "2", "--since", "2093-11"], 0, "SQLite has no partitions"),
        (["--months", "3", "--since", "2093-11"], 2, "of 2025 to 2093, got 3 from 2093-11 on"),
        (["--months", "1", "--since", "9999-12"], 2, "of 2025 to 2093, got 1 from 9999-12 on"),
        (["--months", "3", "--since", "May"], 2, "'May' does not match the format"),
        (["--months", "3", "--check"], 2, "--months cannot be used with --check"),
    ],
)
def test_months_are_made_where_there_are_partitions(data: Path, options, code, output) -> None:
    assert call("migrate", "--data", data).exit_code == 0
    result = call("migrate", *options, "--data", data)
    assert result.exit_code == code
    assert output in re.sub(r"[\s│]+", " ", result.output)


def test_a_database_of_an_unknown_revision_is_refused(data: Path) -> None:
    url = f"sqlite:///{data}/other.db"
    assert call("migrate", "--database", url).exit_code == 0
    run_statements(url, ("UPDATE alembic_version SET version_num = '2031.01'", ()))
    result = call("migrate", "--database", url)
    assert result.exit_code == 2
    assert "this version cannot read the database" in result.output
    assert "2031.01" in result.output
    assert select_rows(url, "SELECT version_num FROM alembic_version") == [("2031.01",)]
    assert "quadriga restore" in result.output
    checked = call("migrate", "--check", "--database", url)
    assert (checked.exit_code, "newer version" in checked.output) == (2, True)
    result = call("store", "rebuild", "--data", data, "--database", url)
    assert (result.exit_code, "2031.01" in result.output) == (2, True)


def test_what_a_migration_would_do_is_said_and_not_done(data: Path) -> None:
    result = call("migrate", "--check", "--data", data)
    assert (result.exit_code, result.output) == (
        1,
        f"to be brought from nothing to revision {REVISION}\n",
    )
    assert not data.exists()
    assert call("migrate", "--data", data).exit_code == 0
    assert call("migrate", "--check", "--data", data).exit_code == 0
    url = f"sqlite:///{data}/store.db"
    run_statements(url, ("UPDATE alembic_version SET version_num = '2027.09'", ()))
    result = call("migrate", "--check", "--data", data)
    assert (result.exit_code, result.output) == (
        1,
        (
            f"to be brought from 2027.09 to revision {REVISION}\n"
            f"stop the servers of revision 2027.09 first: they cannot run on {REVISION}\n"
        ),
    )
    assert select_rows(url, "SELECT version_num FROM alembic_version") == [("2027.09",)]


@pytest.mark.parametrize("words", [["--check"], []])
def test_a_database_of_a_version_before_0_2_0_is_refused(data: Path, words: list[str]) -> None:
    assert call("migrate", "--data", data).exit_code == 0
    url = f"sqlite:///{data}/store.db"
    run_statements(url, ("UPDATE alembic_version SET version_num = '2027.08'", ()))
    result = call("migrate", *words, "--data", data)
    assert (result.exit_code, "of a version before 0.2.0" in " ".join(result.output.split())) == (
        2,
        True,
    )
    assert select_rows(url, "SELECT version_num FROM alembic_version") == [("2027.08",)]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://x/y", "database"),
        ("postgresql://nobody@127.0.0.1:1/none", "quadriga: "),
    ],
)
def test_missing_database_is_reported(data: Path, url: str, reason: str) -> None:
    for command in (("migrate",), ("store", "rebuild")):
        result = call(*command, "--data", data, "--database", url)
        assert result.exit_code == 2
        assert reason in result.output
        assert "Traceback" not in result.output


def test_file_other_than_a_database_is_reported(data: Path) -> None:
    data.mkdir()
    (data / "store.db").write_bytes(b"none" * 1000)
    assert call("migrate", "--data", data).exit_code == 2
    assert call("store", "rebuild", "--data", data).exit_code == 2


def test_a_store_is_rebuilt(data: Path) -> None:
    result = call("store", "rebuild", "--data", data)
    assert result.exit_code == 2
    assert not (data / "store.db").exists()
    url = f"sqlite:///{data}/store.db"
    store_entries(url, data / "journal", [make_record(5)])
    right = select_rows(url, "SELECT * FROM pred")
    run_statements(url, ("DELETE FROM pred", ()))
    result = call("store", "rebuild", "--data", data)
    assert (result.exit_code, result.stdout) == (0, "rebuilt\n")
    assert select_rows(url, "SELECT * FROM pred") == right
    assert not (data / "rebuild.progress").exists()
