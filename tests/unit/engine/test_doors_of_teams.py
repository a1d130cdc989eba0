"""Each door with the key of each role of each team: which it opens, and that no answer has what another team stored."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.proto.access import ROLES, Need, Role
from quadriga.proto.http.operations import WireOptions, all_operations, expand_path
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import InputReference, ModelReference
from quadriga.store.records.scope import Scope
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.asgi_request import send_request
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

TEAMS = ("", "a", "b")
NOW_MS = 1_790_000_000_000
MODEL = "shapes-detector"


class Stored(NamedTuple):
    """What a team has stored, and the texts that only its own answers may have."""

    inference_id: str
    job_id: str
    image: bytes

    @property
    def marks(self) -> list[bytes]:
        return [self.inference_id.encode(), self.job_id.encode(), self.image, b"secret-of-b"]

    def absent(self, text: str) -> str:
        """Return a text with ids of nothing in place of those of what is stored."""
        for id_ in (self.inference_id, self.job_id):
            text = text.replace(id_, f"{id_[:-1]}{(int(id_[-1], 16) + 1) % 10}")
        return text


class Server(NamedTuple):
    """A server with a key of each role of each team."""

    application: Application
    keys: dict[tuple[str, str], str]
    stored: Stored


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server of which team b has stored an inference with an image, ground truth and a job."""
    data = tmp_path_factory.mktemp("teams") / "data"
    settings = Settings(models=str(SAMPLE_MODELS), data=str(data), model_control=False)
    migrate(settings.database_url)
    with writer_engine(settings.database_url) as engine:
        keys = {
            (role, team): create_key(engine, name=role, roles=[role], team=team)[1]
            for role in get_args(Role)
            for team in TEAMS
        }
    store = StoreHarness(data, settings.database_url)
    seq = smallest_id_at(NOW_MS) + 7
    image = b"\xff\xd8\xffan image of team b"
    digest = store.blobs.put(image)
    store.add(
        make_record(
            seq,
            team="b",
            model=ModelReference(MODEL, "1", "cd" * 32),
            input=InputReference("secret-of-b", digest, 8, 8, "image/jpeg", kept=True),
            predictions=[{"label": "secret-of-b", "score": 0.9, "xmin": 1, "ymin": 1, "xmax": 2, "ymax": 2}],
            metadata={"secret-of-b": "secret-of-b"},
        )
    )  # fmt: skip
    job = store.jobs.within(Scope("b")).submit("export", {"where": {"meta.secret-of-b": "x"}})
    store.close()
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    yield Server(application, keys, Stored(str(seq), job.id, image))
    application.close()


def doors(server: Server) -> list[tuple[str, str, Need]]:
    """Return verb, path and need of every operation and route; parameters are those of what team b has stored."""
    operations = all_operations(server.application.pipeline, WireOptions(server_version=""))
    listed: list[tuple[str, str, Need]] = [
        (operation.method, filled(path, server.stored), operation.need)
        for operation in operations
        for path in expand_path(operation.path)
    ]
    routes: Any = server.application.asgi._routes
    for route in routes.routes:
        for handler in route.route_handlers:
            listed += [
                (method, filled(route.path, server.stored), handler.opt["need"])
                for method in sorted(handler.http_methods)
                if method != "OPTIONS"
            ]
    return listed


def filled(path: str, stored: Stored) -> str:
    """Put the ids of what is stored for the parameters of a path."""
    values = {
        "inference_id": stored.inference_id,
        "job_id": stored.job_id,
        "report_id": stored.job_id,
    }
    return re.sub(
        r"\{(\w+)[^}]*\}",
        lambda parameter: values.get(parameter[1], MODEL if parameter[1] in ("name", "model") else "x"),
        path,
    )  # fmt: skip


def body_of(method: str, path: str) -> bytes:
    """Return a body that asks for everything; where that would change something, one that is refused or changes nothing."""
    if method == "GET":
        return b""
    if path == "/api/inferences/delete":
        return json.dumps({"where": {}, "all": True, "dry_run": True}).encode()
    if path in ("/api/inferences/disagreements", "/api/inferences/comparison"):
        return json.dumps({"a": MODEL, "b": "shapes-classifier"}).encode()
    if path.startswith("/api/inferences/") and path.rpartition("/")[2] in (
        "query",
        "count",
        "aggregate",
        "facets",
        "label-queue",
    ):
        return json.dumps({"where": {}}).encode()
    return b"{}"


def ask(server: Server, method: str, path: str, key: str) -> tuple[int, bytes]:
    """Send a request; return status and body."""
    headers = {"authorization": f"Bearer {key}"}
    body = body_of(method, path)
    response = send_request(server.application, method, path, headers, body=body)
    return response.status, response.body


READS = frozenset(
    {
        "query",
        "count",
        "aggregate",
        "facets",
        "label-queue",
        "disagreements",
        "comparison",
        "index",
        "delete",
    }
)
"""Last parts of paths whose POST changes nothing with the body of `body_of`."""


OF_ALL_TEAMS = {
    "/metrics", "/api/audit", "/console/audit", "/console/keys",
    "/v2/models/stats", f"/v2/models/{MODEL}/stats", f"/v2/models/{MODEL}/versions/x/stats",
}  # fmt: skip
"""Paths that answer about all teams, and so only to keys without one."""


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("role", get_args(Role))
def test_each_cell_of_door_role_and_team(server: Server, role: Role, team: str) -> None:
    key = server.keys[role, team]
    shown: Counter[str] = Counter()
    of_all: set[str] = set()
    for method, path, need in doors(server):
        opens = need in ("nothing", "key") or need in ROLES[role]
        if opens and method != "GET" and path.rpartition("/")[2] not in READS:
            continue  # it may change something: what each change does to other teams is tested on its own
        status, body = ask(server, method, path, key)
        is_of_all = (
            team != ""
            and status == 403
            and (b"of all teams" in body or b"of the whole server" in body)
        )
        if is_of_all:
            of_all.add(path)
        assert (status == 403) is (not opens or is_of_all), (method, path, need, status, body)
        assert status not in (401, 500), (method, path, body)
        absent = server.stored.absent(path)
        if team == "a" and opens and absent != path:
            absent_status, absent_body = ask(server, method, absent, key)
            body = server.stored.absent(body.decode("latin-1")).encode("latin-1")
            assert (status, body) == (absent_status, absent_body), (method, path)
        seen = [mark for mark in server.stored.marks if mark in body]
        assert team != "a" or not seen, (method, path, seen, body)
        shown.update(path for _ in seen)
    reads = "read" in ROLES[role]
    expected = {
        "/api/inferences",
        "/api/inferences/query",
        "/api/inferences/facets",
        f"/api/inferences/{server.stored.inference_id}",
    }
    assert expected <= set(shown) if team != "a" and reads else not expected & set(shown)
    assert of_all <= OF_ALL_TEAMS
