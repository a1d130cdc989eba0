"""Deliveries to webhooks: signatures, retries, restarts."""

import hashlib
import hmac
import json
import re
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from quadriga.monitor.drift.watch.schedules import (
    decode_schedule,
    drift_schedules,
    read_history,
    record_window,
)
from quadriga.monitor.report.schema import Report
from quadriga.monitor.watch import alerts, deliveries, schedules
from quadriga.monitor.watch.alerts import MAX_TRIES, Outbox
from quadriga.monitor.watch.deliveries import DeliveryQueues, WebhookClient, run_deliveries
from quadriga.monitor.watch.schedules import run_scheduler
from quadriga.monitor.watch.webhooks import parse_webhook_hosts
from quadriga.store.jobs import runner as runner_module
from quadriga.store.jobs.jobs import Job, Jobs
from quadriga.store.jobs.runner import JobRunner
from tests.background import in_background, until
from tests.unit.http_client import NoStore
from tests.unit.monitor.drift import window_reports
from tests.unit.monitor.drift.fake_drift import run_drift
from tests.unit.monitor.drift.window_reports import MODEL, parameters, report

SECRET = "between us"
PAGE = Path(__file__).parents[4] / "docs" / "drift-reference.md"
CLIENT = WebhookClient(parse_webhook_hosts("127.0.0.1"))


@pytest.fixture
def receiver():
    with window_reports.receiver() as running:
        yield running


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "drift"


def schedule(directory, *hooks):
    put(directory, {"every": "1h", "webhooks": hooks})


def put(directory, parameters, now_s=None):
    schedule = decode_schedule(MODEL, json.dumps(parameters).encode())
    drift_schedules(directory).put(MODEL, schedule, now_s)


def outbox_of(directory):
    return Outbox(drift_schedules(directory))


def queues_of(directory):
    return DeliveryQueues([outbox_of(directory)], CLIENT)


def waiting(directory):
    return sum(outbox_of(directory).waiting(MODEL).values())


def test_an_alert_is_signed_with_its_time(directory, receiver):
    schedule(directory, {"url": receiver.url, "secret": SECRET})
    record_window(directory, report(1, alarms="ab"), parameters(1))
    queues_of(directory).deliver(1000.5)
    ((headers, body),) = receiver.got
    assert headers["Quadriga-Timestamp"] == "1000"
    expected = hmac.new(SECRET.encode(), b"1000." + body, hashlib.sha256).hexdigest()
    assert headers["Quadriga-Signature"] == f"sha256={expected}"
    described = {}
    exec(re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1], described)
    assert described["is_genuine"](SECRET, headers, body)
    assert not described["is_genuine"](SECRET, headers, body + b" ")
    assert headers["Content-Type"] == "application/json"
    signal = {"effect": 0.6, "least_effect": 0.1, "name": "b", "p_adjusted": 0.001}
    alert = json.loads(body)
    assert alert.pop("signals")[0] == signal
    assert alert == {
        "event": "drift",
        "model": MODEL,
        "window": {"from": "1970-01-01T01:00:00.000Z", "to": "1970-01-01T02:00:00.000Z", "n": 200},
        "report": f"/api/reports/{1:019d}-0000",
    }
    shown = re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    assert json.loads(shown).keys() == {"signals", *alert}
    assert json.loads(shown)["signals"][0].keys() == signal.keys()
    assert waiting(directory) == 0
    assert (
        outbox_of(directory).delivery_status(MODEL)[receiver.url].delivered_at
        == "1970-01-01T00:16:40.500Z"
    )


def test_without_a_secret_there_is_no_signature(directory, receiver):
    schedule(directory, {"url": receiver.url})
    record_window(directory, report(1, alarms="a"), parameters(1))
    queues_of(directory).deliver(0)
    ((headers, _),) = receiver.got
    assert "Quadriga-Signature" not in headers


def test_the_end_of_a_job_is_delivered_without_a_schedule(directory, receiver):
    receiver.first = [503]
    job = Job("1" * 19 + "-0a0a", "export", {"webhook": receiver.url}, "", state="failed", error="no")  # fmt: skip
    for _ in range(2):
        outbox_of(directory).queue_end(job)
    for now_s in (0, 4, 5, 6):
        queues_of(directory).deliver(now_s)
    (message,) = receiver.taken
    assert len(receiver.got) == 2
    assert message == {
        "event": "ended", "job": job.id, "kind": "export", "state": "failed", "error": "no", "report": None,
        "result": None,
    }  # fmt: skip
    text = PAGE.with_name("store.md").read_text().partition("## Jobs\n")[2]
    shown = re.search(r"```json\n(\{\"event.*?)```", text, re.DOTALL)[1]
    assert json.loads(shown).keys() == message.keys()
    assert not list(directory.rglob("*.json")), "no status is left of a job's webhook"


def test_failed_deliveries_are_retried_even_after_a_restart(directory, receiver, caplog):
    receiver.first = [503, 0, 302]
    schedule(directory, {"url": receiver.url, "secret": SECRET})
    record_window(directory, report(1, alarms="a"), parameters(1))
    now_s, tries = 0.0, []
    while waiting(directory):
        queues_of(directory).deliver(now_s)  # each time as after a restart
        if len(receiver.got) > len(tries):
            tries.append(now_s)
        now_s += 1
    assert tries == [0, 5, 20, 65]
    assert len({headers["Quadriga-Delivery"] for headers, _ in receiver.got}) == 1
    assert len({headers["Quadriga-Signature"] for headers, _ in receiver.got}) == 4
    assert len(receiver.taken) == 1
    status = outbox_of(directory).delivery_status(MODEL)[receiver.url]
    assert status.error == "expected a status of 200 to 299, got 302"
    assert status.failed_at < status.delivered_at
    (line,) = [line for line in caplog.messages if "alert of" in line]
    assert line.startswith(f"alert of {MODEL} to {receiver.url[7:-5]} is tried again: expected a ")


def test_deliveries_to_an_unreachable_receiver_are_given_up(directory):
    url = "http://127.0.0.1:9/token"
    schedule(directory, {"url": url})
    record_window(directory, report(1, alarms="a"), parameters(1))
    outbox, now_s, tries = outbox_of(directory), 0.0, 0
    while waiting(directory):
        queues_of(directory).deliver(now_s)
        now_s += alerts.MAX_PAUSE_S
        tries += 1
    assert tries == MAX_TRIES
    assert outbox.delivery_status(MODEL)[url].given_up == 1
    assert outbox.delivery_status(MODEL)[url].error == "expected a connection, got none"


def test_a_failing_webhook_does_not_delay_others(directory, receiver):
    receiver.first = [500]
    with window_reports.receiver() as second_receiver:
        schedule(directory, {"url": receiver.url}, {"url": second_receiver.url})
        for hour, alarms in enumerate("abc"):
            record_window(directory, report(hour, alarms=alarms), parameters(hour))
        queues_of(directory).deliver(0)
        assert len(receiver.got) == 1
        assert [alert["signals"][0]["name"] for alert in second_receiver.taken] == ["a", "b", "c"]
    for now_s in (1, 2, 3, 9):
        queues_of(directory).deliver(now_s)
    assert sorted(alert["signals"][0]["name"] for alert in receiver.taken) == ["a", "b", "c"]


def test_a_removed_webhook_gets_no_more_deliveries(directory, receiver):
    schedule(directory, {"url": receiver.url})
    record_window(directory, report(1, alarms="a"), parameters(1))
    schedule(directory)
    queues_of(directory).deliver()
    assert (receiver.got, waiting(directory)) == ([], 0)


def test_a_damaged_delivery_does_not_stop_others(directory, receiver):
    schedule(directory, {"url": receiver.url})
    record_window(directory, report(1, alarms="a"), parameters(1))
    (directory / "outbox" / "0.json").write_bytes(b"{")
    queues_of(directory).deliver()
    assert len(receiver.taken) == 1


@contextmanager
def processes(directory):
    """Do what the process of the jobs does."""
    jobs = Jobs(directory.parent / "jobs")
    with (
        in_background(run_scheduler, drift_schedules(directory), jobs),
        in_background(run_deliveries, [outbox_of(directory)], CLIENT),
        in_background(JobRunner(jobs, {"drift": run_drift}, NoStore(), None).run),
    ):
        yield jobs


def test_a_schedule_runs_to_the_alert_and_goes_on_after_a_restart(directory, receiver, monkeypatch):
    monkeypatch.setattr(runner_module, "POLL_INTERVAL_S", 0.005)
    monkeypatch.setattr(schedules, "POLL_INTERVAL_S", 0.005)
    monkeypatch.setattr(deliveries, "POLL_INTERVAL_S", 0.005)
    monkeypatch.setattr(alerts, "MIN_PAUSE_S", 0.01)
    receiver.first = [500]
    parameters = {"every": "1d", "webhooks": [{"url": receiver.url}]}
    put(directory, parameters, time.time() - 3 * 86_400 - 120)
    with processes(directory) as jobs:
        until(lambda: receiver.taken)
        until(lambda: len(read_history(directory, MODEL).windows) >= 3)
        until(lambda: all(job.ended_at for job in jobs.all()))
    windows = read_history(directory, MODEL).windows
    assert [alert["event"] for alert in receiver.taken] == ["drift"]
    assert receiver.taken[0]["report"] == f"/api/reports/{windows[0].report}"
    assert len({alert.start for alert in windows}) == len(windows)
    last = msgspec.json.decode(jobs.result(windows[-1].report).read_bytes(), type=Report)
    assert last.history == windows
    put(directory, parameters | {"every": "5m", "delay": "0s"})
    drift_schedules(directory).mark_done(MODEL, (int(time.time()) // 300 - 1) * 300)
    with processes(directory) as jobs:
        until(lambda: len(read_history(directory, MODEL).windows) > len(windows))
        until(lambda: all(job.ended_at for job in jobs.all()))
    assert len(receiver.taken) == 1
    assert waiting(directory) == 0
