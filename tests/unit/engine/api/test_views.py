"""Saved views: who sees, saves and deletes them, what they may hold, and how many there may be."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from quadriga.engine.api import access as access_module
from quadriga.engine.api import views as views_module
from quadriga.engine.api.views import view_routes
from quadriga.monitor import saved_views
from quadriga.proto.access import ROLES, Caller
from tests.unit.http_client import call, client_of

MARA = Caller(name="mara", key_id="1", rights=frozenset(ROLES["annotate"]), team="a")
EVE = Caller(name="eve", key_id="2", rights=frozenset(ROLES["annotate"]), team="a")
OPERATOR = Caller(name="ops", key_id="3", rights=frozenset(ROLES["operate"]), team="a")
OTHER = Caller(name="mallory", key_id="4", rights=frozenset(ROLES["operate"]), team="b")
NIGHT = {"query": "meta.night=true & label=star", "order": "ts"}


class Client:
    """A client whose caller can change."""

    def __init__(self, client: TestClient[Litestar], monkeypatch: pytest.MonkeyPatch) -> None:
        self._client = client
        self._monkeypatch = monkeypatch
        self.become(MARA)

    def become(self, caller: Caller) -> None:
        for module in (views_module, access_module):
            self._monkeypatch.setattr(module, "current_caller", lambda: caller)

    def call(self, method: str, path: str, body: Any = b"") -> tuple[int, Any]:
        return call(self._client, method, path, body)

    @property
    def names(self) -> list[str]:
        status, answer = self.call("GET", "views")
        assert status == 200
        return [view["name"] for view in answer["views"]]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    with client_of(view_routes(tmp_path / "views")) as made:
        yield Client(made, monkeypatch)


def test_a_view_is_saved_replaced_and_deleted(client: Client) -> None:
    assert client.names == []
    status, view = client.call("PUT", "views/night", NIGHT)
    assert (status, view.pop("saved_at")[:2]) == (200, "20")
    assert view == {"name": "night", **NIGHT, "owner": "mara", "view": ""}
    shown = client.call("PUT", "views/night", {**NIGHT, "view": "objects"})[1]
    assert shown["view"] == "objects"
    assert client.call("PUT", "views/All", {"query": ""})[0] == 200
    assert client.call("PUT", "views/night", {"query": "label=ship"})[1]["order"] == "-ts"
    assert client.names == ["All", "night"]
    status, deleted = client.call("DELETE", "views/night")
    assert (status, deleted["query"]) == (200, "label=ship")
    assert client.call("DELETE", "views/night") == (404, {"error": "view not found: 'night'"})
    assert client.names == ["All"]


def test_only_the_owner_and_operators_change_a_view(client: Client) -> None:
    client.call("PUT", "views/night", NIGHT)
    client.become(EVE)
    for method, body in (("PUT", {"query": ""}), ("DELETE", b"")):
        status, answer = client.call(method, "views/night", body)
        assert status == 403
        assert "belongs to 'mara'" in answer["error"]
    assert client.names == ["night"]
    client.become(OPERATOR)
    assert client.call("PUT", "views/night", {"query": "label=ship"})[1]["owner"] == "mara"
    assert client.call("DELETE", "views/night")[0] == 200


def test_a_team_sees_its_own_views(client: Client) -> None:
    client.call("PUT", "views/night", NIGHT)
    client.become(OTHER)
    assert client.names == []
    assert client.call("DELETE", "views/night")[0] == 404
    assert client.call("PUT", "views/night", {"query": ""})[1]["owner"] == "mallory"
    client.become(EVE)
    assert client.call("GET", "views")[1]["views"][0]["query"] == NIGHT["query"]


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("a", b"", "expected the body to be a JSON object with query, order (-ts, ts) and view"),
        ("a", {"query": 5}, "Expected `str`"),
        ("a", {"query": "", "colour": 1}, "unknown field"),
        ("a", {"query": "", "order": "up"}, "Invalid enum value"),
        ("a", {"query": "", "view": "list"}, "Invalid enum value"),
        ("a", {"query": "meta.camera"}, "expected = after"),
        ("a", {"query": "label=" + "x" * 9000}, "at most 8192 characters"),
        ("%20", {"query": ""}, "expected the name of a view"),
        (".a", {"query": ""}, "to begin with no dot"),
        ("x" * 201, {"query": ""}, "expected the name of a view"),
        ("a%0Ab", {"query": ""}, "without control characters, got 'a\\nb'"),
        ("a%E2%80%AEb", {"query": ""}, "without control characters"),
    ],
)
def test_what_is_no_view_is_refused(client: Client, name: str, body: Any, message: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answer = client.call("PUT", f"views/{name}", content)
    assert status == 400
    assert message in answer["error"]
    assert client.names == []


@pytest.mark.parametrize("name", ["..", "a b", "é", "%2e%2e%2fa", "<script>"])
def test_any_other_name_is_one_file_in_the_folder(
    client: Client, tmp_path: Path, name: str
) -> None:
    status, _ = client.call("PUT", f"views/{name}", {"query": ""})
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all((tmp_path / "views" / ".teams" / "a") in path.parents for path in files)
    assert len(files) == (status == 200)


def test_there_are_only_so_many(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "MAX_VIEWS", 2)
    for name in "ab":
        assert client.call("PUT", f"views/{name}", NIGHT)[0] == 200
    status, answer = client.call("PUT", "views/c", NIGHT)
    assert (status, "at most 2 views" in answer["error"]) == (400, True)
    assert client.call("PUT", "views/a", {"query": ""})[0] == 200
    client.become(OTHER)
    assert client.call("PUT", "views/c", NIGHT)[0] == 200


def test_a_damaged_file_is_passed_over_and_replaced(client: Client, tmp_path: Path) -> None:
    client.call("PUT", "views/a", NIGHT)
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    path.write_bytes(b"{")
    assert client.names == []
    assert client.call("PUT", "views/a", NIGHT)[0] == 200
    assert client.names == ["a"]
