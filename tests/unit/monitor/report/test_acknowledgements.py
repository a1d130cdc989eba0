"""Acknowledgements of drift reports: the first stays, also of several at once, and they go with their report."""

import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import msgspec
import pytest

from quadriga.monitor.report import acknowledgements
from quadriga.monitor.report.acknowledgements import (
    MAX_NOTE_CHARACTERS,
    acknowledge,
    decode_acknowledgement,
    read_acknowledgement,
)
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Data, Report, ReportedModel, Window
from quadriga.store.jobs.jobs import Job, Jobs, Result, write_job
from quadriga.store.records.errors import JournalError, NotFoundError, QueryError
from quadriga.store.records.scope import Scope

ID = "1790000000000000000-0001"
FILE = "acknowledged.json"


def keep(root: Path, scope: Scope | msgspec.UnsetType = msgspec.UNSET, **fields: str) -> Path:
    """Keep a report as the result of its job, and return the job's folder."""
    folder = root / "jobs" / ID
    folder.mkdir(parents=True)
    report = Report(**({"kind": "drift", "status": "drift", "task": ""} | fields), data=Data(Window()), id=ID, model=ReportedModel("m"))  # fmt: skip
    (folder / "report.json").write_bytes(msgspec.json.encode(report))
    write_job(folder, Job(ID, "drift", {}, "2026-11-25T12:00:00Z", "succeeded", result=Result("report.json", 5), scope=scope))  # fmt: skip
    return folder


@pytest.fixture
def reports(tmp_path: Path) -> ReportStore:
    return ReportStore(Jobs(tmp_path / "jobs"))


def test_the_first_acknowledgement_stays(tmp_path, reports):
    folder = keep(tmp_path)
    assert read_acknowledgement(reports, ID) is None
    first = acknowledge(reports, ID, "mara", "lens is dirty")
    assert (first.report, first.by, first.note) == (ID, "mara", "lens is dirty")
    assert acknowledge(reports, ID, "jo", "me too") == first
    assert read_acknowledgement(reports, ID) == first
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    assert sorted(path.name for path in folder.iterdir()) == [FILE, "job.json", "report.json"]


def test_of_several_at_once_one_stays_and_all_are_told_which(tmp_path, reports):
    keep(tmp_path)
    barrier = Barrier(8)

    def run(number: int) -> acknowledgements.Acknowledgement:
        barrier.wait()
        return acknowledge(reports, ID, f"person {number}", "x" * 900)

    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(run, range(8)))
    assert len(set(told)) == 1
    assert read_acknowledgement(reports, ID) == told[0]


def test_an_acknowledgement_goes_with_its_report(tmp_path, reports):
    folder = keep(tmp_path)
    acknowledge(reports, ID, "mara", "")
    shutil.rmtree(folder)
    with pytest.raises(NotFoundError):
        read_acknowledgement(reports, ID)
    with pytest.raises(NotFoundError):
        acknowledge(reports, ID, "mara", "")
    assert not folder.exists()


def test_a_report_that_is_removed_meanwhile_leaves_no_folder(tmp_path, reports, monkeypatch):
    folder = keep(tmp_path)
    create_once = acknowledgements.create_once

    def remove_first(*arguments, **options):
        shutil.rmtree(folder)
        return create_once(*arguments, **options)

    monkeypatch.setattr(acknowledgements, "create_once", remove_first)
    with pytest.raises(NotFoundError, match="was removed"):
        acknowledge(reports, ID, "mara", "")
    assert not folder.exists()


def test_a_damaged_file_counts_as_none_and_is_replaced(tmp_path, reports):
    folder = keep(tmp_path)
    for damaged in (b"", b'{"report": "', b"\xff", b"[]", b'{"by": 5}'):
        (folder / FILE).write_bytes(damaged)
        assert read_acknowledgement(reports, ID) is None
        assert acknowledge(reports, ID, "jo", "").by == "jo"
        assert read_acknowledgement(reports, ID).by == "jo"


@pytest.mark.parametrize(
    "fields", [{"status": "ok"}, {"status": "insufficient"}, {"status": "error"}, {"kind": "evaluation", "status": "ok"}],
)  # fmt: skip
def test_what_has_no_alarm_is_not_acknowledged(tmp_path, reports, fields):
    folder = keep(tmp_path, **fields)
    with pytest.raises(QueryError, match="with an alarm, got"):
        acknowledge(reports, ID, "mara", "")
    assert not (folder / FILE).exists()


def test_the_report_of_another_team_is_not_there(tmp_path, reports):
    folder = keep(tmp_path, Scope("north"))
    for scope in (Scope("south"), Scope("north", ("other",))):
        with pytest.raises(NotFoundError):
            acknowledge(reports.within(scope), ID, "eve", "")
        with pytest.raises(NotFoundError):
            read_acknowledgement(reports.within(scope), ID)
    assert not (folder / FILE).exists()
    assert acknowledge(reports.within(Scope("north")), ID, "mara", "").by == "mara"


@pytest.mark.parametrize("report_id", ["", "..", "../../x", "1", ID.replace("0001", "0002")])
def test_a_report_that_is_not_there_is_not_acknowledged(tmp_path, reports, report_id):
    keep(tmp_path)
    with pytest.raises(NotFoundError):
        acknowledge(reports, report_id, "mara", "")


def test_on_a_full_disk_it_says_so_and_nothing_stays(tmp_path, reports, monkeypatch):
    folder = keep(tmp_path)

    def no_space(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", no_space)
        with pytest.raises(JournalError, match="No space left"):
            acknowledge(reports, ID, "mara", "")
    assert sorted(path.name for path in folder.iterdir()) == ["job.json", "report.json"]
    assert acknowledge(reports, ID, "jo", "").by == "jo"


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (b"", ""),
        (b"{}", ""),
        (b'{"note": "  <b>lens</b>\\n"}', "<b>lens</b>"),
        (msgspec.json.encode({"note": "é" * MAX_NOTE_CHARACTERS}), "é" * MAX_NOTE_CHARACTERS),
    ],
)
def test_a_note_is_any_text(body, note):
    assert decode_acknowledgement(body).note == note


@pytest.mark.parametrize(
    "body",
    [b"[]", b"5", b'{"note": 5}', b'{"by": "x"}', b"\xff", b"{", b'{"note": "\\u0000"}', b"[" * 100_000,
     msgspec.json.encode({"note": "x" * (MAX_NOTE_CHARACTERS + 1)})],
)  # fmt: skip
def test_what_is_no_note_is_refused(body):
    with pytest.raises(QueryError, match="expected"):
        decode_acknowledgement(body)
