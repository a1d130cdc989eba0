"""The traffic of a model over HTTP and in the console: who may set it, what is refused, and what is shown."""

import html
import json
import re
from collections.abc import Iterator
from typing import Any, get_args
from urllib.parse import urlencode

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.proto.access import ROLES, Role
from quadriga.store.database.database import migrate
from tests.onnx_models import doubling
from tests.unit.engine.asgi_request import send_request
from tests.unit.engine.console_harness import keyed_server

PATH, PROMOTE = "/api/models/numbers/traffic", "/api/models/numbers/promote"
PAGE = "/console/models/numbers/traffic"
RULE = {
    "shares": {"1": 0.9, "2": 0.1},
    "sticky_by": "camera_id",
}
HOSTILE = "<script>alert(1)</script>"


class Keyed:
    """A server of a model in four versions, of which the last is damaged, with a key of each role."""

    def __init__(self, server: Application, keys: dict[str, str], audit: Any) -> None:
        self.server, self.keys, self.audit = server, keys, audit

    def send(self, key: str, method: str, path: str, body: Any = None) -> Any:
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        if path.startswith("/console"):
            headers["accept"] = "text/html"
        if isinstance(body, dict) and path.startswith("/console"):
            body = urlencode(body).encode()
            headers["content-type"] = "application/x-www-form-urlencoded"
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()  # fmt: skip
        return send_request(self.server, method, path, headers, body=content)

    def call(self, key: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = self.send(key, method, path, body)
        return answer.status, json.loads(answer.body)


@pytest.fixture
def keyed(tmp_path) -> Iterator[Keyed]:
    for version in "123":
        doubling(tmp_path / "models" / "numbers" / version / "model.onnx")
    (tmp_path / "models" / "numbers" / "4").mkdir()
    (tmp_path / "models" / "numbers" / "4" / "model.onnx").write_bytes(b"damaged")
    settings = Settings(models=str(tmp_path / "models"), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    with keyed_server(settings, other={"roles": ["operate"], "models": ["other-*"]}) as (
        server,
        keys,
    ):
        server.repository.load_all()
        yield Keyed(server, keys, settings.audit_directory)


def test_a_rule_is_set_shown_and_removed_by_who_operates(keyed):
    status, state = keyed.call("operate", "PUT", PATH, RULE)
    assert status == 200, state
    assert {name: state[name] for name in RULE} == RULE
    assert state["changed_by"] == "operate"
    assert [(v["version"], v["state"], v["share"]) for v in state["versions"]] == [
        ("1", "READY", 0.9),
        ("2", "READY", 0.1),
        ("3", "READY", 0.0),
        ("4", "FAILED", 0.0),
    ]
    assert keyed.call("read", "GET", PATH) == (200, state)
    assert keyed.call("admin", "PUT", PATH, RULE) == (200, state)  # it was set by somebody else
    status, removed = keyed.call("operate", "DELETE", PATH)
    assert (status, removed["shares"], removed["changed_by"]) == (200, {}, None)
    assert [v["share"] for v in removed["versions"]] == [0, 0, 1, 0]
    assert keyed.call("operate", "DELETE", PATH) == (200, removed)


@pytest.mark.parametrize("role", get_args(Role))
def test_each_door_needs_its_right(keyed, role):
    rights = ROLES[role]
    for method, path, body, need in (
        ("GET", PATH, None, "read"),
        ("PUT", PATH, RULE, "operate"),
        ("DELETE", PATH, None, "operate"),
        ("POST", PROMOTE, {"version": "2"}, "operate"),
        ("GET", PAGE, None, "read"),
        ("POST", PAGE, {"share-1": "100"}, "operate"),
        ("POST", f"{PAGE}/promote", {"version": "1"}, "operate"),
        ("POST", f"{PAGE}/reset", {}, "operate"),
    ):
        status = keyed.send(role, method, path, body).status
        assert (status in (200, 303)) == (need in rights), (method, path, status)
        assert status in (200, 303, 403)


def test_a_promotion_is_one_call_that_can_be_repeated_and_taken_back(keyed):
    keyed.call("operate", "PUT", PATH, RULE)
    status, state = keyed.call("operate", "POST", PROMOTE, {"version": "2"})
    assert (status, state["shares"], state["sticky_by"]) == (200, {"2": 1.0}, None)
    assert keyed.call("admin", "POST", PROMOTE, {"version": "2"}) == (200, state)
    status, back = keyed.call("operate", "POST", PROMOTE, {"version": "1"})
    assert (status, back["shares"]) == (200, {"1": 1.0})
    entries = [json.loads(line) for path in sorted(keyed.audit.glob("*")) for line in path.read_text().splitlines()]  # fmt: skip
    promotions = [entry for entry in entries if entry["action"] == f"POST {PROMOTE}"]
    assert [(entry["name"], entry["status"], entry["target"]) for entry in promotions] == [
        ("operate", 200, "numbers"),
        ("admin", 200, "numbers"),
        ("operate", 200, "numbers"),
    ]


REFUSED = {
    "no JSON": ("PUT", PATH, b"{", 400, "expected a JSON object"),
    "another version": ("PUT", PATH, {"shares": {"9": 1}}, 400, "among 1, 2, 3, 4, got '9'"),
    "half": ("PUT", PATH, {"shares": {"1": 0.5}}, 400, "add up to 1"),
    "another model": (
        "PUT",
        "/api/models/letters/traffic",
        RULE,
        404,
        "model not found: 'letters'",
    ),
    "replays": ("PUT", "/api/models/numbers~replay/traffic", RULE, 404, "model not found"),
    "a shadow": ("PUT", PATH, {**RULE, "shadow": {"version": "3"}}, 400, "unknown field `shadow`"),
    "a hostile version": ("POST", PAGE, {f"share-{HOSTILE}": "100"}, 400, "expected a version"),
    "a surrogate": ("PUT", PATH, b'{"sticky_by": "\\ud800", "shares": {"1": 1}}', 400, "expected"),
    "a promotion of nothing": ("POST", PROMOTE, {}, 400, "expected a JSON object with version"),
    "a promotion of what failed": ("POST", PROMOTE, {"version": "4"}, 503, "to be ready"),
    "a promotion of a number": ("POST", PROMOTE, {"version": 2}, 400, "Expected `str`"),
    "a large body": ("PUT", PATH, b" " * (5 << 20), 413, "bytes"),
    "a share in words": ("POST", PAGE, {"share-1": "all"}, 400, "a number of percent"),
    "a share that is none": ("POST", PAGE, {"share-1": "nan"}, 400, "from 0 to 1"),
    "a form of other versions": ("POST", PAGE, {"share-9": "100"}, 400, "expected a version"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_and_changes_nothing(keyed, name):
    method, path, body, expected, message = REFUSED[name]
    before = keyed.call("read", "GET", PATH)
    answer = keyed.send("operate", method, path, body)
    assert answer.status == expected, answer.body
    assert message in html.unescape(answer.body.decode())
    assert HOSTILE.encode() not in answer.body
    assert keyed.call("read", "GET", PATH) == before


def test_a_key_for_other_models_finds_none(keyed):
    assert keyed.call("other", "PUT", PATH, RULE)[0] == 404
    assert keyed.call("other", "POST", PROMOTE, {"version": "1"})[0] == 404


def test_the_form_sets_what_it_shows(keyed):
    form = {"share-1": "90", "share-2": "10", "share-3": "", "sticky_by": "camera_id"}  # fmt: skip
    assert keyed.send("operate", "POST", PAGE, form).status == 303
    assert {name: keyed.call("read", "GET", PATH)[1][name] for name in RULE} == RULE
    page = keyed.send("operate", "GET", PAGE).body.decode()
    shown = dict(re.findall(r'<input[^>]* name="(share-\d|sticky_by)"[^>]* value="([^"]*)"', page))
    assert shown == {"share-1": "90", "share-2": "10", "share-3": "", "share-4": "", "sticky_by": "camera_id"}  # fmt: skip
    assert "Promote 2 to 100 %" in page
    assert "Promote 4" not in page
    reader = keyed.send("read", "GET", PAGE).body.decode()
    assert "<form" not in reader.partition("<main")[2]
    assert "90 %" in reader
    model = keyed.send("read", "GET", "/console/models/numbers").body.decode()
    assert "Version 1: 90 %, version 2: 10 %." in model
    assert f'href="{PAGE}"' in model
    assert keyed.send("operate", "POST", f"{PAGE}/reset", {}).status == 303
    assert keyed.call("read", "GET", PATH)[1]["shares"] == {}


@pytest.mark.parametrize("share", ["<b>", "110"])
def test_a_wrong_share_stands_in_the_form_and_changes_nothing(keyed, share):
    form = {"share-1": share, "share-2": "10", "sticky_by": "camera_id"}
    answer = keyed.send("operate", "POST", PAGE, form)
    page = answer.body.decode()
    assert answer.status == 400
    assert 'role="alert"' in page.partition("<form")[2]
    shown = dict(re.findall(r'<input[^>]* name="(share-\d|sticky_by)"[^>]* value="([^"]*)"', page))
    assert {name: html.unescape(shown[name]) for name in form} == form
    assert keyed.call("read", "GET", PATH)[1]["shares"] == {}
