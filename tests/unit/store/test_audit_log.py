"""The audit log: lines that survive, that nobody forges, that no flood and no full disk make useless."""

import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime

import msgspec
import pytest

from quadriga.store.audit.entries import (
    MAX_LINE_BYTES,
    AuditEntry,
    decode_entry,
    encode_entry,
    timestamp,
)
from quadriga.store.audit.log import MAX_SOURCES, OTHERS, SEVERAL, SUM_S, AuditFile, AuditLog
from quadriga.store.audit.reading import _Cursor, _encode_cursor, parse_since, read_page
from quadriga.store.records.errors import AuditError, QueryError
from tests.memory import taking_at_most

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC).timestamp()


class Clock:
    """A clock that tests set."""

    def __init__(self):
        self.now_s = NOON

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(tmp_path, clock):
    log = AuditLog(tmp_path / "audit", "worker-0", 365, clock)
    yield log
    log.close()


def entry(action="POST /api/inferences/delete", status=200, **fields):
    return AuditEntry(time="", action=action, status=status, **fields)


def refusal(address="10.0.0.1", status=401, action="GET /v2"):
    return entry(action, status, address=address, name="nobody")


def read_all(folder, **options):
    entries, cursor, damaged = [], "", 0
    while cursor is not None:
        page = read_page(folder, cursor=cursor, **options)
        entries += page.entries
        damaged += page.damaged
        cursor = page.cursor
    return entries, damaged


def test_a_line_is_in_the_file_at_once_for_its_user_alone(log, tmp_path):
    log.write(entry(key_id="abc", name="ci", number=3, request_id="r-1", address="10.0.0.1"))
    path = tmp_path / "audit" / "2027-03-01-worker-0.jsonl"
    assert json.loads(path.read_text()) == {
        "time": "2027-03-01T12:00:00.000000Z", "action": "POST /api/inferences/delete",
        "status": 200, "key_id": "abc", "name": "ci", "address": "10.0.0.1", "number": 3,
        "request_id": "r-1", "host": socket.gethostname(),
    }  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "text",
    [
        'x"}\n{"time":"2027-03-01T12:00:00.000000Z","action":"DELETE /","status":200}',
        "\r\n\0\x1b[2J\x7f\x9b\u2028\u202e",
        "\udc80\ud800",
        "\N{FIRE}" * 10_000,
        "\0" * 10_000,
        "",
    ],
)
def test_no_text_forges_a_line_or_makes_it_long(text):
    line = encode_entry(
        entry(text, key_id="a" * 64, name=text, address=text, target=text, request_id=text)
    )
    assert len(line) <= MAX_LINE_BYTES
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert line[:-1].decode().isprintable()
    decoded = decode_entry(line)
    assert decoded is not None
    assert decoded.status == 200
    assert decoded.action == text[: len(decoded.action)].encode(errors="replace").decode()


def test_lines_survive_the_kill_of_the_process(tmp_path):
    code = (
        "import os, signal, sys, pathlib\n"
        "from quadriga.store.audit.log import AuditLog\n"
        "from quadriga.store.audit.entries import AuditEntry\n"
        "log = AuditLog(pathlib.Path(sys.argv[1]), 'worker-0', 365)\n"
        "for n in range(100):\n"
        "    log.write(AuditEntry(time='', action=f'POST /{n}', status=200))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    entries, damaged = read_all(tmp_path, limit=7)
    assert [entry.action for entry in entries] == [f"POST /{n}" for n in reversed(range(100))]
    assert damaged == 0


def test_a_half_line_of_a_killed_process_spoils_no_other(tmp_path, clock):
    log = AuditLog(tmp_path, "worker-0", 365, clock)
    log.write(entry("POST /1"))
    log.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b'{"time":"2027-03-01T12:0')
    log = AuditLog(tmp_path, "worker-0", 365, clock)
    log.write(entry("POST /2"))
    log.close()
    entries, damaged = read_all(tmp_path)
    assert [entry.action for entry in entries] == ["POST /2", "POST /1"]
    assert damaged == 1


@pytest.mark.parametrize(
    "damage", [b"\n\n\n", b"null\n", b"[1]\n", b"\xff\xfe\n", b"x" * 300_000 + b"\n", b"{}\n"]
)
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_damage_is_skipped_and_counted_once(tmp_path, damage, limit):
    lines = [
        encode_entry(msgspec.structs.replace(entry(f"POST /{n}"), time=timestamp(NOON + n)))
        for n in range(3)
    ]
    path = tmp_path / "2027-03-01-worker-0.jsonl"
    path.write_bytes(damage.join([b"", *lines, b""]))
    entries, damaged = read_all(tmp_path, limit=limit)
    assert [entry.action for entry in entries] == ["POST /2", "POST /1", "POST /0"]
    assert damaged == (0 if damage.isspace() else 4)


def test_pages_neither_repeat_nor_skip_while_lines_are_added(tmp_path, clock):
    logs = [AuditLog(tmp_path, f"worker-{n}", 365, clock) for n in range(3)]
    for n in range(300):
        clock.now_s += 600 if n % 50 == 0 else 0.001  # over midnight, too
        logs[n % 3].write(entry(f"POST /{n}"))
    expected = [f"POST /{n}" for n in reversed(range(300))]
    actions, cursor = [], ""
    while cursor is not None:
        page = read_page(tmp_path, limit=7, cursor=cursor)
        actions += [entry.action for entry in page.entries]
        cursor = page.cursor
        clock.now_s += 3600
        for log in (*logs, AuditLog(tmp_path, f"new-{len(actions)}", 365, clock)):
            log.write(entry("POST /later"))
            if log not in logs:
                log.close()
    assert actions == expected
    for log in logs:
        log.close()


def test_filters_by_key_and_time(log, tmp_path, clock):
    for n in range(10):
        clock.now_s += 60
        log.write(entry(f"POST /{n}", key_id="ab" if n % 2 else "cd", name=f"key {n % 2}"))
    folder = tmp_path / "audit"
    assert len(read_all(folder, key="ab")[0]) == len(read_all(folder, key="key 0")[0]) == 5
    assert read_all(folder, key="a")[0] == []
    since = parse_since("3m", clock.now_s + 1)
    assert [entry.action for entry in read_all(folder, since=since)[0]] == [
        "POST /9",
        "POST /8",
        "POST /7",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24h", "2027-02-28T12:00:00.000000Z"),
        ("999999d", "1970-01-01T00:00:00.000000Z"),
        ("0001-01-01", "1970-01-01T00:00:00.000000Z"),
        ("2027-02-03", "2027-02-03T00:00:00.000000Z"),
        ("2027-02-03T04:05:06+01:00", "2027-02-03T03:05:06.000000Z"),
    ],
)
def test_a_time_is_read(text, expected):
    assert parse_since(text, NOON) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "-1h", "1w", "2027-13-01", "\0"])
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(QueryError, match="expected since to be a time"):
        parse_since(text, NOON)


@pytest.mark.parametrize(
    "cursor", ["x", "{}", "e30", "\N{FIRE}", "eyJkYXkiOiIiLCJlbmRzIjp7ImEiOi0xfX0", "A" * 10_000]
)
def test_a_cursor_of_somebody_else_is_refused(tmp_path, cursor):
    with pytest.raises(QueryError, match="expected the cursor of a page"):
        read_page(tmp_path, cursor=cursor)


def test_a_cursor_names_no_other_file(log, tmp_path):
    log.write(entry())
    (tmp_path / "secret").write_text(encode_entry(entry()).decode())
    cursor = _encode_cursor(_Cursor("2027-03-01", {"../secret": 10_000}))
    assert read_page(tmp_path / "audit", cursor=cursor).entries == []


def test_no_folder_is_an_empty_log(tmp_path):
    assert read_all(tmp_path / "none") == ([], 0)


def test_two_processes_of_one_name_have_a_file_each(tmp_path):
    files = [AuditFile(tmp_path, "commands") for _ in range(2)]
    for n, file in enumerate(files):
        file.append(msgspec.structs.replace(entry(f"keys {n}"), time=timestamp(NOON)))
    assert {path.name for path in tmp_path.iterdir()} == {
        "2027-03-01-commands.jsonl", "2027-03-01-commands-2.jsonl",
    }  # fmt: skip
    for file in files:
        file.close()
    assert {entry.action for entry in read_all(tmp_path)[0]} == {"keys 0", "keys 1"}


def test_a_removed_folder_is_made_again(log, tmp_path):
    log.write(entry())
    path = tmp_path / "audit" / "2027-03-01-worker-0.jsonl"
    path.unlink()
    path.parent.rmdir()
    log.write(entry("POST /2"))
    assert len(path.read_text().splitlines()) == 1


def test_old_files_are_removed(tmp_path):
    now_s = time.time()
    for age in (0, 2, 3, 400):
        (tmp_path / f"{timestamp(now_s - age * 86400)[:10]}-worker-0.jsonl").touch()
    (tmp_path / "2001-01-01-notes.txt").touch()
    log = AuditLog(tmp_path, "worker-0", 2)
    log.start()
    until = time.monotonic() + 10
    while len(list(tmp_path.iterdir())) > 3 and time.monotonic() < until:
        time.sleep(0.05)
    log.close()
    assert {path.name[:10] for path in tmp_path.iterdir()} == {
        timestamp(now_s)[:10], timestamp(now_s - 2 * 86400)[:10], "2001-01-01",
    }  # fmt: skip


def test_a_flood_of_refusals_is_a_line_a_minute(log, tmp_path, clock):
    for n in range(10_000):
        log.refuse(refusal(action=f"GET /{n}"))
    clock.now_s += SUM_S + 1
    log.write_sums()
    log.write_sums()
    second, first = read_all(tmp_path / "audit")[0]
    assert (first.times, first.action) == (1, "GET /0")
    assert (second.times, second.action, second.address) == (9_999, SEVERAL, "10.0.0.1")
    assert second.since == "2027-03-01T12:00:00.000000Z"
    assert log.counters()["audit_refusals_total"] == 10_000
    clock.now_s += SUM_S + 1
    log.write_sums()
    log.refuse(refusal())
    assert len(read_all(tmp_path / "audit")[0]) == 3


def test_refusals_of_others_stand_apart(log, tmp_path):
    for address, status in (("10.0.0.1", 401), ("10.0.0.2", 401), ("10.0.0.1", 403), ("::1", 401)):
        log.refuse(refusal(address, status))
        log.refuse(refusal(address, status))
    assert len(read_all(tmp_path / "audit")[0]) == 4
    log.close()
    assert sorted(entry.times for entry in read_all(tmp_path / "audit")[0]) == [1] * 8


@pytest.mark.parametrize("status", [400, 404, 412, "NOT_FOUND", "INVALID_ARGUMENT"])
def test_a_flood_of_mistakes_is_a_line_a_minute(log, tmp_path, clock, status):
    for n in range(1_000):
        log.write(
            entry(f"POST /models/{'x' * 3000}-{n}", status, key_id="abc", name="ci", target="m")
        )
        if n % 100 == 0:
            log.write(entry("POST /done", 200, key_id="abc", name="ci"))
    log.write(entry("POST /partial", status, key_id="abc", name="ci", number=7))
    clock.now_s += SUM_S + 1
    log.write_sums()
    entries = read_all(tmp_path / "audit")[0]
    assert [entry.action for entry in entries].count("POST /done") == 10
    assert [entry.times for entry in entries if entry.status == status] == [999, 1, 1]
    assert entries[0].key_id == "abc"
    assert entries[1].number == 7
    size = sum(path.stat().st_size for path in (tmp_path / "audit").iterdir())
    assert size < 5_000
    assert log.counters()["audit_refusals_total"] == 0


def test_strangers_do_not_hide_the_mistakes_of_a_key(log, tmp_path):
    for n in range(10 * MAX_SOURCES):
        log.refuse(refusal(f"10.0.{n // 256}.{n % 256}"))
    log.write(entry("POST /1", 404, key_id="abc", name="ci", address="10.1.0.1"))
    log.refuse(refusal("10.1.0.2"))
    assert [(e.action, e.key_id, e.name) for e in read_all(tmp_path / "audit", key="ci")[0]] == [
        ("POST /1", "abc", "ci")
    ]


def test_a_flood_from_many_addresses_is_bounded(log, tmp_path, clock):
    for minute in range(10):
        for n in range(5_000):
            log.refuse(refusal(f"10.{minute}.{n // 256}.{n % 256}", action="GET /" + "\0" * 5_000))
        clock.now_s += SUM_S + 1
        log.write_sums()
    for n in range(5_000):
        log.refuse(refusal(f"2001:db8::{n:x}"))  # one site
    size = sum(path.stat().st_size for path in (tmp_path / "audit").iterdir())
    assert size < 10 * (MAX_SOURCES + 2) * 2 * MAX_LINE_BYTES
    log.close()
    entries = read_all(tmp_path / "audit")[0]
    assert sum(entry.times for entry in entries) == 55_000
    assert any(entry.address == OTHERS for entry in entries)


def test_a_full_disk_refuses_changes_until_lines_can_be_written(tmp_path, caplog, clock):
    folder = tmp_path / "audit"
    log = AuditLog(folder, "worker-0", 365, clock)
    log.check()
    log.write(entry("POST /1"))
    size = (folder / "2027-03-01-worker-0.jsonl").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))  # a half line fits
    try:
        log.check()
        log.write(entry("POST /2", key_id="abc"))
        for _ in range(3):
            with pytest.raises(AuditError, match="nothing is changed") as error:
                log.check()
            assert str(tmp_path) not in str(error.value)
        log.refuse(refusal())
        counters = log.counters()
        assert (counters["audit_lost_total"], counters["audit_failing"]) == (2, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert caplog.text.count("cannot write the audit log") == 1
    assert '"POST /2"' in caplog.text
    log.check()
    log.write(entry("POST /3"))
    entries, damaged = read_all(folder)
    assert [(entry.action, entry.status, entry.number) for entry in entries] == [
        ("POST /3", 200, None), ("audit log", "resumed", 2), ("POST /1", 200, None),
    ]  # fmt: skip
    assert damaged == 1
    assert log.counters()["audit_failing"] == 0
    log.close()


def test_a_folder_that_takes_no_file_refuses_changes(tmp_path, clock):
    (tmp_path / "audit").write_text("a file")
    log = AuditLog(tmp_path / "audit", "worker-0", 365, clock)
    log.write(entry())
    with pytest.raises(AuditError):
        log.check()
    log.close()


def test_the_newest_page_of_a_million_lines_is_read_from_the_end(tmp_path):
    line = encode_entry(msgspec.structs.replace(entry(name="ci" * 20), time=timestamp(NOON)))
    path = tmp_path / "2027-03-01-worker-0.jsonl"
    path.write_bytes(line * 1_000_000)
    with taking_at_most(5_000_000):
        page = read_page(tmp_path, limit=100)
    assert len(page.entries) == 100
    assert len(read_page(tmp_path, limit=100, cursor=page.cursor or "").entries) == 100
    assert read_page(tmp_path, key="nobody has it").entries == []
    assert page.cursor
    os.truncate(path, 0)
