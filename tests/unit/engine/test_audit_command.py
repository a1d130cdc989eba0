"""The command `quadriga audit`, and commands that the audit log cannot take."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from quadriga.engine.cli import main
from quadriga.store.audit.entries import AuditEntry
from quadriga.store.audit.log import AuditLog


@pytest.fixture
def data(tmp_path) -> Iterator[Path]:
    mask = os.umask(0o022)  # commands that write a store set it for their process
    yield tmp_path / "data"
    os.umask(mask)


def run(*words: object, code: int = 0, columns: str | None = "300") -> str:
    """Run the command line; return what it printed."""
    result = CliRunner().invoke(main, [str(word) for word in words], env={"COLUMNS": columns})
    assert result.exit_code == code, result.output
    return result.output


def test_a_terminal_shows_the_texts_of_clients_and_obeys_none(data):
    log = AuditLog(data / "audit", "worker-0", 365)
    log.write(
        AuditEntry(
            time="", action="GET /\x1b[2J\x9b31m\n[red]x\N{RIGHT-TO-LEFT OVERRIDE}", status=403
        )
    )
    log.close()
    printed = run("audit", "--data", data)
    assert r"GET /\x1b[2J\x9b31m\n[red]x\u202e" in printed
    assert printed.replace("\n", "").isprintable()
    assert json.loads(run("audit", "--json", "--data", data))["status"] == 403


def test_a_line_says_which_machine_wrote_it(data):
    run("keys", "create", "--role", "read", "--data", data)
    assert json.loads(run("audit", "--json", "--data", data))["host"] == socket.gethostname()
    assert "written on" not in run("audit", "--data", data)  # all lines are of this one
    older = '{"time":"2026-11-01T12:00:00.000000Z","action":"first key","status":"done"}\n'
    moved = '{"time":"2026-11-02T12:00:00.000000Z","action":"PUT /a","status":200,"host":"pod-7"}\n'
    (data / "audit" / "2026-11-01-jobs.jsonl").write_text(older)
    (data / "audit" / "2026-11-02-jobs.jsonl").write_text(moved)
    printed = run("audit", "--data", data)
    assert "written on" in printed
    assert ["first key" in printed, "pod-7" in printed] == [True, True]
    lines = [json.loads(line) for line in run("audit", "--json", "--data", data).splitlines()]
    assert [line.get("host") for line in lines] == [socket.gethostname(), "pod-7", None]


@pytest.mark.parametrize("columns", [None, "80"], ids=["pipe", "narrow terminal"])
def test_times_and_ids_are_whole_whatever_the_width(data, columns):
    options = ["--role", "read", "--team", "quality", "--expires", "1h"]
    key = json.loads(run("keys", "create", *options, "--json", "--data", data))
    line = json.loads(run("audit", "--json", "--data", data))
    printed = run("audit", "--data", data, columns=columns)
    assert "…" not in printed
    assert line["time"][:19].replace("T", " ") in printed
    rows = [row.split("│") for row in printed.splitlines() if "│" in row]
    about = "".join(row[-2].strip() for row in rows)
    assert about.replace(" ", "") == line["target"].replace(" ", "")
    assert key["id"] in about
    assert (len(rows) == 1) == (columns is None)


def test_an_empty_log_is_said(data):
    assert "data folder not found" in run("audit", "--data", data, code=2)
    data.mkdir()
    assert run("audit", "--data", data) == "no lines\n"
    assert run("audit", "--json", "--data", data) == ""


def test_a_wrong_time_is_explained(data):
    data.mkdir()
    assert "expected since to be a time" in run("audit", "--since", "soon", "--data", data, code=2)


def test_damaged_lines_are_said(data):
    folder = data / "audit"
    folder.mkdir(parents=True)
    (folder / "2027-03-01-worker-0.jsonl").write_text("half a line")
    assert "1 damaged lines were skipped" in run("audit", "--data", data)


def test_what_a_new_key_is_for_is_in_the_log(data):
    options = ["--role", "read", "--role", "monitor", "--team", "quality", "--models", "ships-*"]
    key = json.loads(run("keys", "create", *options, "--expires", "1h", "--json", "--data", data))
    new = json.loads(run("keys", "rotate", key["id"], "--json", "--data", data))
    rights = f"roles read+monitor, team quality, models ships-*, until {key['expires_at'][:19]}Z"
    targets = [json.loads(line)["target"] for line in run("audit", "--json", "--data", data).splitlines()]  # fmt: skip
    assert targets == [f"{key['id']} to {new['id']}: {rights}", f"{key['id']}: {rights}"]


def test_a_key_that_the_log_cannot_take_is_not_made(data):
    data.mkdir()
    (data / "audit").write_text("in the way")
    run("keys", "create", "--role", "admin", "--data", data, code=2)
    assert json.loads(run("keys", "list", "--json", "--data", data)) == []
    (data / "audit").unlink()
    key = json.loads(run("keys", "create", "--role", "admin", "--json", "--data", data))
    (line,) = run("audit", "--json", "--data", data).splitlines()
    assert json.loads(line)["action"] == "keys create"
    assert json.loads(line)["target"] == f"{key['id']}: roles admin"
    assert key["key"].partition(".")[2] not in line


def test_without_an_audit_log_none_is_written(data, monkeypatch):
    monkeypatch.setenv("QUADRIGA_AUDIT_DAYS", "0")
    run("keys", "create", "--role", "admin", "--data", data)
    assert not (data / "audit").exists()


def test_a_list_of_keys_that_no_terminal_shows_is_not_cut(data, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "camera of line 4 in the hall behind the gate"
    options = ["--role", "read", "--role", "monitor", "--models", "ships-*", "--models", "shapes-*"]
    CliRunner().invoke(main, ["keys", "create", *options, "--name", name, "--data", str(data)])
    printed = CliRunner().invoke(main, ["keys", "list", "--data", str(data)]).output
    (line,) = [line for line in printed.splitlines() if name in line]
    assert all(text in line for text in ("read, monitor", "ships-*, shapes-*", "valid"))


def test_a_list_of_keys_says_when_each_ends(data):
    for name, expires in (("ends", ["--expires", "30d"]), ("stays", [])):
        run("keys", "create", "--role", "read", "--name", name, *expires, "--data", data)
    ends, stays = json.loads(run("keys", "list", "--json", "--data", data))
    assert stays["expires_at"] is None
    assert ends["expires_at"] > ends["created_at"]
    printed = CliRunner().invoke(
        main, ["keys", "list", "--data", str(data)], env={"COLUMNS": "200"}
    )
    assert f"valid until {ends['expires_at'][:16].replace('T', ' ')}" in printed.output
