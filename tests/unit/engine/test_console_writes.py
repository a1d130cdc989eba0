"""What forms of the console change: by whom, from where, and what a stranger gets instead."""

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any, NamedTuple, get_args

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.monitor.watch.mutes import Mute, MuteStore
from quadriga.proto.access import ROLES, Role
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import read_keys, revoke_key
from quadriga.store.keys.key_texts import AccessKey
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import Answer, keyed_server, open_page
from tests.unit.engine.drift_reports import MODEL, drift_report, keep_report, numeric, report_id

FORM = {"content-type": "application/x-www-form-urlencoded", "origin": "http://localhost"}
FOREIGN: list[dict[str, str]] = [
    {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"host": "evil.example"},
]


class Keyed(NamedTuple):
    """A server with a job, and a key of each role, and one of an administrator of a team."""

    server: Application
    keys: dict[str, str]
    job_id: str

    def send(self, path: str, role: str, body: bytes = b"", **headers: str) -> Answer:
        """Send a form as a browser does."""
        given = {**FORM, "authorization": f"Bearer {self.keys[role]}", **headers}
        return open_page(self.server, f"/console/{path}", method="POST", headers=given, body=body)

    def show(self, path: str, role: str) -> Answer:
        """Open a page."""
        headers = {"authorization": f"Bearer {self.keys[role]}"}
        return open_page(self.server, f"/console/{path}", headers=headers)

    def stored_keys(self) -> list[AccessKey]:
        """Return all keys."""
        with writer_engine(self.server._settings.database_url) as engine, engine.connect() as read:
            return read_keys(read)

    def job_state(self) -> str:
        """Return the state of the job."""
        headers = {"authorization": f"Bearer {self.keys['admin']}", "accept": "*/*"}
        answer = open_page(self.server, f"/api/jobs/{self.job_id}", headers=headers)
        state: str = json.loads(answer.text)["state"]
        return state


@pytest.fixture
def keyed(tmp_path: Any) -> Iterator[Keyed]:
    settings = Settings(models=str(SAMPLE_MODELS), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    with keyed_server(settings, team={"roles": ["admin"], "team": "b"}) as (server, keys):
        headers = {"authorization": f"Bearer {keys['read']}", "accept": "*/*"}
        answer = open_page(server, "/api/exports", method="POST", headers=headers, body=b"{}")
        yield Keyed(server, keys, json.loads(answer.text)["id"])


@pytest.mark.parametrize("role", get_args(Role))
def test_who_may_monitor_cancels_a_job_and_others_do_not_by_hand_either(keyed, role):
    may_cancel = "monitor" in ROLES[role]
    if "read" in ROLES[role]:
        page = keyed.show(f"jobs/{keyed.job_id}", role).text
        assert ("Cancel job" in page) == may_cancel
    answer = keyed.send(f"jobs/{keyed.job_id}/cancel", role)
    assert answer.status == (303 if may_cancel else 403)
    assert (keyed.job_state() == "cancelled") == may_cancel
    if may_cancel:
        assert answer.headers["location"] == f"/console/jobs/{keyed.job_id}"
        assert "Cancel job" not in keyed.show(f"jobs/{keyed.job_id}", role).text


def test_a_job_of_others_is_not_there_to_cancel(keyed):
    assert keyed.send(f"jobs/{keyed.job_id}/cancel", "team").status == 404
    assert keyed.send("jobs/..%2F..%2Fx/cancel", "admin").status == 404
    assert keyed.job_state() == "queued"


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_others_cancels_nothing(keyed, headers):
    assert keyed.send(f"jobs/{keyed.job_id}/cancel", "admin", **headers).status == 403
    assert keyed.job_state() == "queued"


def test_the_session_of_a_revoked_key_cancels_nothing(keyed):
    begun = open_page(
        keyed.server, "/console/login", method="POST", headers=FORM, body=f"key={keyed.keys['admin']}".encode()
    )  # fmt: skip
    session = begun.cookies[0].partition(";")[0]
    key_id = next(key.id for key in keyed.stored_keys() if key.name == "admin")
    with writer_engine(keyed.server._settings.database_url) as engine:
        revoke_key(engine, key_id)
    assert keyed.server._keys is not None
    keyed.server._keys.refresh()
    path = f"/console/jobs/{keyed.job_id}/cancel"
    headers = {**FORM, "cookie": session}
    assert open_page(keyed.server, path, method="POST", headers=headers).status == 401
    headers = {"authorization": f"Bearer {keyed.keys['read']}", "accept": "*/*"}
    state = json.loads(open_page(keyed.server, f"/api/jobs/{keyed.job_id}", headers=headers).text)
    assert state["state"] == "queued"


def test_an_administrator_makes_a_key_whose_secret_is_shown_once_and_counts(keyed):
    made = keyed.send("keys/new", "admin", b"name=%3Cb%3Enew&role=read&role=annotate&team=b&days=2")
    assert made.status == 200
    assert "<b>new" not in made.text
    assert made.headers["cache-control"] == "no-store"
    (secret,) = re.findall(r"quadriga-[0-9a-f]{12}\.[\w-]+", made.text)
    key = next(key for key in keyed.stored_keys() if key.name == "<b>new")
    assert (key.roles, key.team) == (("read", "annotate"), "b")
    assert key.expires_ms is not None
    assert key.expires_ms - key.created_ms == 2 * 86_400_000
    page = keyed.show("keys", "admin").text
    assert key.id in page
    assert secret.partition(".")[2] not in page
    keyed.keys["new"] = secret
    keyed.server._keys.refresh()
    assert keyed.show("jobs", "new").status == 200
    assert keyed.send(f"keys/{key.id}/revoke", "admin").status == 303
    keyed.server._keys.refresh()
    assert keyed.show("jobs", "new").status == 401


@pytest.mark.parametrize(
    "body",
    [b"", b"name=x", b"role=owner", b"role=read&role=root", b"role=read&days=-1", b"role=read&days=99999", b"role=read&days=x",
     b"role=read&team=../a", b"role=read&name=%00", b"role=read&name=" + b"x" * 5000, b"role=read&name=\xff\xfe",
     b"&".join([b"role=read"] * 50)],
)  # fmt: skip
def test_what_is_no_key_is_refused_and_makes_none(keyed, body):
    before = keyed.stored_keys()
    assert keyed.send("keys/new", "admin", body).status == 400
    assert keyed.stored_keys() == before


def test_a_wrong_key_stands_in_the_form_with_what_was_typed(keyed):
    body = b"name=%3Cb%3Enorth&role=read&role=annotate&days=x"
    page = keyed.send("keys/new", "admin", body)
    assert page.status == 400
    assert re.findall(r'id="help-(\w+)" role="alert"', page.text) == ["days"]
    assert 'value="&lt;b&gt;north"' in page.text
    assert re.findall(r'value="(\w+)" checked', page.text) == ["read", "annotate"]
    program = keyed.send("keys/new", "admin", body, accept="application/json")
    assert (program.status, list(json.loads(program.text))) == (400, ["error"])


@pytest.mark.parametrize("role", [*get_args(Role), "team"])
def test_only_an_administrator_of_all_changes_keys(keyed, role):
    before = keyed.stored_keys()
    other = next(key.id for key in before if key.name == "infer")
    may_change = role == "admin"
    assert keyed.send(f"keys/{other}/revoke", role).status == (303 if may_change else 403)
    assert keyed.send("keys/new", role, b"role=admin").status == (200 if may_change else 403)
    assert (len(keyed.stored_keys()) > len(before)) == may_change


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_others_changes_no_keys(keyed, headers):
    before = keyed.stored_keys()
    assert keyed.send("keys/new", "admin", b"role=admin", **headers).status == 403
    assert keyed.send(f"keys/{before[0].id}/revoke", "admin", **headers).status == 403
    assert keyed.stored_keys() == before


def test_nobody_revokes_the_own_key_or_one_that_is_not_there(keyed):
    own = next(key.id for key in keyed.stored_keys() if key.name == "admin")
    assert keyed.send(f"keys/{own}/revoke", "admin").status == 400
    assert keyed.send("keys/000000000000/revoke", "admin").status == 404
    assert all(key.revoked_ms is None for key in keyed.stored_keys())
    assert f"keys/{own}/revoke" not in keyed.show("keys", "admin").text


def test_what_forms_change_is_in_the_audit_log_with_what_it_changes_but_no_secret(keyed):
    made = keyed.send("keys/new", "admin", b"name=new&role=read")
    (secret,) = re.findall(r"quadriga-[0-9a-f]{12}\.[\w-]+", made.text)
    key_id = next(key.id for key in keyed.stored_keys() if key.name == "new")
    keyed.send(f"keys/{key_id}/revoke", "read")
    keyed.send(f"keys/{key_id}/revoke", "admin")
    keyed.send(f"jobs/{keyed.job_id}/cancel", "monitor")
    files = keyed.server._settings.audit_directory.rglob("*")
    written = "".join(path.read_text() for path in files if path.is_file())
    lines = [json.loads(line) for line in written.splitlines() if line.startswith("{")]
    assert sum(line.get("target") == key_id for line in lines) == 1
    assert sum(line.get("target") == f"{key_id}: roles read" for line in lines) == 1
    assert secret.partition(".")[2] not in written
    for path in ("/console/keys/new", "/revoke", f"/console/jobs/{keyed.job_id}/cancel"):
        assert path in written


VIEW = b"name=north&q=meta.camera%3Deq%3Anorth&order=ts"
NAMED_NOTHING = {
    "reports/compare": b"model=shapes-detectr&period=day&before=previous",
    "reports/evaluate": b"model=shapes-detector%3A1&q=model%3Dshapes-detectr",
    "inferences/export": b"format=coco&annotations=either&q=model%3Dshapes-detectr",
}


@pytest.mark.parametrize("path", NAMED_NOTHING)
def test_a_form_that_names_what_is_not_there_is_told_what_that_is(keyed, path):
    answer = keyed.send(path, "admin", NAMED_NOTHING[path])
    assert answer.status == 404
    expected = "model not found: 'shapes-detectr'; did you mean shapes-detector or "
    assert expected in unescape(answer.text)


def test_a_form_to_an_address_that_is_none_finds_no_page(keyed):
    answer = keyed.send("reports/nothing", "admin", b"a=1")
    assert answer.status in (404, 405)
    assert "404" not in answer.text


HOSTILE_VIEWS = {
    b"q=meta.camera%3Deq%3Anorth": "name of a view",
    b"name=.hidden": "begin with no dot",
    b"name=x&q=no-such-field%3Deq%3A1": "no-such-field",
    b"name=x&order=sideways": "order",
    b"name=%ff%fe": "UTF-8",
    b"&".join(b"a%d=1" % number for number in range(99)): "few fields",
    b"name=" + b"n" * 300: "bytes",
}


@pytest.mark.parametrize("role", get_args(Role))
def test_who_may_annotate_saves_and_removes_a_view_and_others_do_not_by_hand_either(keyed, role):
    may_save = "annotate" in ROLES[role]
    if "read" in ROLES[role]:
        page = keyed.show("inferences?q=meta.camera%3Deq%3Anorth", role).text
        assert ("Save as a view" in page) == may_save
    saved = keyed.send("views/new", role, VIEW)
    assert saved.status == (303 if may_save else 403)
    assert (">north</a>" in keyed.show("views", "admin").text) == may_save
    removed = keyed.send("views/remove", role, b"name=north&sure=yes")
    assert removed.status == (303 if may_save else 403)
    assert ">north</a>" not in keyed.show("views", "admin").text


@pytest.mark.parametrize("role", ["annotate", "operate"])
def test_a_view_is_neither_replaced_nor_removed_without_a_question(keyed, role):
    other = b"name=north&q=model%3D%22%3Cb%3E%22&order=ts"
    assert keyed.send("views/new", "annotate", VIEW).status == 303
    assert keyed.send("views/new", "annotate", VIEW).status == 303  # the same again changes nothing
    for path, body, asked in (
        ("views/new", other, "Replace the view north?"),
        ("views/remove", b"name=north", "Remove the view north?"),
    ):
        answer = keyed.send(path, role, body)
        assert answer.status == 200
        assert asked in answer.text
        assert "<b>" not in answer.text
        assert "camera" in keyed.show("views", "admin").text
    turned = keyed.send("views/new", role, VIEW.replace(b"=ts", b"=-ts")).text
    assert "</code>, newest first" in turned
    assert "</code>, oldest first" in turned
    assert keyed.send("views/new", role, other + b"&sure=yes").status == 303
    assert "camera" not in keyed.show("views", "admin").text
    assert keyed.send("views/remove", role, b"name=north&sure=yes").status == 303
    assert "No saved views yet." in keyed.show("views", "admin").text


def test_a_view_that_was_replaced_or_removed_comes_back_with_its_owner(keyed):
    assert keyed.send("views/new", "annotate", VIEW + b"&view=objects").status == 303
    other = keyed.send("views/new", "operate", b"name=north&q=model%3Dx&sure=yes")
    assert other.headers["location"] == "/console/views?changed=yes"
    page = keyed.show("views?changed=yes", "operate").text
    assert "The view north was replaced." in page
    assert "was replaced" not in keyed.show("views?changed=yes", "annotate").text  # it was not them
    assert keyed.send("views/undo", "operate").status == 303
    page = keyed.show("views?changed=yes", "admin").text
    assert "model=x" not in page
    assert "/console/inferences?q=meta.camera%3Deq%3Anorth&amp;order=ts&amp;view=objects" in page
    assert keyed.send("views/undo", "operate").status == 404
    removed = keyed.send("views/remove", "annotate", b"name=north&sure=yes")
    assert removed.headers["location"] == "/console/views?changed=yes"
    assert "The view north was removed." in keyed.show("views?changed=yes", "annotate").text
    assert keyed.send("views/undo", "read").status == 403
    assert keyed.send("views/undo", "annotate").status == 303
    assert ">north</a>" in keyed.show("views", "admin").text
    assert (
        keyed.send("views/remove", "annotate", b"name=north&sure=yes").status == 303
    )  # still theirs


def test_undo_does_not_take_back_what_another_changed_since(keyed):
    assert keyed.send("views/new", "annotate", VIEW).status == 303
    assert keyed.send("views/new", "annotate", b"name=north&q=model%3Dx&sure=yes").status == 303
    assert keyed.send("views/new", "operate", b"name=north&q=model%3Dy&sure=yes").status == 303
    refused = keyed.send("views/undo", "annotate")
    assert refused.status == 400
    assert "changed again since" in refused.text
    assert "model=y" in keyed.show("views", "admin").text


def test_undo_works_after_the_same_was_saved_once_more_as_by_a_second_click(keyed):
    other = b"name=north&q=model%3Dx&sure=yes"
    for body in (VIEW, other, other):
        assert keyed.send("views/new", "annotate", body).status == 303
    assert keyed.send("views/undo", "annotate").status == 303
    assert "camera" in keyed.show("views", "admin").text


@pytest.mark.parametrize(("chosen", "kept"), [("&view=objects", "objects"), ("&view=list", ""), ("", "")])  # fmt: skip
def test_how_images_are_shown_is_saved_with_a_view(keyed, chosen, kept):
    page = keyed.show(f"inferences?q=meta.camera%3Dnorth{chosen}", "annotate").text
    assert f'<input type="hidden" name="view" value="{kept}">\n<label' in page
    keyed.send("views/new", "annotate", VIEW)
    asked = keyed.send("views/new", "annotate", VIEW + b"&view=objects").text
    assert "oldest first, objects" in asked
    assert '<input type="hidden" name="view" value="objects">' in asked
    assert keyed.send("views/new", "annotate", VIEW + b"&view=list").status == 400


def test_a_view_of_somebody_else_is_neither_replaced_nor_removed(keyed):
    assert keyed.send("views/new", "operate", VIEW).status == 303
    assert keyed.send("views/new", "annotate", b"name=north&q=model%3Deq%3Ax").status == 403
    assert keyed.send("views/remove", "annotate", b"name=north").status == 403
    page = keyed.show("views", "annotate").text
    assert "camera" in page
    assert "views/remove" not in page
    assert "views/remove" in keyed.show("views", "admin").text


@pytest.mark.parametrize("foreign", FOREIGN)
def test_another_site_saves_and_removes_no_view(keyed, foreign):
    assert keyed.send("views/new", "annotate", VIEW).status == 303
    for path, body in (("views/new", b"name=planted"), ("views/remove", b"name=north")):
        assert keyed.send(path, "annotate", body, **foreign).status in (400, 403, 421)
    page = keyed.show("views", "annotate").text
    assert ">north</a>" in page
    assert "planted" not in page


@pytest.mark.parametrize("body", HOSTILE_VIEWS)
def test_a_hostile_form_of_a_view_is_refused_with_its_reason(keyed, body):
    answer = keyed.send("views/new", "annotate", body)
    assert answer.status == 400
    assert HOSTILE_VIEWS[body] in answer.text
    assert "No saved views yet." in keyed.show("views", "annotate").text


def test_a_form_of_a_view_that_is_too_large_is_refused(keyed):
    assert keyed.send("views/new", "annotate", b"name=x&q=" + b"a" * 200_000).status == 413


ACKNOWLEDGE = f"reports/{report_id(0)}/acknowledge"
MUTE, UNMUTE = f"models/{MODEL}/drift/mute", f"models/{MODEL}/drift/unmute"
MUTE_FORM = b"hours=4&signals=alarmed&note=%3Cb%3Efloodlight"


def with_alarm(keyed: Keyed) -> None:
    """Keep a drift report with an alarm."""
    signals = numeric("image.brightness", 50, 20), numeric("score", 5, 5)
    keep_report(keyed.server._settings, drift_report(0, *signals))


def mute_of(keyed: Keyed) -> Mute | None:
    return MuteStore(keyed.server._settings.drift_directory).active(MODEL)


@pytest.mark.parametrize("role", get_args(Role))
def test_who_may_monitor_acknowledges_an_alarm_and_others_do_not_by_hand_either(keyed, role):
    with_alarm(keyed)
    may_monitor = "monitor" in ROLES[role]
    report, drift = f"reports/{report_id(0)}", f"models/{MODEL}/drift"
    if "read" in ROLES[role]:
        for path in (report, drift):
            assert (f"/console/{ACKNOWLEDGE}" in keyed.show(path, role).text) == may_monitor
    answer = keyed.send(ACKNOWLEDGE, role, b"note=%3Cb%3Elens")
    assert answer.status == (303 if may_monitor else 403)
    for path in (report, drift, ""):
        page = keyed.show(path, "admin").text
        assert (f"Acknowledged by {role}" in page) == may_monitor
        assert "<b>lens" not in page
    if may_monitor:
        assert answer.headers["location"] == f"/console/{report}"
        assert ACKNOWLEDGE not in keyed.show(drift, role).text
        assert keyed.send(ACKNOWLEDGE, "admin", b"note=later").status == 303
        assert "later" not in keyed.show(report, "admin").text


def test_an_acknowledged_alarm_leaves_the_top_of_the_overview(keyed):
    with_alarm(keyed)
    assert 'class="alarm"' in keyed.show("", "read").text
    keyed.send(ACKNOWLEDGE, "monitor")
    page = keyed.show("", "read").text
    assert 'class="alarm"' not in page
    assert "Acknowledged by monitor" in page
    keep_report(keyed.server._settings, drift_report(1, numeric("image.brightness", 50, 20)))
    assert 'class="alarm"' in keyed.show("", "read").text


@pytest.mark.parametrize("role", get_args(Role))
def test_who_may_monitor_mutes_and_others_do_not_by_hand_either(keyed, role):
    with_alarm(keyed)
    may_monitor = "monitor" in ROLES[role]
    drift = f"models/{MODEL}/drift"
    if "read" in ROLES[role]:
        assert (f"/console/{MUTE}" in keyed.show(drift, role).text) == may_monitor
    answer = keyed.send(MUTE, role, MUTE_FORM)
    assert answer.status == (303 if may_monitor else 403)
    mute = mute_of(keyed)
    assert (mute is not None) == may_monitor
    assert ('class="alarm"' in keyed.show("", "admin").text) != may_monitor
    if mute is not None:
        assert (mute.by, mute.signals, mute.note) == (role, ["image.brightness"], "<b>floodlight")
        assert answer.headers["location"] == f"/console/{drift}"
        page = keyed.show(drift, "read").text
        assert f"Muted by {role} until" in page
        assert "<b>floodlight" not in page
        assert UNMUTE not in page
    assert keyed.send(UNMUTE, role).status == (303 if may_monitor else 403)
    assert mute_of(keyed) is None
    if may_monitor:
        assert keyed.send(UNMUTE, role).status == 404


def test_a_mute_of_all_signals_needs_no_alarm_but_one_of_those_in_alarm_does(keyed):
    keep_report(keyed.server._settings, drift_report(0, numeric("score", 5, 5)))
    assert keyed.send(MUTE, "monitor", b"hours=1&signals=alarmed").status == 400
    assert mute_of(keyed) is None
    assert keyed.send(MUTE, "monitor", b"hours=1&signals=all").status == 303
    mute = mute_of(keyed)
    assert mute is not None
    assert mute.signals == []


def test_alarms_of_another_team_are_not_there_to_change(keyed):
    with_alarm(keyed)
    assert keyed.send(ACKNOWLEDGE, "team").status == 404
    assert keyed.send("reports/..%2F..%2Fx/acknowledge", "admin").status == 404
    assert keyed.send("models/no-such-model/drift/mute", "admin", MUTE_FORM).status == 404
    assert keyed.send(MUTE, "team", b"hours=1&signals=all").status == 303
    assert mute_of(keyed) is None
    assert "Acknowledged by" not in keyed.show("", "admin").text


@pytest.mark.parametrize("foreign", FOREIGN, ids=str)
def test_another_site_neither_acknowledges_nor_mutes(keyed, foreign):
    with_alarm(keyed)
    for path, body in ((ACKNOWLEDGE, b"note=x"), (MUTE, MUTE_FORM), (UNMUTE, b"")):
        assert keyed.send(path, "admin", body, **foreign).status in (400, 403, 421)
    assert mute_of(keyed) is None
    assert 'class="alarm"' in keyed.show("", "read").text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "hours"),
        (b"hours=4", "signals"),
        (b"hours=0&signals=all", "hours"),
        (b"hours=-4&signals=all", "hours"),
        (b"hours=4.5&signals=all", "hours"),
        (b"hours=9999999999&signals=all", "hours"),
        (b"hours=%D9%A4&signals=all", "hours"),
        (b"hours=4&signals=image.brightness", "signals"),
        (b"hours=4&signals=all&note=" + b"x" * 1001, "note"),
        (b"hours=4&signals=all&note=%00", "NUL"),
        (b"hours=4&signals=%ff", "UTF-8"),
        (b"&".join(b"a%d=1" % number for number in range(99)), "few fields"),
    ],
)
def test_a_hostile_form_of_a_mute_is_refused_with_its_reason(keyed, body, reason):
    with_alarm(keyed)
    answer = keyed.send(MUTE, "monitor", body)
    assert answer.status == 400
    assert reason in answer.text
    assert mute_of(keyed) is None


@pytest.mark.parametrize("body", [b"note=" + b"x" * 1001, b"note=%00", b"note=%ff"])
def test_a_hostile_note_is_refused(keyed, body):
    with_alarm(keyed)
    assert keyed.send(ACKNOWLEDGE, "monitor", body).status == 400
    assert keyed.send(ACKNOWLEDGE, "monitor", b"note=" + b"x" * 200_000).status == 413
    assert "Acknowledged by" not in keyed.show(f"reports/{report_id(0)}", "admin").text


def test_what_is_acknowledged_and_muted_is_in_the_audit_log_without_its_note(keyed):
    with_alarm(keyed)
    keyed.send(ACKNOWLEDGE, "monitor", b"note=of+the+house")
    keyed.send(MUTE, "monitor", b"hours=1&signals=all&note=of+the+house")
    keyed.send(UNMUTE, "read")
    files = keyed.server._settings.audit_directory.rglob("*")
    written = "".join(path.read_text() for path in files if path.is_file())
    lines = [json.loads(line) for line in written.splitlines() if line.startswith("{")]
    actions = {(line["action"], line["status"]) for line in lines}
    assert (f"POST /console/{ACKNOWLEDGE}", 303) in actions
    assert (f"POST /console/{MUTE}", 303) in actions
    assert (f"POST /console/{UNMUTE}", 403) in actions
    assert "of the house" not in written
    assert "of+the+house" not in written
