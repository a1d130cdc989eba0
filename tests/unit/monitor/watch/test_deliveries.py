"""Deliveries of several destinations at once, and what clients see of those that fail."""

import json
import stat
import threading
from contextlib import ExitStack

import pytest

from quadriga.engine.api.monitoring.schedules import NOT_DELIVERED, schedule_routes
from quadriga.monitor.drift.parameters import DriftParameters
from quadriga.monitor.drift.watch.schedules import decode_schedule, drift_schedules, record_window
from quadriga.monitor.watch import alerts, deliveries
from quadriga.monitor.watch.alerts import DeliveryStatus, Outbox
from quadriga.monitor.watch.deliveries import DeliveryQueues, WebhookClient, run_deliveries
from quadriga.monitor.watch.webhooks import ANY_PUBLIC, parse_webhook_hosts
from tests.background import in_background, until
from tests.unit.http_client import NoStore, client_of
from tests.unit.monitor.drift import window_reports
from tests.unit.monitor.drift.window_reports import MODEL, parameters, report
from tests.unit.monitor.watch.test_webhook_client import raw_server, trickle

LOCAL = parse_webhook_hosts("127.0.0.1")
PATH = f"/api/models/{MODEL}/drift-schedule"


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "drift"


def put(directory, *hooks, model=MODEL):
    schedule = decode_schedule(model, json.dumps({"every": "1h", "webhooks": hooks}).encode())
    drift_schedules(directory).put(model, schedule)


def outbox_of(directory):
    return Outbox(drift_schedules(directory))


def queues_of(directory, hosts=LOCAL, timeout_s=0.3):
    return DeliveryQueues([outbox_of(directory)], WebhookClient(hosts, timeout_s))


def client(directory, hosts=ANY_PUBLIC):
    return client_of(schedule_routes(directory, NoStore(), hosts))


def test_a_receiver_that_trickles_delays_no_other(directory, monkeypatch):
    monkeypatch.setattr(deliveries, "POLL_INTERVAL_S", 0.01)
    poster = WebhookClient(LOCAL, timeout_s=30)
    outbox = outbox_of(directory)
    with window_reports.receiver() as good, in_background(run_deliveries, [outbox], poster):
        with raw_server(lambda connection, over: trickle(connection, over, b"HTTP/1.1 200 OK\r\nX: ")) as port:  # fmt: skip
            slow = f"http://127.0.0.1:{port}/"
            put(directory, {"url": slow}, {"url": good.url})
            for hour, alarms in enumerate("abc"):
                record_window(directory, report(hour, alarms=alarms), parameters(hour))
            until(lambda: len(good.taken) == 3)
            assert outbox.waiting(MODEL)[slow] == 3
            assert slow not in outbox.delivery_status(MODEL)  # it still sends
        until(lambda: slow in outbox.delivery_status(MODEL))
    assert [body["signals"][0]["name"] for body in good.taken] == ["a", "b", "c"]


def alert(directory, hour, *, model=MODEL):
    ends = parameters(hour)
    window = DriftParameters(model, start=ends.start, end=ends.end)
    record_window(directory, report(hour, alarms="abcd"[hour % 4]), window)


def test_slow_receivers_leave_threads_to_new_ones_and_both_to_proven_ones(directory, monkeypatch):
    monkeypatch.setattr(deliveries, "MAX_THREADS", 4)
    monkeypatch.setattr(deliveries, "MAX_UNPROVEN_THREADS", 3)
    monkeypatch.setattr(deliveries, "MAX_SLOW_THREADS", 2)
    monkeypatch.setattr(deliveries, "SLOW_S", 0.2)
    thread_counts = [0]

    def hold(_, over):
        thread_counts.append(sum(thread.name == "alerts" for thread in threading.enumerate()))
        over.wait(20)

    with ExitStack() as stack:
        proven, new = (stack.enter_context(window_reports.receiver()) for _ in range(2))
        ports = [stack.enter_context(raw_server(hold)) for _ in range(9)]
        poster = WebhookClient(LOCAL, 1.5)
        outbox = outbox_of(directory)
        queues = DeliveryQueues([outbox], poster)

        put(directory, {"url": proven.url})
        alert(directory, 0)
        queues.deliver(0)
        put(directory, *({"url": f"http://127.0.0.1:{port}/"} for port in ports), model="slow")
        alert(directory, 1, model="slow")
        alert(directory, 1)
        queues.start_due(0)
        until(lambda: len(proven.taken) == 2)
        assert outbox.delivery_status("slow") == {}  # the first of them are still waited for
        queues.join()

        poster.timeout_s = 0.25
        while len(outbox.delivery_status("slow")) < len(ports):
            queues.deliver(0)
        poster.timeout_s = 1.5
        put(directory, {"url": new.url}, model="new")
        alert(directory, 2, model="new")
        queues.start_due(3600)
        until(lambda: new.taken)
        assert sum(thread.is_alive() for thread in threading.enumerate() if thread.name == "alerts") >= 2  # fmt: skip
        queues.join()
    assert 2 <= max(thread_counts) <= 4


def test_errors_of_hosts_that_the_settings_do_not_name_read_the_same(directory):
    url = "https://example.org/a"
    put(directory, {"url": url})
    outbox = outbox_of(directory)
    errors = [
        "expected an answer, got: [Errno 111] Connection refused",
        "expected a status of 200 to 299, got 404",
        "expected a connection, got none",
        "expected an answer in time, got none",
        "expected an allowed address, got another",
    ]
    shown = []
    for hour, error in enumerate(errors):
        record_window(directory, report(hour, alarms="abcd"[hour % 4]), parameters(hour))
        (delivery,) = outbox.pending()
        outbox.mark_failed(delivery, error, 5.0)
        outbox.drop(delivery)
        for setting in ("", "example.org", "0.0.0.0/0,public"):
            with client(directory, parse_webhook_hosts(setting)) as http:
                (state,) = http.get(PATH).json()["webhooks"]
            shown.append((setting, state["error"]))
    assert {error for setting, error in shown if setting != "example.org"} == {NOT_DELIVERED}
    assert [error for setting, error in shown if setting == "example.org"] == errors


def test_a_refused_address_is_logged_with_the_setting_and_tried_again(directory, caplog):
    with window_reports.receiver() as receiver:
        put(directory, {"url": receiver.url, "secret": "hush"})
        record_window(directory, report(1, alarms="a"), parameters(1))
        queues_of(directory, ANY_PUBLIC).deliver(0)
        assert receiver.got == []
        (line,) = [line for line in caplog.messages if "alert of" in line]
        assert line.endswith("127.0.0.1; the setting webhook_hosts says which are")
        assert "hush" not in caplog.text
        with client(directory) as http:
            answer = http.get(PATH)
        assert "hush" not in answer.text
        (state,) = answer.json()["webhooks"]
        assert (state["waiting"], state["error"], state["signed"]) == (1, NOT_DELIVERED, True)
        queues_of(directory).deliver(5)  # started again with the setting
        assert len(receiver.taken) == 1


def test_an_alarm_has_one_start_until_it_is_over(directory):
    with window_reports.receiver() as receiver:
        put(directory, {"url": receiver.url, "format": "alertmanager"})
        for hour, alarms in enumerate(("a", "ab", "", "a")):
            record_window(directory, report(hour, alarms=alarms), parameters(hour))
        for path in directory.rglob("*.json"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        queues_of(directory).deliver(0)
    groups = receiver.taken
    assert [group["status"] for group in groups] == ["firing", "firing", "resolved", "firing"]
    starts = [group["alerts"][0]["startsAt"][11:13] for group in groups]
    assert starts == ["00", "00", "00", "03"]
    assert len({group["groupKey"] for group in groups}) == 1


@pytest.mark.parametrize(
    ("setting", "url", "message"),
    [
        ("", "http://127.0.0.1:9000", "an address that the setting webhook_hosts allows, or a public one, got '127.0.0.1'"),
        ("", "http://2130706433/", "an address that the setting webhook_hosts allows, or a public one, got '2130706433'"),
        ("", "http://0x7f000001/", "an address that the setting webhook_hosts allows, or a public one, got '0x7f000001'"),
        ("", "http://169.254.169.254/latest", "an address that the setting webhook_hosts allows, or a public one, got"),
        ("", "http://[::ffff:127.0.0.1]/", "an address that the setting webhook_hosts allows, or a public one, got"),
        ("", "http://localhost:9000/", "a public host, or one that the setting webhook_hosts allows, got 'localhost'"),
        ("hooks", "https://example.org/", "a host that the setting webhook_hosts allows, got 'example.org'"),
        ("", "http://1.2.3.4.5/", "a host name or an IP address, got '1.2.3.4.5'"),
    ],
)  # fmt: skip
def test_hosts_are_checked_when_a_schedule_is_stored(directory, setting, url, message):
    content = {"every": "1h", "webhooks": [{"url": "https://example.org/x"} if setting == "" else {"url": "http://hooks"}, {"url": url}]}  # fmt: skip
    with client(directory, parse_webhook_hosts(setting)) as http:
        answer = http.put(PATH, content=json.dumps(content))
        assert answer.status_code == 400
        expected = f"expected the host of webhooks[1].url to be {message}"
        assert answer.json()["error"].startswith(expected)
        assert drift_schedules(directory).models() == []


def test_a_format_is_answered_and_others_are_refused(directory):
    hook = {"url": "https://example.org/x", "format": "standard", "secret": "whsec_aGkK"}
    with client(directory) as http:
        answer = http.put(PATH, content=json.dumps({"every": "1h", "webhooks": [hook]}))
        assert answer.json()["webhooks"][0]["format"] == "standard"
        assert "aGkK" not in answer.text + http.get(PATH).text + http.delete(PATH).text
        for changes in ({"format": "slack"}, {"secret": "whsec_%"}):
            content = json.dumps({"every": "1h", "webhooks": [hook | changes]})
            answer = http.put(PATH, content=content)
            assert answer.status_code == 400
            assert "aGkK" not in answer.text


def test_states_are_not_lost_where_destinations_end_at_once(directory):
    hooks = [{"url": f"https://example.org/{at}"} for at in range(10)]
    put(directory, *hooks)
    record_window(directory, report(1, alarms="a"), parameters(1))
    outbox = outbox_of(directory)
    threads = [
        threading.Thread(target=outbox.mark_delivered, args=(delivery, 7.0))
        for delivery in outbox.pending()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    delivered = DeliveryStatus("1970-01-01T00:00:07.000Z")
    assert outbox.delivery_status(MODEL) == {hook["url"]: delivered for hook in hooks}


def test_a_full_disk_does_not_end_the_deliveries(directory, monkeypatch, caplog):
    monkeypatch.setattr(deliveries, "MIN_PAUSE_S", 0.01)
    with window_reports.receiver() as receiver:
        put(directory, {"url": receiver.url})
        record_window(directory, report(1, alarms="a"), parameters(1))
        with monkeypatch.context() as full:

            def no_space(*_):
                raise OSError(28, "No space left on device")

            full.setattr(alerts, "write_model_file", no_space)
            queues = queues_of(directory)
            for _ in range(2):
                queues.deliver(0)
        assert len(receiver.got) == 1  # it was accepted, and is not sent again
        assert [line for line in caplog.messages if "the alerts wait" in line] == [
            "the alerts wait: [Errno 28] No space left on device"
        ]
