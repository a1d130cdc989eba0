"""The history of a model's windows, and its alerts."""

import json
import logging
import time

import pytest

from quadriga.engine.api.monitoring.schedules import schedule_routes
from quadriga.monitor.drift.watch import schedules as schedules_module
from quadriga.monitor.drift.watch.schedules import (
    decode_schedule,
    drift_schedules,
    read_history,
    record_failure,
    record_window,
    with_history,
)
from quadriga.monitor.watch import schedules
from quadriga.monitor.watch.mutes import MuteBody, MuteStore
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scope
from tests.unit.http_client import NoStore, client_of
from tests.unit.monitor.drift.window_reports import MODEL, parameters, report

HOOK = "http://127.0.0.1:9/hook"


@pytest.fixture
def directory(tmp_path):
    folder = tmp_path / "drift"
    parameters = {"every": "1h", "webhooks": [{"url": HOOK}]}
    schedule = decode_schedule(MODEL, json.dumps(parameters).encode())
    drift_schedules(folder).put(MODEL, schedule)
    return folder


def queued(directory):
    """Return what waits to be told, and forget it."""
    alerts = []
    for path in sorted((directory / "outbox").glob("*.json")):
        body = json.loads(json.loads(path.read_bytes())["body"])
        alerts.append((body["event"], [signal["name"] for signal in body["signals"]]))
        path.unlink()
    return alerts


def test_history_is_returned_oldest_first(directory):
    for hour in range(4):
        record_window(directory, report(hour, alarms="a" * (hour == 2)), parameters(hour))
    with client_of(schedule_routes(directory, NoStore())) as client:
        path = f"/api/models/{MODEL}/drift"
        windows = client.get(path).json()["windows"]
        assert [window["status"] for window in windows] == ["ok", "ok", "drift", "ok"]
        assert windows[2]["from"] == "1970-01-01T02:00:00.000Z"
        assert windows[2]["to"] == "1970-01-01T03:00:00.000Z"
        assert (windows[2]["n"], windows[2]["report"]) == (200, f"{2:019d}-0000")
        assert windows[2]["signals"]["a"] == {
            "p_adjusted": 0.001, "effect": 0.5, "alarm": True, "status": "ok",
        }  # fmt: skip
        query = {"from": "1970-01-01T01:00:00Z", "to": "1970-01-01T03:00:00Z", "signal": "b"}
        response = client.get(path, params=query).json()
        assert response["windows"] == [
            {**window, "signals": {"b": window["signals"]["b"]}} for window in windows[1:3]
        ]
        assert client.get(path, params={"from": "-1h"}).json()["windows"] == []
        ever = {"from": "0001-01-01T00:00:00+23:00", "to": "9999-12-31T23:59:59-23:00"}
        assert client.get(path, params=ever).json()["windows"] == windows
        answer = client.get(path, params={"to": "later"})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("expected to to be a moment such as")
        assert client.get("/api/models/nobody/drift").json() == {"windows": []}


def test_a_report_has_the_windows_of_its_baseline(directory, monkeypatch):
    monkeypatch.setattr(schedules_module, "MAX_SHOWN", 3)
    record_window(directory, report(0, baseline_n=500), parameters(0))
    for hour in range(1, 4):
        record_window(directory, report(hour), parameters(hour))
    record_failure(directory, "failed", parameters(4), "expected a baseline, got none")
    current = report(5, alarms="b")
    latest = with_history(directory, current, parameters(5))
    assert [(window.start[11:13], window.status) for window in latest.history] == [
        ("03", "ok"), ("04", "error"), ("05", "drift"),
    ]  # fmt: skip
    record_window(directory, current, parameters(5))
    assert with_history(directory, current, parameters(5)) == latest


def test_recording_a_report_again_changes_nothing(directory, caplog):
    for _ in range(2):
        record_window(directory, report(1, alarms="a"), parameters(1))
    (window,) = read_history(directory, MODEL).windows
    assert window.report == f"{1:019d}-0000"
    assert queued(directory) == [("drift", ["a"])]
    assert len(caplog.messages) == 1
    (directory / f"{MODEL}.watch.json").unlink()  # it died before that was kept
    record_window(directory, report(1, alarms="a"), parameters(1))
    assert len(read_history(directory, MODEL).windows) == 1


def test_incomplete_lines_are_skipped(directory):
    record_window(directory, report(1), parameters(1))
    path = directory / f"{MODEL}.jsonl"
    complete = path.read_bytes()
    path.write_bytes(complete + b"\n" + complete[: len(complete) // 2])
    record_window(directory, report(2), parameters(2))
    assert [window.start[11:13] for window in read_history(directory, MODEL).windows] == [
        "01",
        "02",
    ]


def test_the_older_half_of_a_large_history_is_dropped(directory, monkeypatch):
    monkeypatch.setattr(schedules, "MAX_BYTES", 3000)
    for hour in range(20):
        record_window(directory, report(hour), parameters(hour))
    hours = [window.start[11:13] for window in read_history(directory, MODEL).windows]
    assert hours == [f"{hour:02d}" for hour in range(20)][-len(hours) :]
    assert 2 < len(hours) < 12


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (["", "", ""], []),
        (["a", "a", "a"], [("drift", ["a"])]),
        (["a", "a", "", ""], [("drift", ["a"]), ("recovered", ["a"])]),
        (["a", "ab", "ab"], [("drift", ["a"]), ("drift", ["b", "a"])]),
        (["ab", "b", ""], [("drift", ["b", "a"]), ("recovered", ["b"])]),
        (["a", "", "a"], [("drift", ["a"]), ("recovered", ["a"]), ("drift", ["a"])]),
        (["a", "?", "a"], [("drift", ["a"])]),
        (["a", "?", ""], [("drift", ["a"]), ("recovered", ["a"])]),
        (["a", "b?a"], [("drift", ["a"]), ("drift", ["b"])]),
        (["a", "b?a", "a"], [("drift", ["a"]), ("drift", ["b"])]),
    ],
    ids=lambda value: "-".join(value) if value and isinstance(value[0], str) else "",
)
def test_an_alarm_is_sent_once_and_again_when_it_is_over(directory, windows, expected):
    alerts = []
    for hour, signals in enumerate(windows):
        alarms, unknown, silent = signals.partition("?")
        silent = silent or ("abcd" if unknown else "")
        record_window(directory, report(hour, alarms=alarms, silent=silent), parameters(hour))
        alerts += queued(directory)
    assert alerts == expected


def test_an_alarm_is_a_line_of_the_log_in_every_window(directory, caplog):
    with caplog.at_level(logging.WARNING):
        for hour in range(2):
            record_window(directory, report(hour, alarms="abcd"), parameters(hour))
        record_window(directory, report(2), parameters(2))
    assert len(caplog.messages) == 2
    assert caplog.messages[0] == (
        f"drift of {MODEL} from 1970-01-01T00:00:00.000Z to 1970-01-01T01:00:00.000Z: "
        "d (wasserstein_iqr 0.8), c (wasserstein_iqr 0.7), b (wasserstein_iqr 0.6) and 1 more, "
        f"report {0:019d}-0000"
    )


def test_a_state_of_0_2_is_read(directory):
    state = {"last": "1", "baseline": "a/b/1", "alarmed": ["a"], "followed": {"a": {"series": {}}}}
    path = directory / f"{MODEL}.watch.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(state))
    record_window(directory, report(1), parameters(1))
    assert queued(directory) == [("recovered", ["a"])]


NOW_S = 1_790_000_000.0


def mute(directory, *signals, hours=1):
    until = timestamp_text(int((NOW_S + hours * 3600) * 1000))
    return MuteStore(directory).put(MODEL, MuteBody(until, list(signals)), "mara", NOW_S)


def record(directory, hour, alarms, now_s=NOW_S):
    record_window(directory, report(hour, alarms=alarms), parameters(hour), now_s)


def test_a_muted_alarm_alerts_nobody_but_is_kept_as_without_it(directory, caplog):
    mute(directory)
    record(directory, 1, "ab")
    assert queued(directory) == []
    (window,) = read_history(directory, MODEL).windows
    assert [name for name, signal in window.signals.items() if signal.alarm] == ["a", "b"]
    assert window.status == "drift"
    assert len(caplog.messages) == 1


def test_what_still_alarms_when_the_mute_ends_alerts_then(directory):
    mute(directory)
    record(directory, 1, "a")
    record(directory, 2, "a", NOW_S + 3599.9)
    assert queued(directory) == []
    record(directory, 3, "a", NOW_S + 3600)
    assert queued(directory) == [("drift", ["a"])]
    record(directory, 4, "a", NOW_S + 7200)
    assert queued(directory) == []
    record(directory, 5, "", NOW_S + 7200)
    assert queued(directory) == [("recovered", ["a"])]


def test_a_muted_alarm_that_passed_is_no_recovery(directory):
    mute(directory)
    record(directory, 1, "a")
    record(directory, 2, "")
    record(directory, 3, "", NOW_S + 7200)
    assert queued(directory) == []


def test_an_alarm_from_before_the_mute_recovers_as_ever(directory):
    record(directory, 1, "a")
    assert queued(directory) == [("drift", ["a"])]
    mute(directory)
    record(directory, 2, "a")
    record(directory, 3, "ab")
    assert queued(directory) == []
    record(directory, 4, "b")
    assert queued(directory) == [("recovered", ["a"])]
    record(directory, 5, "a")
    assert queued(directory) == []


def test_signals_that_are_not_muted_alert_without_the_muted_ones(directory):
    mute(directory, "a", "unheard of")
    record(directory, 1, "ab")
    assert queued(directory) == [("drift", ["b"])]
    record(directory, 2, "abc")
    assert queued(directory) == [("drift", ["c", "b"])]
    record(directory, 3, "a")
    assert queued(directory) == [("recovered", ["b", "c"])]


def test_the_mute_of_another_team_or_model_mutes_nothing(directory):
    MuteStore(directory).within(Scope("north")).put(
        MODEL, MuteBody(timestamp_text(int((NOW_S + 60) * 1000))), "eve", NOW_S
    )
    MuteStore(directory).put(
        "other", MuteBody(timestamp_text(int((NOW_S + 60) * 1000))), "eve", NOW_S
    )
    record(directory, 1, "a")
    assert queued(directory) == [("drift", ["a"])]


def test_without_a_time_it_is_now_that_counts(directory):
    later = timestamp_text(time.time_ns() // 1_000_000 + 3_600_000)
    MuteStore(directory).put(MODEL, MuteBody(later), "mara")
    record_window(directory, report(1, alarms="a"), parameters(1))
    assert queued(directory) == []
    MuteStore(directory).remove(MODEL)
    record_window(directory, report(2, alarms="a"), parameters(2))
    assert queued(directory) == [("drift", ["a"])]
