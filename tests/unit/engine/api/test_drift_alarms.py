"""The routes about alarms that are known: acknowledge and mute, in whose name, and what a model's entry says of it."""

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from quadriga.engine.app import Application
from quadriga.engine.settings import Settings
from quadriga.monitor.report.schema import Data, Metric, PastWindow, Window
from quadriga.monitor.watch.mutes import MuteStore
from quadriga.store.access_keys import create_key
from quadriga.store.database import migrate, writer_engine
from quadriga.store.records import timestamp_text
from quadriga.store.scope import Scope
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.asgi_request import send_request
from tests.unit.engine.drift_reports import (
    MODEL,
    drift_report,
    keep_report,
    numeric,
    report_id,
)

MUTE = f"/api/models/{MODEL}/drift-mute"
ACKNOWLEDGE = f"/api/reports/{report_id(0)}/acknowledge"
DARK = numeric("image.brightness", 50, 20)


class Keyed(NamedTuple):
    """A server with keys of roles and teams."""

    server: Application
    settings: Settings
    keys: dict[str, str]

    def call(self, key: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request; return status and JSON."""
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()  # fmt: skip
        answer = send_request(self.server, method, path, headers, body=content)
        return answer.status, json.loads(answer.body)


@pytest.fixture
def keyed(tmp_path) -> Iterator[Keyed]:
    settings = Settings(models=str(SAMPLE_MODELS), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    with writer_engine(settings.database_url) as engine:
        keys = {role: create_key(engine, name=role, roles=[role])[1] for role in ("read", "annotate", "monitor", "admin")}  # fmt: skip
        for team in ("north", "south"):
            keys[team] = create_key(engine, name=team, roles=["monitor"], team=team)[1]
        keys["other"] = create_key(engine, name="other", roles=["monitor"], models=["other-*"])[1]
    server = Application(settings)
    assert server._keys is not None
    server._keys.refresh()
    yield Keyed(server, settings, keys)
    server.close()


def until(hours: float = 1) -> str:
    return timestamp_text(time.time_ns() // 1_000_000 + int(hours * 3_600_000))


def entry(keyed: Keyed, key: str = "read") -> Any:
    """Return what the list of models says of the model."""
    (found,) = [m for m in keyed.call(key, "GET", "/api/models")[1]["models"] if m["name"] == MODEL]
    assert keyed.call(key, "GET", f"/api/models/{MODEL}")[1] == found
    return found


def test_an_alarm_is_acknowledged_once_in_the_name_of_the_first(keyed):
    keep_report(keyed.settings, drift_report(0, DARK))
    assert keyed.call("read", "GET", ACKNOWLEDGE)[0] == 404
    assert entry(keyed)["drift"]["acknowledged"] is None
    status, first = keyed.call("monitor", "POST", ACKNOWLEDGE, {"note": "lens"})
    assert (status, first["by"], first["note"], first["report"]) == (200, "monitor", "lens", report_id(0))  # fmt: skip
    assert keyed.call("admin", "POST", ACKNOWLEDGE) == (200, first)
    assert keyed.call("read", "GET", ACKNOWLEDGE) == (200, first)
    assert entry(keyed)["drift"]["acknowledged"] == first


@pytest.mark.parametrize("key", ["read", "annotate"])
def test_who_may_not_monitor_changes_nothing(keyed, key):
    keep_report(keyed.settings, drift_report(0, DARK))
    assert keyed.call(key, "POST", ACKNOWLEDGE)[0] == 403
    assert keyed.call(key, "PUT", MUTE, {"until": until()})[0] == 403
    assert keyed.call(key, "DELETE", MUTE)[0] == 403
    assert keyed.call(key, "GET", ACKNOWLEDGE)[0] == 404
    assert keyed.call(key, "GET", MUTE)[0] == 404


def test_nobody_acknowledges_the_report_of_another_team_or_model(keyed):
    keep_report(keyed.settings, drift_report(0, DARK), Scope("north"))
    for key in ("south", "other"):
        for method in ("POST", "GET"):
            assert keyed.call(key, method, ACKNOWLEDGE)[0] == 404
    assert keyed.call("north", "POST", ACKNOWLEDGE)[0] == 200
    assert keyed.call("south", "GET", ACKNOWLEDGE)[0] == 404


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b"\xff", {"note": 5}, {"note": "x" * 1001}, {"by": "eve"}]
)
def test_what_is_no_acknowledgement_is_refused(keyed, body):
    keep_report(keyed.settings, drift_report(0, DARK))
    status, answer = keyed.call("monitor", "POST", ACKNOWLEDGE, body)
    assert status == 400
    assert answer["error"].startswith("expected")
    assert keyed.call("monitor", "GET", ACKNOWLEDGE)[0] == 404


def test_a_report_without_an_alarm_is_not_acknowledged(keyed):
    keep_report(keyed.settings, drift_report(0, numeric("score", 5, 5)))
    status, answer = keyed.call("monitor", "POST", ACKNOWLEDGE)
    assert status == 400
    assert answer["error"].endswith("got drift with the status ok")
    assert entry(keyed)["drift"] == {"report": report_id(0), "created": entry(keyed)["drift"]["created"], "status": "ok",
                                     "acknowledged": None, "muted": False, "undecided": []}  # fmt: skip


FEW = numeric("score", 5, 9, alarm=False, status="insufficient", reason="too alike", n_eff=(60, 65))
USUAL = numeric("latency_ms", 5, 5)
PAST = [PastWindow(None, None, 9, "ok", "r")]


@pytest.mark.parametrize(
    ("reports", "counts"),
    [
        ([("adhoc", DARK), ("adhoc", USUAL)], 0),
        ([("scheduled", DARK), ("adhoc", USUAL)], 0),
        ([("scheduled", DARK), ("scheduled", USUAL)], 1),
        ([("scheduled", DARK), ("scheduled", FEW)], 0),
        ([("scheduled", USUAL), ("adhoc", FEW)], 0),
        ([("scheduled", USUAL), ("adhoc", DARK)], 1),
        ([("adhoc", USUAL), ("adhoc", FEW)], 1),
        ([("scheduled", DARK), ("scheduled", USUAL), ("adhoc", USUAL)], 1),
    ],
)
def test_an_alarm_stays_until_a_later_scheduled_comparison_clears_it(keyed, reports, counts):
    for number, (kind, signal) in enumerate(reports):
        history = PAST if kind == "scheduled" else []
        keep_report(keyed.settings, drift_report(number, signal, USUAL, history=history))
    last = entry(keyed)["drift"]
    assert last["report"] == report_id(counts)
    is_few = reports[counts][1] is FEW
    assert last["undecided"] == (["score"] if is_few else [])


@pytest.mark.parametrize(
    ("kinds", "counts"),
    [([40, 0], 0), ([40, 38], 1), ([0, 0], 1), ([0, 40], 1)],
)
def test_an_evaluation_without_ground_truth_replaces_no_other(keyed, kinds, counts):
    for number, n in enumerate(kinds):
        report = drift_report(number, data=Data(Window(n=n)), metrics=[Metric("AP", 0.5)])
        keep_report(keyed.settings, replace(report, kind="evaluation"))
    assert entry(keyed)["evaluation"]["report"] == report_id(counts)


def test_a_mute_is_put_read_and_ended(keyed):
    end = until()
    status, mute = keyed.call("monitor", "PUT", MUTE, {"until": end, "note": "night works"})
    assert status == 200
    assert mute.pop("at") <= end
    assert mute == {"model": MODEL, "until": end, "signals": [], "note": "night works", "by": "monitor"}  # fmt: skip
    assert keyed.call("read", "GET", MUTE)[1]["until"] == end
    assert entry(keyed)["drift_mute"]["note"] == "night works"
    assert keyed.call("monitor", "DELETE", MUTE)[1]["until"] == end
    assert keyed.call("monitor", "DELETE", MUTE)[0] == 404
    assert keyed.call("read", "GET", MUTE)[0] == 404
    assert entry(keyed)["drift_mute"] is None


def test_a_mute_that_ended_is_none(keyed):
    mutes = MuteStore(keyed.settings.drift_directory)
    keyed.call("monitor", "PUT", MUTE, {"until": until()})
    (path,) = keyed.settings.drift_directory.glob("*.mute.json")
    ended = json.loads(path.read_bytes()) | {"until": until(-0.001)}
    path.write_text(json.dumps(ended))
    assert mutes.active(MODEL) is None
    assert keyed.call("read", "GET", MUTE)[0] == 404
    assert entry(keyed)["drift_mute"] is None


def test_the_mute_of_a_team_is_its_own(keyed):
    assert keyed.call("north", "PUT", MUTE, {"until": until()})[0] == 200
    for key in ("south", "admin"):
        assert keyed.call(key, "GET", MUTE)[0] == 404
        assert keyed.call(key, "DELETE", MUTE)[0] in (403, 404)
        assert entry(keyed, key)["drift_mute"] is None
    assert entry(keyed, "north")["drift_mute"]["by"] == "north"


def test_a_model_that_the_caller_does_not_see_is_not_muted(keyed):
    status, answer = keyed.call("other", "PUT", MUTE, {"until": until()})
    assert status == 404
    assert answer["error"] == f"model not found: '{MODEL}'; there is none"
    assert not keyed.settings.drift_directory.exists()


@pytest.mark.parametrize(
    "body", [b"", b"[]", {}, {"until": "soon"}, {"until": "2020-01-01T00:00:00Z"}, {"until": "9999-01-01T00:00:00Z"}]
)  # fmt: skip
def test_what_is_no_mute_is_refused(keyed, body):
    status, answer = keyed.call("monitor", "PUT", MUTE, body)
    assert status == 400
    assert answer["error"].startswith("expected")


@pytest.mark.parametrize(
    ("signals", "is_muted"),
    [([], True), (["image.brightness"], True), (["image.brightness", "score"], True), (["score"], False)],
)  # fmt: skip
def test_an_entry_is_muted_where_all_its_alarms_are(keyed, signals, is_muted):
    keep_report(keyed.settings, drift_report(0, DARK, numeric("score", 5, 5)))
    assert entry(keyed)["drift"]["muted"] is False
    keyed.call("monitor", "PUT", MUTE, {"until": until(), "signals": signals})
    assert entry(keyed)["drift"]["muted"] is is_muted


def test_a_damaged_report_does_not_hide_the_models(keyed):
    folder = keep_report(keyed.settings, drift_report(0, DARK))
    assert entry(keyed)["drift"]["status"] == "drift"
    keyed.call("monitor", "PUT", MUTE, {"until": until(), "signals": ["score"]})
    (folder / "report.json").write_bytes(b"{")
    assert entry(keyed)["drift"]["muted"] is False


DAMAGED_REPORTS = {
    "half": b'{"kind": "drift"',
    "of another form": b'{"kind": "drift"}',
    "empty": b"",
    "no text": b"\xff\xfe",
    "a list": b"[]",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("data", DAMAGED_REPORTS.values(), ids=DAMAGED_REPORTS)
def test_a_damaged_report_is_named_and_acknowledged_by_nobody(keyed, data):
    folder = keep_report(keyed.settings, drift_report(0, DARK))
    (folder / "report.json").write_bytes(data)
    status, answer = keyed.call("monitor", "POST", ACKNOWLEDGE)
    assert status == 409
    expected = f"the report {report_id(0)} cannot be read: its file is damaged, or a newer version wrote it"
    assert answer["error"] == expected
    assert not (folder / "acknowledged.json").exists()
    reference = {"every": "1d", "reference": report_id(0)}
    status, answer = keyed.call("monitor", "PUT", f"/api/models/{MODEL}/evaluation-schedule", reference)  # fmt: skip
    assert (status, answer["error"]) == (400, f"reference: {expected}")


def test_both_are_in_the_audit_log_with_what_they_change(keyed):
    keep_report(keyed.settings, drift_report(0, DARK))
    keyed.call("monitor", "POST", ACKNOWLEDGE, {"note": "a secret of the house"})
    keyed.call("monitor", "PUT", MUTE, {"until": until()})
    keyed.call("read", "DELETE", MUTE)
    files = keyed.settings.audit_directory.rglob("*")
    written = "".join(path.read_text() for path in files if path.is_file())
    lines = [json.loads(line) for line in written.splitlines() if line.startswith("{")]
    actions = [(line["action"], line["status"]) for line in lines]
    assert (f"POST {ACKNOWLEDGE}", 200) in actions
    assert (f"PUT {MUTE}", 200) in actions
    assert any(action == f"DELETE {MUTE}" and status == 403 for action, status in actions)
    assert "a secret of the house" not in written
