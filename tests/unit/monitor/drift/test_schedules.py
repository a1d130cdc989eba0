"""Schedules of drift reports: saved, returned, and each window submitted once."""

import json
import logging
import re
import stat
import time
from pathlib import Path

import pytest

from quadriga.engine.api.monitoring.schedules import schedule_routes
from quadriga.monitor.drift.parameters import decode_parameters
from quadriga.monitor.drift.watch.schedules import decode_schedule, drift_schedules
from quadriga.monitor.watch.schedules import MAX_MISSED, Scheduler
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import timestamp_text
from tests.unit.http_client import NoStore, client_of

DAY_S = 86_400
NOON_S = 20_000 * DAY_S + DAY_S // 2
HOUR_S = 3600


@pytest.fixture
def schedules(tmp_path):
    return drift_schedules(tmp_path / "drift")


@pytest.fixture
def jobs(tmp_path):
    return Jobs(tmp_path / "jobs")


@pytest.fixture
def client(schedules):
    with client_of(schedule_routes(schedules.directory, NoStore())) as test_client:
        yield test_client


def body(**changes):
    return json.dumps({"every": "1h"} | changes).encode()


def schedule(**changes):
    return decode_schedule("one", body(**changes))


def starts(jobs):
    return [jobs.read(job_id).parameters["from"] for job_id in jobs.ids()]


def text(seconds):
    return timestamp_text(int(seconds) * 1000)


def test_a_schedule_is_saved_returned_and_removed(client, schedules):
    path = "/api/models/a%20model/drift-schedule"
    assert client.get(path).status_code == 404
    assert client.delete(path).status_code == 404
    hooks = [
        {"url": "https://example.org/a", "secret": "hush"},
        {"url": "http://[2606:4700::1111]:8000"},
    ]
    parameters = {
        "every": "1h",
        "where": "meta.camera_id=north",
        "by": ["meta.place"],
        "webhooks": hooks,
    }
    answer = client.put(path, content=json.dumps(parameters))
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert "hush" not in answer.text
    assert client.get(path).json() == body
    assert [(hook["url"], hook["signed"]) for hook in body["webhooks"]] == [
        ("https://example.org/a", True),
        ("http://[2606:4700::1111]:8000", False),
    ]
    assert body["model"] == "a model"
    assert (body["baseline"], body["delay"], body["alpha"]) == ("default", "1m", 0.05)
    assert body["next"] <= body["since"] < body["next_at"]
    (file,) = schedules.directory.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert client.put(path, content=b'{"every": "1d"}').json()["where"] is None
    assert client.delete(path).json()["every"] == "1d"
    assert client.get(path).status_code == 404


def test_the_example_of_the_document_is_a_schedule(client):
    page = (Path(__file__).parents[4] / "docs" / "drift.md").read_text()
    path, parameters = re.search(
        r"PUT localhost:8080(/\S+/drift-schedule) -d '(.*?)'", page, re.DOTALL
    ).groups()
    assert client.put(path, content=parameters).status_code == 200


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (b"", "expected the body to be a JSON object with every, baseline, where, signals, "),
        (b"[]", "expected the body to be a JSON object with every"),
        (body(evry="1h"), "expected the body to be a JSON object with every"),
        (body(every="hourly"), "expected every to be a number and one of s, m, h, d, w, got"),
        (body(every="7h"), "expected every to be a part of a day from 5m to 1d, or 1w, got '7h'"),
        (body(every="4m"), "expected every to be a part of a day"),
        (body(every="0m"), "expected every to be a part of a day"),
        (body(every="2d"), "expected every to be a part of a day"),
        (body(delay="-1m"), "expected delay to be a number and one of"),
        (body(delay="25h"), "expected delay to be at most 1d, got '25h'"),
        (body(alpha=0), "expected the body to be a JSON object with every"),
        (body(where={"nothing": 1}), "expected where.nothing to"),
        (body(webhooks=[{"url": "ftp://example.org"}]), "expected webhooks[0].url to be http or"),
        (body(webhooks=[{"url": "http:///path"}]), "expected webhooks[0].url to be http or https"),
        (body(webhooks=[{"url": "http://a:b@c"}]), "expected webhooks[0].url to be http or https"),
        (body(webhooks=[{"url": "http://a:99999"}]), "expected webhooks[0].url to be http or"),
        (body(webhooks=[{"url": "http://a/b\r\nc: d"}]), "expected webhooks[0].url to be http or"),
        (body(webhooks=[{"url": "http://a"}] * 2), "webhooks lists a URL twice"),
        (body(webhooks=[{"url": "http://a", "secret": ""}]), "expected the body to be a JSON"),
    ],
)
def test_invalid_schedules_are_refused(client, schedules, parameters, message):
    answer = client.put("/api/models/one/drift-schedule", content=parameters)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(message)
    assert schedules.models() == []


@pytest.mark.parametrize("name", ["..", ".", "%2e%2e%5c", "ä", "-x"])
def test_a_model_may_have_any_name(client, schedules, name):
    path = f"/api/models/{name}x/drift-schedule"
    assert client.put(path, content=body()).status_code == 200
    (file,) = schedules.directory.iterdir()
    assert file.name.endswith("x.schedule.json")
    assert client.get(path).json()["model"] == schedules.models()[0]


def test_a_name_that_is_too_long_is_refused(client):
    for call in (client.put, client.get, client.delete):
        content = {"content": body()} if call == client.put else {}
        answer = call(f"/api/models/{'x' * 300}/drift-schedule", **content)
        assert answer.status_code == 400


def test_requests_cannot_claim_to_be_scheduled():
    with pytest.raises(QueryError, match="expected no schedule"):
        decode_parameters(b'{"model": "one", "schedule": "1h"}')


def test_each_window_is_submitted_once_it_has_ended(schedules, jobs):
    hooks = [{"url": "https://example.org/", "secret": "hush"}]
    changes = {"where": "label=b", "signals": ["score"], "alpha": 0.1, "webhooks": hooks}
    schedules.put("one", schedule(**changes), NOON_S + 600)
    scheduler = Scheduler(schedules, jobs)
    for later in (0, HOUR_S - 600, HOUR_S - 541):
        scheduler.step(NOON_S + 600 + later)
        assert jobs.ids() == []
    scheduler.step(NOON_S + HOUR_S + 60)
    scheduler.step(NOON_S + HOUR_S + 61)
    (job_id,) = jobs.ids()
    job = jobs.read(job_id)
    assert job.kind == "drift"
    parameters = {
        name: job.parameters[name] for name in ("model", "where", "signals", "alpha", "windows")
    }
    assert parameters == {
        "model": "one", "where": "label=b", "signals": ["score"], "alpha": 0.1, "windows": 24,
    }  # fmt: skip
    assert job.parameters["from"] == text(NOON_S)
    assert job.parameters["to"] == text(NOON_S + HOUR_S)
    assert job.parameters["schedule"] == "1h"
    assert not any("hush" in path.read_text() for path in jobs.directory.rglob("*.json"))


@pytest.mark.parametrize(
    ("every", "first", "windows"),
    [
        ("15m", NOON_S, 96),
        ("6h", NOON_S, 4),
        ("1d", 20_000 * DAY_S, 1),
        ("1w", 19_996 * DAY_S, 1),
    ],
)
def test_windows_begin_with_the_hour_the_day_or_on_monday(schedules, jobs, every, first, windows):
    schedules.put("one", schedule(every=every), NOON_S + 7)
    length = schedules.get("one").every_s
    Scheduler(schedules, jobs).step(first + length + 60)
    assert starts(jobs) == [text(first)]
    assert jobs.read(jobs.ids()[0]).parameters["windows"] == windows
    if every == "1w":
        assert time.gmtime(first).tm_wday == 0


def test_no_window_is_submitted_twice_over_restarts(schedules, jobs):
    schedules.put("one", schedule(), NOON_S)
    for hour in range(1, 5):
        Scheduler(schedules, jobs).step(NOON_S + hour * HOUR_S + 60)
    expected = [text(NOON_S + hour * HOUR_S) for hour in range(4)]
    assert starts(jobs) == expected
    schedules.mark_done("one", NOON_S + 3 * HOUR_S)  # it died before it kept the last one
    Scheduler(schedules, jobs).step(NOON_S + 5 * HOUR_S + 60)
    assert starts(jobs) == [*expected, text(NOON_S + 4 * HOUR_S)]


def test_a_replaced_schedule_continues(schedules, jobs):
    schedules.put("one", schedule(), NOON_S)
    scheduler = Scheduler(schedules, jobs)
    scheduler.step(NOON_S + HOUR_S + 60)
    schedules.put("one", schedule(), NOON_S + 2 * HOUR_S + 30)  # within the delay of a window
    scheduler.step(NOON_S + 2 * HOUR_S + 60)
    assert starts(jobs) == [text(NOON_S), text(NOON_S + HOUR_S)]
    schedules.put("one", schedule(every="6h"), NOON_S + 2 * HOUR_S + 90)
    scheduler.step(NOON_S + 13 * HOUR_S)
    assert starts(jobs)[2:] == [text(NOON_S + 6 * HOUR_S)]


def test_a_removed_schedule_starts_anew(schedules, jobs):
    schedules.put("one", schedule(), NOON_S)
    Scheduler(schedules, jobs).step(NOON_S + HOUR_S + 60)
    schedules.remove("one")
    Scheduler(schedules, jobs).step(NOON_S + 5 * HOUR_S)
    schedules.put("one", schedule(), NOON_S + 10 * HOUR_S)
    Scheduler(schedules, jobs).step(NOON_S + 11 * HOUR_S + 60)
    assert starts(jobs) == [text(NOON_S), text(NOON_S + 10 * HOUR_S)]


def test_missed_windows_are_caught_up_to_a_maximum(schedules, jobs, caplog):
    schedules.put("one", schedule(), NOON_S)
    Scheduler(schedules, jobs).step(NOON_S + 30 * HOUR_S + 60)
    expected = [text(NOON_S + hour * HOUR_S) for hour in range(30 - MAX_MISSED, 30)]
    assert starts(jobs) == expected
    (line,) = caplog.messages
    assert line == f"drift of one: 6 windows from {text(NOON_S)} to {expected[0]} are skipped"


def test_a_failing_schedule_does_not_stop_others(schedules, jobs, caplog):
    for name in ("a", "b", "c"):
        schedules.put(name, schedule(), NOON_S)
    (schedules.directory / "a.schedule.json").write_bytes(b"{")
    (schedules.directory / "b.schedule.json").write_bytes(
        b'{"schedule": {"every": "often"}, "since_s": 5}'
    )
    scheduler = Scheduler(schedules, jobs)
    with caplog.at_level(logging.WARNING):
        scheduler.step(NOON_S + HOUR_S + 60)
        scheduler.step(NOON_S + 2 * HOUR_S + 60)
    assert [jobs.read(job_id).parameters["model"] for job_id in jobs.ids()] == ["c", "c"]
    assert [line[:32] for line in caplog.messages] == ["the drift schedule of b waits: e"]
