"""A request that erases: what it refuses, counts and waits for, and how it goes on under load and after a crash."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quadriga.store.changes import service as service_module
from quadriga.store.changes.erasures import demanded_texts, filter_fields
from quadriga.store.errors import ChangeError, NotFoundError, QueryError
from quadriga.store.maintenance import eraser as eraser_module
from quadriga.store.query.json_form import parse
from tests.background import in_background, until
from tests.unit.store.erasing_harness import (
    PERSON,
    ErasingHarness,
    fill,
    image_of,
    rows_of_others,
)


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[ErasingHarness]:
    root = tmp_path / "data"
    store = ErasingHarness(root, f"sqlite:///{root}/store.db")
    yield store
    store.close()


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


def test_a_dry_run_only_counts(sqlite_store: ErasingHarness) -> None:
    mine, _ = fill(sqlite_store)
    result = sqlite_store.send({"meta.person": PERSON}, dry_run=True)
    assert (result.count, result.ids, result.more) == (len(mine), [], False)
    assert result.erasure is msgspec.UNSET
    assert sqlite_store.erasures.all() == []


def test_a_dry_run_counts_as_many_as_are_erased_at_once(
    sqlite_store: ErasingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "MAX_DELETED", 5)
    monkeypatch.setattr(service_module, "MAX_ERASED", 50)
    fill(sqlite_store)
    result = sqlite_store.send(None, dry_run=True, all=True)
    assert (result.count, result.more) == (50, True)
    result = sqlite_store.send({"meta.note": {"exists": True}}, dry_run=True)
    assert (result.count, result.more) == (50, True)
    result = sqlite_store.send({"meta.person": "other-7"}, dry_run=True)
    assert (result.count, result.more) == (1, False)


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
        assert store.traces(*needles) == []
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
    assert store.traces(*needles) == []
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
