"""An id that leads to the inference of another id is taken wherever a request names an inference."""

import io
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from PIL import Image

from quadriga.proto.http.chariot import parse_metadata_value
from quadriga.store.changes.service import ChangeService
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import InputReference
from tests.background import in_background
from tests.unit.http_client import call, client_of, store_routes
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

FIRST, OTHER, SECOND = 1, 2, 9
"""Two inferences, and an id that leads to the first."""

BOX = {"label": "star", "xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}
PATH = f"inferences/{SECOND}"


class Server:
    """A store whose writer runs, and a client."""

    def __init__(self, store: StoreHarness) -> None:
        self.store = store
        changes = ChangeService(
            store.inferences,
            store.journal,
            IdSource(0),
            read_metadata=parse_metadata_value,
            erasures=store.erasures,
        )
        self.client = client_of(store_routes(store.inferences, changes))

    def call(self, method: str, path: str, body: Any = b"") -> tuple[int, Any]:
        return call(self.client, method, path, body)

    def ok(self, method: str, path: str, body: Any = b"") -> Any:
        """Send a request that succeeds; return its JSON."""
        status, answer = self.call(method, path, body)
        assert status == 200, answer
        return answer

    def truth(self) -> Any:
        """Return the ground truth of the first inference."""
        return self.ok("GET", f"inferences/{FIRST}")["ground_truth"]


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48), "red").save(buffer, "png")
    return buffer.getvalue()


@pytest.fixture
def server(store: StoreHarness) -> Iterator[Server]:
    key = store.blobs.put(picture())
    image = InputReference("image", key, 64, 48, "image/png", kept=True, bytes=len(picture()))
    store.commit(make_record(FIRST, input=image), make_record(OTHER))
    store.execute(f"INSERT INTO repeated_id VALUES ({SECOND}, {FIRST})")
    server = Server(store)
    with server.client, in_background(store.writer.run):
        yield server


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", b""),
        ("GET", "?presign=true", b""),
        ("POST", "/metadata", {"set": {"camera": "north"}}),
        ("POST", "/feedback", {"kind": "thumbs", "value": 1}),
        ("PUT", "/ground-truth", [BOX]),
        ("DELETE", "/ground-truth", b""),
    ],
)
def test_the_answer_is_the_inference_that_is_stored(
    server: Server, method: str, path: str, body: Any
) -> None:
    answer = server.ok(method, f"{PATH}{path}", body)
    assert answer["id"] == str(FIRST)
    stored = server.ok("GET", f"inferences/{FIRST}")
    if "presign" in path:
        assert f"inference={FIRST}" in answer["input"].pop("url")
    assert answer == stored


def test_changes_are_those_of_the_inference_that_is_stored(server: Server) -> None:
    server.ok("POST", f"{PATH}/metadata", {"set": {"camera": "north"}})
    server.ok("POST", f"{PATH}/feedback", {"kind": "thumbs", "value": 1})
    server.ok("PUT", f"{PATH}/ground-truth", [BOX])
    stored = server.ok("GET", f"inferences/{FIRST}")
    assert (stored["metadata"], stored["ground_truth"]) == ({"camera": "north"}, [BOX])
    assert [given["kind"] for given in stored["feedback"]] == ["thumbs"]
    for path in ("ground-truth", "ground-truth/history", "metadata/history", "neighbours"):
        by_each = [server.ok("GET", f"inferences/{seq}/{path}") for seq in (FIRST, SECOND)]
        assert by_each[0] == by_each[1]
        assert by_each[0]
    assert server.store.rows("SELECT join_on, value FROM truth") == [("id", str(FIRST))]
    server.ok("DELETE", f"{PATH}/ground-truth")
    assert server.truth() is None
    assert server.ok("GET", f"inferences/{OTHER}")["feedback"] == []


def test_the_image_and_its_thumbnail_are_those_that_are_stored(server: Server) -> None:
    for query in ("", "?w=256"):
        by_each = [
            server.client.get(f"/api/inferences/{seq}/input{query}") for seq in (FIRST, SECOND)
        ]
        assert [response.status_code for response in by_each] == [200, 200]
        assert by_each[0].content == by_each[1].content


def test_a_conditional_change_meets_the_revision_of_the_inference(server: Server) -> None:
    put = partial(server.client.put, content=json.dumps([BOX]))
    created = put(f"/api/inferences/{FIRST}/ground-truth", headers={"If-None-Match": "*"})
    assert created.status_code == 200
    path, tag = f"/api/{PATH}/ground-truth", created.headers["ETag"]
    assert put(path, headers={"If-None-Match": "*"}).status_code == 412
    assert put(path, headers={"If-Match": tag}).status_code == 200
    assert put(path, headers={"If-Match": tag}).status_code == 412


LINE = {"inference_id": str(SECOND), "annotations": [BOX]}
ITEMS = {"join": "id", "items": [{"value": str(SECOND), "annotations": [BOX]}]}


@pytest.mark.parametrize(
    "body",
    [
        LINE,
        ITEMS,
        ITEMS | {"where": {"model": "shapes-detector"}},
        b"\n".join(
            json.dumps(LINE | {"inference_id": str(seq)}).encode() for seq in (OTHER, SECOND)
        ),
    ],
    ids=["line", "items", "items with a filter", "lines"],
)
def test_statements_of_many_follow_an_id(server: Server, body: Any) -> None:
    count = 2 if isinstance(body, bytes) else 1
    result = server.ok("POST", "ground-truth", body)
    assert (result["stated"], result["matched"], result["refused"]) == (count, count, [])
    assert server.truth() == [BOX]


def test_statements_of_many_have_to_fit_the_inference_that_is_stored(server: Server) -> None:
    answers = {"value": str(SECOND), "annotations": [{"answer": "a star"}]}
    status, answer = server.call("POST", "ground-truth", {"join": "id", "items": [answers]})
    assert status == 400
    assert "as ground truth of OBJECT_DETECTION" in answer["error"]
    assert server.truth() is None


def test_a_queue_goes_on_after_the_inference_that_is_stored(server: Server) -> None:
    bodies = [{"after": str(seq), "by": "random"} for seq in (FIRST, SECOND)]
    first, second = (server.ok("POST", "inferences/label-queue", body) for body in bodies)
    assert first == second


def test_what_is_deleted_by_an_id_is_the_inference_that_it_leads_to(server: Server) -> None:
    body = {"where": {"id": str(SECOND)}}
    assert server.ok("POST", "inferences/delete", body)["ids"] == [str(FIRST)]
    assert server.ok("POST", "inferences/delete", body)["ids"] == []
    assert [server.call("GET", f"inferences/{seq}")[0] for seq in (FIRST, OTHER, SECOND)] == [
        404, 200, 404
    ]  # fmt: skip
