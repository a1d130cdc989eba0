"""The routes about alarms that are known: acknowledge and mute, in whose name, and what a model's entry says of it."""

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.monitor.drift.watch.schedules import DriftSchedule, drift_schedules
from quadriga.monitor.report.schema import Data, Metric, PastWindow, Window
from quadriga.monitor.watch.mutes import MuteStore
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scope
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.asgi_request import send_request
from tests.unit.engine.console_harness import open_page
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
                                     "acknowledged": None, "muted": False, "undecided": [], "over": False}  # fmt: skip


FEW = numeric("score", 5, 9, alarm=False, status="insufficient", reason="too alike", n_eff=(60, 65))
USUAL = numeric("latency_ms", 5, 5)
PAST = [PastWindow(None, None, 9, "ok", "r")]


PART = "meta.camera=north"
S_USUAL, S_DARK, S_FEW = ("scheduled", USUAL), ("scheduled", DARK), ("scheduled", FEW)
BY_HAND_USUAL, BY_HAND_DARK, BY_HAND_FEW = ("by hand", USUAL), ("by hand", DARK), ("by hand", FEW)
PART_USUAL, PART_DARK = ("of a part", USUAL), ("of a part", DARK)


@pytest.mark.parametrize(
    ("reports", "seen", "shown", "is_over"),
    [
        # An alarm stays until somebody acknowledges it, whatever comes later.
        ([S_DARK], [], 0, False),
        ([S_DARK, S_USUAL], [], 0, True),
        ([S_DARK, S_FEW], [], 0, False),
        ([S_DARK, S_USUAL, S_DARK], [], 2, False),
        # From then on it stays until a comparison clears it; those before it were seen, too.
        ([S_DARK], [0], 0, False),
        ([S_DARK, S_USUAL], [0], 1, False),
        ([S_DARK, S_FEW], [0], 0, False),
        ([S_DARK, S_USUAL, S_FEW], [0], 2, False),
        ([S_DARK, S_DARK, S_USUAL], [1], 2, False),
        ([S_DARK, S_DARK, S_USUAL], [0], 1, True),
        # What somebody compares beside the schedule replaces nothing, with a filter or without.
        ([S_USUAL, BY_HAND_DARK], [], 0, False),
        ([S_USUAL, PART_DARK], [], 0, False),
        ([S_DARK, BY_HAND_USUAL], [], 0, False),
        ([S_DARK, PART_USUAL], [0], 0, False),
        ([S_USUAL, BY_HAND_FEW], [], 0, False),
        ([BY_HAND_DARK, S_USUAL], [], 1, False),
        # A schedule that has compared nothing yet.
        ([BY_HAND_USUAL, BY_HAND_DARK], [], 1, False),
    ],
)
def test_the_drift_of_a_model_is_that_of_its_schedule(keyed, reports, seen, shown, is_over):
    drift_schedules(keyed.settings.drift_directory).put(MODEL, DriftSchedule("1d"))
    check_drift(keyed, reports, seen, shown, is_over=is_over)


@pytest.mark.parametrize(("key", "shown"), [("north", 0), ("read", 0), ("south", None)])
def test_the_schedule_of_a_team_counts_for_whoever_sees_its_reports(keyed, key, shown):
    """One of no team sees the reports of all, of which the schedule's counts and not what was compared beside it."""
    north = Scope("north")
    drift_schedules(keyed.settings.drift_directory).within(north).put(MODEL, DriftSchedule("1d"))
    keep_report(keyed.settings, drift_report(0, USUAL, history=PAST), north)
    keep_report(keyed.settings, drift_report(1, DARK), north)
    last = entry(keyed, key)["drift"]
    assert (last and last["report"]) == (None if shown is None else report_id(shown))


@pytest.mark.parametrize(
    ("reports", "seen", "shown", "is_over"),
    [
        ([BY_HAND_DARK, BY_HAND_USUAL], [], 0, True),
        ([BY_HAND_DARK, BY_HAND_USUAL], [0], 1, False),
        ([BY_HAND_USUAL, BY_HAND_FEW], [], 1, False),
        ([BY_HAND_USUAL, PART_DARK], [], 0, False),
        ([BY_HAND_DARK, PART_USUAL], [0], 0, False),
        ([PART_USUAL, PART_DARK], [], 1, False),
        # The schedule was ended: what it said is as old as it is.
        ([S_USUAL, BY_HAND_DARK], [], 1, False),
        ([S_DARK, BY_HAND_USUAL], [0], 1, False),
    ],
)
def test_without_a_schedule_it_is_that_of_all_images(keyed, reports, seen, shown, is_over):
    check_drift(keyed, reports, seen, shown, is_over=is_over)


def check_drift(keyed: Keyed, reports: Any, seen: list[int], shown: int, *, is_over: bool) -> None:
    """Check which report the entry of the model has, and its page begins with."""
    for number, (kind, signal) in enumerate(reports):
        report = drift_report(number, signal, USUAL, history=PAST if kind == "scheduled" else [])
        if kind == "of a part":
            current = replace(report.data.current, filter=PART)
            report = replace(report, data=replace(report.data, current=current))
        keep_report(keyed.settings, report)
    for number in seen:
        path = f"/api/reports/{report_id(number)}/acknowledge"
        assert keyed.call("monitor", "POST", path)[0] == 200
    last = entry(keyed)["drift"]
    assert (last["report"], last["over"]) == (report_id(shown), is_over)
    assert last["undecided"] == (["score"] if reports[shown][1] is FEW else [])
    page = open_page(
        keyed.server,
        f"/console/models/{MODEL}/drift",
        headers={"authorization": f"Bearer {keyed.keys['monitor']}"},
    )
    assert f'class="button" href="/console/reports/{report_id(shown)}"' in page.text
    assert ("no alarm since then" in page.text) is is_over
    has_alarm = reports[shown][1] is DARK
    assert ("/drift/mute" in page.text) is has_alarm
    assert ("/acknowledge" in page.text) is (has_alarm and shown not in seen)


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
