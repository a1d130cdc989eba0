"""Nothing of what was erased is left in the data folder once SQLite is vacuumed, all else is as it was, and a request may be cut off."""

import itertools
import json
import os
import shutil
import sqlite3
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.changes import service as service_module
from quadriga.store.changes.erasures import demanded_texts, filter_fields
from quadriga.store.journal.journal import segment_paths
from quadriga.store.maintenance import eraser as eraser_module
from quadriga.store.maintenance.vacuum import vacuum
from quadriga.store.query.filters.forms import parse
from quadriga.store.records.errors import ChangeError, NotFoundError, QueryError, StoreError
from tests.background import in_background, until
from tests.unit.store.erasing_harness import (
    EARLIER,
    OTHERS,
    PERSON,
    ErasingHarness,
    fill,
    image_of,
    rows_of_others,
)


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[ErasingHarness]:
    store = ErasingHarness(tmp_path / "data", database_url)
    yield store
    store.close()


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[ErasingHarness]:
    root = tmp_path / "data"
    store = ErasingHarness(root, f"sqlite:///{root}/store.db")
    yield store
    store.close()


def test_no_byte_is_left_and_others_are_as_they_were(store: ErasingHarness) -> None:
    mine, needles = fill(store)
    others = rows_of_others(store, mine)
    assert {needle for needle, _ in store.traces(*needles)} >= set(needles[:6])
    store.blobs.grace_s = 0.0
    receipt = store.erase({"meta.person": PERSON})
    assert (receipt.fields, receipt.remaining) == (["meta.person"], [])
    assert (receipt.counts["inferences"], receipt.counts["images"]) == (len(mine), len(mine))
    is_postgresql = store.url.startswith("postgresql")
    assert any("PostgreSQL" in text for text in receipt.kept) == is_postgresql
    assert any("quadriga store vacuum" in text for text in receipt.kept) != is_postgresql
    assert store.traces_after_vacuum(*needles) == []
    assert list((store.root / "erasures" / "pending").iterdir()) == []
    rows = json.dumps(store.all_rows(), default=str)
    assert [needle for needle in needles[:3] if needle.decode() in rows] == []
    assert store.answers() == others
    assert len(others) == sum(n for (n,) in store.rows("SELECT n FROM rollup")) == OTHERS
    for record in mine:
        with pytest.raises(NotFoundError):
            store.inferences.get(str(record.seq))


def test_what_is_erased_by_its_image_takes_the_image_along(sqlite_store: ErasingHarness) -> None:
    store = sqlite_store
    mine, _ = fill(store)
    digest = str(mine[0].input.hash)
    receipt = store.erase({"input.hash": digest})
    assert receipt.counts["inferences"] == 1
    assert store.blobs.get(digest) is None
    assert store.blobs.thumbnail(digest, 256) is None
    assert store.traces_after_vacuum(digest[7:].encode(), str(mine[0].seq).encode()) == []
    assert len(store.stored_ids()) == OTHERS + len(mine) - 1


def test_an_image_that_others_need_stays(sqlite_store: ErasingHarness) -> None:
    store = sqlite_store
    first, second = (
        store.record(image_of(1), metadata={"person": person}) for person in (PERSON, "other")
    )
    store.commit(first, second)
    receipt = store.erase({"meta.person": PERSON})
    assert (receipt.counts["images"], receipt.counts["images_of_others"]) == (0, 1)
    assert store.blobs.get(str(second.input.hash)) == image_of(1)
    assert store.blobs.thumbnail(str(second.input.hash), 256) == image_of(1) + b"\xff\xd9"
    assert store.traces_after_vacuum(PERSON.encode(), str(first.seq).encode()) == []


def test_ids_that_lead_to_it_go_wherever_they_are(store: ErasingHarness) -> None:
    mine, _ = fill(store)
    (other, *_) = set(store.stored_ids()) - {record.seq for record in mine}
    ids = [store.ids.next() for _ in range(3)]
    targets = (mine[0].seq, mine[0].seq, other)
    for seq, first_seq in zip(ids, targets, strict=True):
        store.execute(f"INSERT INTO repeated_id VALUES ({seq}, {first_seq})")
    lines = [f'{{"id":"{seq}"}}\n' for seq in ids]
    (store.root / "dead.jsonl").write_text("".join(lines))
    store.blobs.grace_s = 0.0
    receipt = store.erase({"meta.person": PERSON})
    assert (receipt.counts["inferences"], receipt.counts["set_aside"]) == (len(mine), 2)
    assert store.rows("SELECT seq, first_seq FROM repeated_id") == [(ids[2], other)]
    assert (store.root / "dead.jsonl").read_text() == lines[2]
    assert store.traces(*(str(seq).encode() for seq in ids[:2])) == []
    assert len(store.stored_ids()) == OTHERS


def test_an_upload_of_the_same_image_meanwhile_loses_nothing(sqlite_store: ErasingHarness) -> None:
    store = sqlite_store
    record = store.record(image_of(1), metadata={"person": PERSON})
    store.commit(record)
    store.eraser._upload_s = 3600.0  # no upload is old enough
    store.erasures.submit([record.seq], [], [])
    for _ in range(6):
        store.eraser_step()
    (receipt,) = store.erasures.all()
    assert receipt.waiting == ["1 images came within the last 3600 s"]
    later = store.record(image_of(1), metadata={"person": "other"})  # put before it is journaled
    store.commit(later)
    store.eraser._upload_s = 0.0
    while store.eraser_step():
        pass
    assert store.erasures.all()[0].counts["images_of_others"] == 1
    assert store.blobs.get(str(later.input.hash)) == image_of(1)


def test_erasing_again_or_nothing_does_no_harm(sqlite_store: ErasingHarness) -> None:
    store = sqlite_store
    mine, needles = fill(store)
    others = rows_of_others(store, mine)
    for count in (len(mine), 0):
        assert store.erase({"meta.person": PERSON}).counts["inferences"] == count
    assert store.erase({"meta.person": "nobody"}).counts["inferences"] == 0
    assert store.answers() == others
    assert store.traces_after_vacuum(*needles) == []
    assert len(store.erasures.all()) == 3


def test_what_was_deleted_before_is_erased_by_an_erasure_of_nothing(
    sqlite_store: ErasingHarness,
) -> None:
    store = sqlite_store
    _, needles = fill(store)
    with in_background(store.writer.run):
        store.changes.delete_inferences(json.dumps({"where": {"meta.person": PERSON}}).encode())
    assert store.traces(PERSON.encode())
    store.erase({"meta.person": PERSON})
    assert store.traces_after_vacuum(PERSON.encode(), EARLIER.encode()) == []
    assert needles


@pytest.mark.parametrize("others", [130, 170])
def test_no_copy_is_left_where_pages_were_split(sqlite_store: ErasingHarness, others: int) -> None:
    """SQLite leaves a copy of a row between pointers and cells when it moves the row to another page: `vacuum` removes it."""
    store = sqlite_store
    mine, needles = fill(store)
    for number in range(others):
        store.journal.append([store.record(image_of(number % 7), metadata={"person": "loader"})])
        if number % 3 == 0:
            store.writer.drain()
    store.writer.drain()
    before = rows_of_others(store, mine)
    store.erase({"meta.person": PERSON})
    assert {name for _, name in store.traces(*needles)} <= {"store.db"}
    assert store.traces_after_vacuum(*needles) == []
    assert store.answers() == before
    with sqlite3.connect(store.root / "store.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    store.commit(store.record(image_of(1), metadata={"person": "later"}))  # no page comes back
    assert store.traces_after_vacuum(*needles) == []


def test_results_that_name_it_go_and_others_stay(sqlite_store: ErasingHarness) -> None:
    store = sqlite_store
    mine, needles = fill(store)
    seq, others = mine[0].seq, [id_ for id_ in store.stored_ids() if id_ != mine[0].seq]
    folders = {}
    for name, where in (
        ("zip", {}),
        ("jsonl", {}),
        ("html", {}),
        ("numbers", {}),
        ("parameters", {"meta.person": PERSON}),
        ("other", {"meta.person": "other-1"}),
    ):
        job = store.jobs.submit("export", {"where": where})
        folders[name] = folder = store.jobs.directory / job.id
        ended = msgspec.structs.replace(job, state="succeeded", ended_at="2026-01-01T00:00:00.000Z")
        (folder / "job.json").write_bytes(msgspec.json.encode(ended))
    with zipfile.ZipFile(folders["zip"] / "export.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.jsonl", json.dumps({"id": str(seq)}))
    (folders["jsonl"] / "export.jsonl").write_text(f'{{"id": "{seq}"}}\n')
    (folders["html"] / "page.html").write_text(f"<img alt={seq}>")
    (folders["numbers"] / "0.msgpack").write_bytes(b"\xa3" + msgspec.msgpack.encode([1, seq]))
    (folders["other"] / "export.jsonl").write_text(
        "".join(f'{{"id": "{id_}"}}\n' for id_ in others[5:7])
    )
    (store.root / "drift").mkdir()
    (store.root / "drift" / "a.schedule.json").write_text(
        json.dumps({"where": {"meta.person": PERSON}})
    )
    (store.root / "dead.jsonl").write_text(f'{{"id":"{seq}"}}\n{{"id":"5"}}\n')
    receipt = store.erase({"meta.person": PERSON})
    assert [name for name, folder in folders.items() if folder.exists()] == ["other"]
    assert (receipt.counts["jobs"], receipt.counts["set_aside"]) == (5, 1)
    assert receipt.remaining == ["drift/a.schedule.json: it mentions what was erased"]
    assert (store.root / "dead.jsonl").read_text() == '{"id":"5"}\n'
    assert {name for _, name in store.traces_after_vacuum(*needles)} == {"a.schedule.json"}


def test_a_vacuum_checks_the_disk_first(
    sqlite_store: ErasingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sqlite_store
    fill(store)
    size = (store.root / "store.db").stat().st_size
    usage = shutil.disk_usage(store.root)._replace(free=2 * size - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(StoreError, match=f"expected {2 * size:,} bytes free on the disk"):
        vacuum(store.url)
    usage = usage._replace(free=2 * size)
    assert vacuum(store.url) == size - (store.root / "store.db").stat().st_size
    with pytest.raises(StoreError, match="found none"):
        vacuum(f"sqlite:///{store.root}/none.db")


def test_images_go_with_the_leftovers_of_their_writes_alone(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path, grace_s=3600)
    old, young, untouched = (blobs.put(image) for image in (b"old", b"young", b"untouched"))
    paths = {key: tmp_path / key[7:9] / key[7:] for key in (old, young, untouched)}
    put_before = paths[young].stat().st_mtime
    leftovers = [
        path.with_name(f".{path.name}{ending}")
        for path in paths.values()
        for ending in ("-0123456789abcdef", ".89ab.removed")
    ]
    for file in [*leftovers, paths[old], paths[untouched]]:
        file.touch()
        os.utime(file, (put_before - 10, put_before - 10))
    os.utime(leftovers[2])  # a write of it goes on
    absent = f"blake3:{'f' * 64}"
    assert blobs.erase([old, young, absent], put_before) == [young]
    assert not paths[old].exists()
    assert [file.exists() for file in leftovers] == [False, False, True, False, True, True]
    assert paths[untouched].exists()


def test_segments_close_on_request_and_go_once_they_are_moved(sqlite_store: ErasingHarness) -> None:
    store = sqlite_store
    mine = store.record(image_of(1), metadata={"person": PERSON})
    store.commit(mine)
    store.eraser._upload_s = 0.0
    store.erasures.submit([mine.seq], [], [])
    (segment,) = segment_paths(store.journal_directory)
    until(lambda: store.writer.erase() and bool(store.erasures.all()[0].waiting))
    assert store.erasures.all()[0].waiting == [
        "1 segments of the journal are not closed and moved yet"
    ]
    later = store.record(image_of(2), metadata={"person": "other"})
    store.journal.append([later])  # not yet asked whether it has to be closed
    store.journal.close_on_request()
    another = store.record(image_of(3), metadata={"person": "other"})
    store.journal.append([another])
    store.journal.close_on_request()  # the new one is none of those that were there
    until(lambda: not store.eraser_step())
    assert not segment.exists()
    assert len(segment_paths(store.journal_directory)) == 1
    assert store.stored_ids() == [later.seq, another.seq]
    assert not (store.root / "journal.close").exists()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"erase": True}, ChangeError),
        ({"erase": True, "where": {}}, ChangeError),
        ({"erase": "yes", "where": {"meta.a": 1}}, ChangeError),
        ({"erase": True, "where": {"unknown": 1}}, QueryError),
    ],
)
def test_a_wrong_request_erases_nothing(
    sqlite_store: ErasingHarness, body: dict[str, Any], error: type[Exception]
) -> None:
    sqlite_store.commit(sqlite_store.record(b"image"))
    with pytest.raises(error):
        sqlite_store.changes.delete_inferences(json.dumps(body).encode())
    assert sqlite_store.erasures.all() == []
    assert len(sqlite_store.stored_ids()) == 1


def test_a_dry_run_only_counts_up_to_what_is_erased_at_once(
    sqlite_store: ErasingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "MAX_DELETED", 2)
    monkeypatch.setattr(service_module, "MAX_ERASED", 50)
    mine, _ = fill(sqlite_store)
    for where, more, expected in (
        (None, {"all": True}, (50, True)),
        ({"meta.note": {"exists": True}}, {}, (50, True)),
        ({"meta.person": PERSON}, {}, (len(mine), False)),
    ):
        result = sqlite_store.send(where, dry_run=True, **more)
        assert (result.count, result.more) == expected
        assert (result.ids, result.erasure) == ([], msgspec.UNSET)
    assert sqlite_store.erasures.all() == []


def test_it_goes_on_after_the_end_of_the_writer_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eraser_module, "STEP_S", 0.0)
    monkeypatch.setattr(eraser_module, "STEP_ROWS", 1)
    monkeypatch.setattr(eraser_module, "STEP_JOINS", 1)
    monkeypatch.setattr(eraser_module, "RETRY_S", 0.0)
    for stop_after in itertools.count():
        root = tmp_path / str(stop_after)
        store = ErasingHarness(root, f"sqlite:///{root}/store.db")
        mine, needles = fill(store, erased=2)
        others = rows_of_others(store, mine)
        store.erasures.submit(
            [record.seq for record in mine], ["meta.person"], [("meta.person", PERSON)]
        )
        is_pending = all(store.eraser_step() for _ in range(stop_after))
        store.writer.close()  # as if it died: what it knew is gone
        for name in ("writer", "eraser"):
            del store.__dict__[name]
        store.writer.drain()
        while store.eraser_step():
            pass
        (receipt,) = store.erasures.all()
        assert (receipt.state, receipt.counts["inferences"]) == ("complete", len(mine))
        assert store.traces_after_vacuum(*needles) == []
        assert store.answers() == others
        store.close()
        if not is_pending:
            break
    assert stop_after > 4


def test_load_goes_on_and_loses_nothing(sqlite_store: ErasingHarness) -> None:
    store = sqlite_store
    mine, needles = fill(store)
    sent: list[int] = []

    def load(stop: Any) -> None:
        while not stop.is_set():
            record = store.record(image_of(len(sent) % 7), metadata={"person": "loader"})
            store.journal.append([record])
            store.journal.close_on_request()
            sent.append(record.seq)

    with in_background(store.writer.run), in_background(load):
        until(lambda: len(sent) > 50)
        body = {"where": {"meta.person": PERSON}, "erase": True}
        result = store.changes.delete_inferences(json.dumps(body).encode())
        until(lambda: store.erasures.all()[0].state == "complete")
        at_end = len(sent)
        until(lambda: len(sent) > at_end + 50)
    assert result.count == len(mine)
    store.writer.drain()
    assert set(sent) <= set(store.stored_ids())
    assert store.traces_after_vacuum(*needles) == []
    assert all(store.blobs.get(f"blake3:{digest}") for digest in _digests(store))


def _digests(store: ErasingHarness) -> list[str]:
    rows = store.rows("SELECT DISTINCT input_hash FROM inference WHERE input_kept = 1")
    return [digest.partition(":")[2] for (digest,) in rows]


def test_a_job_that_may_have_read_it_is_waited_for(sqlite_store: ErasingHarness) -> None:
    store = sqlite_store
    mine, _ = fill(store)
    job = store.jobs.submit("export", {"where": {}})
    path = store.jobs.directory / job.id / "job.json"
    running = msgspec.structs.replace(job, state="running", starts=1)
    path.write_bytes(msgspec.json.encode(running))
    store.erasures.submit([record.seq for record in mine], [], [])
    text = f"job {job.id} may have read it and has not ended"
    until(lambda: not store.eraser_step() or store.erasures.all()[0].waiting == [text])
    assert store.erasures.all()[0].waiting == [text]  # without young images
    (path.parent / "export.jsonl").write_text(str(mine[0].seq))
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(running, state="succeeded")))
    until(lambda: not store.eraser_step())
    assert store.erasures.all()[0].counts["jobs"] == 1
    assert not path.parent.exists()


def test_a_receipt_holds_no_value(sqlite_store: ErasingHarness) -> None:
    mine, _ = fill(sqlite_store)
    receipt = sqlite_store.erase({"and": [{"meta.person": PERSON}, {"meta.n": {"ge": 0}}]})
    text = msgspec.json.encode(receipt)
    assert receipt.fields == ["meta.n", "meta.person"]
    assert not any(value in text for value in (PERSON.encode(), str(mine[0].seq).encode()))
    assert sqlite_store.erasures.read(receipt.id) == receipt
    for unknown in ("../x", "1", f"{receipt.id}0"):
        with pytest.raises(NotFoundError):
            sqlite_store.erasures.read(unknown)


@pytest.mark.parametrize(
    ("where", "fields", "demanded"),
    [
        ({}, [], []),
        ({"meta.p": "amy"}, ["meta.p"], [("meta.p", "amy")]),
        ({"meta.p": {"ne": "amy"}}, ["meta.p"], []),
        ({"meta.p": {"in": ["amy", 5]}, "model": "m"}, ["meta.p", "model"], [("meta.p", "amy")]),
        (
            {"or": [{"input.hash": "h"}, {"label": "star"}]},
            ["input.hash", "predictions"],
            [("input.hash", "h")],
        ),
    ],
)
def test_the_filter_tells_fields_and_texts(
    where: Any, fields: list[str], demanded: list[tuple[str, str]]
) -> None:
    tree = parse(where, 0)
    assert (filter_fields(tree), demanded_texts(tree)) == (fields, demanded)
