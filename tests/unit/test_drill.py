"""The drill sees what is lost or stored twice, and says so by its table and its status."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.drill import __main__ as program
from tests.drill.outcomes import (
    Outcome,
    Result,
    count_lost_and_twice,
    longest_gap_s,
    read_outcomes,
    stored_rows,
    table,
)
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries


@pytest.mark.parametrize(
    ("acknowledged", "rows", "expected"),
    [
        ([], [], (0, 0)),
        ([1, 2], [(1, "a"), (2, "b")], (0, 0)),
        ([1], [(1, "a"), (2, "b")], (0, 0)),  # stored and not acknowledged: the connection was cut
        ([1, 2], [(1, "a")], (1, 0)),
        ([1], [(1, "a"), (2, "a"), (3, "a")], (0, 2)),
        ([1, 1], [(1, "a")], (0, 1)),  # one id for two requests
        ([1], [(1, ""), (2, "")], (0, 0)),  # not of the drill
    ],
)
def test_losses_and_copies_are_counted(acknowledged, rows, expected) -> None:
    assert count_lost_and_twice(acknowledged, rows) == expected


def test_a_row_that_is_gone_from_a_store_is_lost(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    records = [make_record(seq, metadata={"drill": f"a-{seq}"}) for seq in (1, 2, 3)]
    store_entries(url, tmp_path / "journal", records)
    assert count_lost_and_twice([1, 2, 3], stored_rows(url)) == (0, 0)
    with closing(sqlite3.connect(tmp_path / "store.db")) as database, database:
        database.execute("DELETE FROM inference WHERE seq = 2")
        database.execute('UPDATE inference SET meta = \'{"drill": "a-1"}\' WHERE seq = 3')
    assert count_lost_and_twice([1, 2, 3], stored_rows(url)) == (1, 1)


def test_outcomes_are_read_back_and_outages_are_between_acknowledgements(tmp_path: Path) -> None:
    path = tmp_path / "client.log"
    assert read_outcomes(path) == []
    path.write_text(
        "1.5 0.25 acknowledged 12\n2.0 0.5 failed 500 a fault\n4.0 0.125 acknowledged 13\n"
    )
    outcomes = read_outcomes(path)
    assert outcomes[1] == Outcome(2.0, "failed", "500 a fault", 0.5)
    assert longest_gap_s(outcomes) == 2.5
    assert longest_gap_s(outcomes[:2]) == 0.0


@pytest.mark.parametrize(
    ("result", "status", "text"),
    [
        (
            Result("scene", "1 kill", 1234, note="fine"),
            0,
            "Nothing was lost, nothing stored twice.",
        ),
        (Result("scene", "1 kill", 1234, lost=1), 1, "LOST OR STORED TWICE in: scene"),
        (Result("scene", "1 kill", 1234, twice=2), 1, "LOST OR STORED TWICE in: scene"),
        (Result("scene", "1 kill", 1234, failed=9, broken="late"), 0, "BROKEN: late"),
        (OSError("no room"), 1, "BROKEN: not run to its end: OSError: no room"),
    ],
)
def test_the_status_says_whether_something_was_lost_or_stored_twice(
    result, status, text, *, monkeypatch, capsys, tmp_path
) -> None:
    def scene(_):
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setitem(program.SCENES, "clock-jumps", scene)
    assert program.main(["--scenes", "clock-jumps", "--folder", str(tmp_path)]) == status
    printed = capsys.readouterr().out
    assert text in printed
    assert "| scene | harm | acknowledged | lost | twice |" in printed


def test_the_table_has_a_row_for_each_scene() -> None:
    results = [Result("one", "2 kills", 1000, failed_in_orderly_restarts=0), Result("two", "none")]
    lines = table(results).splitlines()
    assert len(lines) == 4
    assert lines[2] == "| one | 2 kills | 1,000 | 0 | 0 | 0 | 0 | 0.0 s |  |"


def test_an_interrupted_drill_shows_the_scenes_before(monkeypatch, capsys, tmp_path) -> None:
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setitem(program.SCENES, "clock-jumps", lambda _: Result("clock jumps", "none"))
    monkeypatch.setitem(program.SCENES, "overload", interrupt)
    scenes = ["clock-jumps", "overload", "slow-bodies"]
    assert program.main(["--folder", str(tmp_path), "--scenes", *scenes]) == 1
    assert "| clock jumps |" in capsys.readouterr().out
