from collections.abc import Iterator
from pathlib import Path

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.blobs.interface import blob_key
from quadriga.store.journal.journal import Journal
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import InputReference
from tests.unit.http_client import client_of, store_routes
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import commit_journal


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient[Litestar]]:
    blobs, journal = FileBlobs(tmp_path / "blobs"), Journal(tmp_path / "journal", 0)
    url = f"sqlite:///{tmp_path}/store.db"
    reference = InputReference(
        "image", blobs.put(b"\x89PNG"), 1, height=1, mime="image/png", kept=True
    )
    page = InputReference("page", blobs.put(b"<p>"), None, height=None, mime="text/html", kept=True)
    gone = InputReference("image", blob_key(b"gone"), 1, height=1, mime="image/png", kept=True)
    ms = smallest_id_at(1_769_860_800_123)
    journal.append([
        make_record(ms, input=reference, metadata={"camera_id": "north", "location": {"floor": 2}}),
        make_record(2, input=page), make_record(3, input=gone), make_record(4),
    ])  # fmt: skip
    commit_journal(url, tmp_path / "journal")
    inferences = InferenceReader(url, tmp_path / "journal", blobs)
    with client_of(store_routes(inferences)) as client:
        yield client
    inferences.close()
    journal.close()


ID = str(smallest_id_at(1_769_860_800_123))


def test_an_inference_reads_as_the_contract_says(client: TestClient[Litestar]) -> None:
    response = client.get(f"/api/inferences/{ID}")
    assert response.status_code == 200
    assert response.json() == {
        "id": ID,
        "request_id": f"request-{ID}",
        "image_no": 0,
        "model": {"name": "shapes-detector", "version": "1", "sha256": "ab" * 32},
        "task": "OBJECT_DETECTION",
        "action": "predict",
        "created_at": "2026-01-31T12:00:00.123Z",
        "latency_ms": 4.2,
        "input": {
            "name": "image",
            "hash": blob_key(b"\x89PNG"),
            "width": 1,
            "height": 1,
            "mime": "image/png",
            "kept": True,
            "bytes": None,
        },
        "predictions": [{"label": "circle", "score": 0.98, "xmin": 1}],
        "metadata": {"camera_id": "north", "location": {"floor": 2}},
        "status": 200,
        "standard_metadata": {},
        "ground_truth": None,
        "feedback": [],
    }


@pytest.mark.parametrize(
    "content_type", ["application/json", "text/plain", "", "multipart/form-data"]
)
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_query_is_json_whatever_its_content_type(client, content_type: str, slash: str) -> None:
    response = client.post(
        f"/api/inferences/query{slash}",
        content=b'{"where": {"meta.location.floor": 2}, "count": "exact"}',
        headers={"Content-Type": content_type},
    )
    assert response.status_code == 200
    body = response.json()
    assert [record["id"] for record in body.pop("inferences")] == [ID]
    assert body == {"cursor": None, "count": 1, "partial": False, "count_is_exact": True}


def test_a_filter_by_a_key_that_nothing_has_says_so_and_no_other_answer_changes(client) -> None:
    warnings = ["no stored inference has the metadata key 'camera'; did you mean meta.camera_id?"]
    body = {"where": "meta.camera=north"}
    page = client.post("/api/inferences/query", json=body)
    assert (page.status_code, page.json()["warnings"]) == (200, warnings)
    assert client.get("/api/inferences?meta.camera=north").json()["warnings"] == warnings
    count = client.post("/api/inferences/count", json=body).json()
    assert count == {"count": 0, "is_exact": True, "warnings": warnings}
    for where in ("meta.camera_id=south", "meta.camera_id=north", "label=zebra"):
        assert "warnings" not in client.post("/api/inferences/query", json={"where": where}).json()
        assert "warnings" not in client.post("/api/inferences/count", json={"where": where}).json()


def test_an_empty_body_finds_everything(client) -> None:
    body = client.post("/api/inferences/query").json()
    assert [record["id"] for record in body["inferences"]] == [ID, "4", "3", "2"]
    assert (body["cursor"], body["count"]) == (None, None)


OPTIONS = "order (-ts, ts), limit, cursor, count (capped, exact, none), consistency (journal)"
FIELDS = f"where, {OPTIONS}, pagination, metadata_filter, gps_box, time_range"
BODY = f"expected the body to be a JSON object with {FIELDS}, got: "


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", BODY),
        (b"[]", BODY + "Expected `object`, got `array`"),
        (b"null", BODY),
        (b'{"were": {}}', BODY + "Object contains unknown field `were`"),
        (b'{"limit": 0}', BODY + "Expected `int` >= 1 - at `$.limit`"),
        (b'{"limit": 1001}', BODY + "Expected `int` <= 1000 - at `$.limit`"),
        (b'{"order": "up"}', BODY + "Invalid enum value 'up' - at `$.order`"),
        (b'{"where": ' + b"[" * 100_000, BODY),
        (b'{"cursor": "\xff"}', BODY),
        (b'{"where": {"gio": 1}}', "expected where.gio to name one of id, request_id"),
        (
            b'{"where": "meta.camera"}',
            "expected = after 'meta.camera', as in meta.altitude=ge:100, at",
        ),
        (
            b'{"pagination": {"offset": 100001}}',
            "expected pagination.offset to be from 0 to 100,000, got 100001: further pages follow by cursor",
        ),
        (b'{"pagination": {"offset": -1}}', "expected pagination.offset to be from 0 to 100,000"),
        (
            b'{"pagination": {"offset": 1}, "cursor": "a"}',
            "pagination.offset and cursor cannot be used together",
        ),
        (b'{"pagination": {"limit": 0}}', BODY + "Expected `int` >= 1 - at `$.pagination.limit`"),
        (b'{"pagination": {"sort": "id"}}', "expected pagination to sort by created_at"),
        (
            b'{"metadata_filter": [{"key": "a"}]}',
            "expected metadata_filter to be a list of objects with key, type, operator and value, gps_box",
        ),
        (b'{"metadata_filter": {}}', "expected metadata_filter to be a list of objects"),
        (
            b'{"metadata_filter": [{"key": "a", "value": "x", "type": "int"}]}',
            "expected metadata_filter[0].value to be text of type int",
        ),
        (b'{"cursor": "?"}', "expected cursor to be one that a page gave"),
        (b'{"cursor": "MTIuYWI"}', "the cursor belongs to another filter or order"),
    ],
)
def test_a_bad_query_is_refused_with_its_reason(client, body: bytes, message: str) -> None:
    response = client.post("/api/inferences/query", content=body)
    assert response.status_code == 400
    assert response.json()["error"].startswith(message)


ASCENDING = b'{"pagination": {"limit": 2, "direction": "ASCENDING", "offset": 0}}'


def test_chariots_pagination_is_a_limit_and_an_order(client) -> None:
    body = client.post("/api/inferences/query", content=ASCENDING).json()
    assert [record["id"] for record in body["inferences"]] == ["2", "3"]


@pytest.mark.parametrize(
    ("offset", "limit", "ids", "has_cursor"),
    [
        (1, 2, ["4", "3"], True),
        (2, 2, ["3", "2"], False),
        (3, 2, ["2"], False),
        (4, 2, [], False),
        (100_000, 2, [], False),
    ],
)
def test_an_offset_skips_matches(client, offset, limit, ids, has_cursor) -> None:
    pagination = {"offset": offset, "limit": limit}
    page = client.post("/api/inferences/query", json={"pagination": pagination, "count": "exact"})
    body = page.json()
    assert [record["id"] for record in body["inferences"]] == ids
    assert (body["cursor"] is not None, body["count"], body["partial"]) == (has_cursor, 4, False)
    if has_cursor:
        following = client.post("/api/inferences/query", json={"cursor": body["cursor"]}).json()
        assert [record["id"] for record in following["inferences"]] == ["2"]


def test_a_count_takes_the_body_of_the_query(client) -> None:
    body = {
        "metadata_filter": NORTH,
        "pagination": {"offset": 1, "limit": 1},
        "consistency": "journal",
    }
    assert client.post("/api/inferences/count", json=body).json() == {"count": 1, "is_exact": True}


NORTH = [{"key": "camera_id", "operator": "in", "value": '["north", "east"]'}]


def test_statistics_take_filters_of_chariot(client) -> None:
    for where, count in ((None, 1), ("id=4", 0)):
        body = {"where": where, "metadata_filter": NORTH, "metrics": ["count"]}
        groups = client.post("/api/inferences/aggregate", json=body).json()["groups"]
        assert groups[0]["count"] == count


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_query_can_stand_in_the_url(client, slash: str) -> None:
    body = client.get(
        f"/api/inferences{slash}?meta.camera_id=north&!label=none&q=(meta.location.floor=2|id=4)"
        "&limit=1&order=ts&count=capped"
    ).json()
    assert [record["id"] for record in body["inferences"]] == [ID]
    first = client.get("/api/inferences?limit=3").json()
    second = client.get(f"/api/inferences?limit=3&cursor={first['cursor']}").json()
    assert [record["id"] for record in second["inferences"]] == ["2"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("limit=0", f"expected {OPTIONS}, got: Expected `int` >= 1"),
        ("limit=x", "got: Expected `int`, got `str`"),
        ("limit=1&limit=2", "expected limit once, got it twice"),
        ("order=up", "got: Invalid enum value 'up'"),
        ("colour=red", "expected colour to name one of id, request_id"),
        ("meta.a=x%26y", "quotes around & | ( ) < > and quotes, got 'x&y'"),
        ("meta.a=>5", "expected meta.a to have an operator as in ge:5, or quotes"),
        ("meta.a>=5", "expected a comparison such as meta.altitude=ge:100, got 'meta.a>'"),
        ("meta.a=%ff", "expected at most 250 parameters in UTF-8"),
        ("&".join(["meta.a=1"] * 251), "expected at most 250 parameters"),
        (
            "q=(meta.a=1",
            "expected a closing parenthesis at character 10 of the filter, got its end",
        ),
        ("meta.a=1&q=id=1)|(id=2", "expected & or | and another comparison"),
        ("ts=ge:yesterday", "expected ts.ge to be a moment such as"),
    ],
)
def test_a_bad_query_in_a_url_is_refused_with_its_reason(client, query: str, message: str) -> None:
    response = client.get(f"/api/inferences?{query}")
    assert response.status_code == 400
    assert message in response.json()["error"]


def test_matches_are_counted(client) -> None:
    for body, count in ((b"", 4), (b'{"where": "meta.camera_id=north"}', 1)):
        response = client.post("/api/inferences/count", content=body)
        assert (response.status_code, response.json()) == (200, {"count": count, "is_exact": True})
    response = client.post("/api/inferences/count", content=b'{"limit": 3}')
    assert response.status_code == 400


def test_input_is_returned_unchanged(client) -> None:
    response = client.get(f"/api/inferences/{ID}/input")
    assert (response.status_code, response.content) == (200, b"\x89PNG")
    assert response.headers["content-type"] == "image/png"
    response = client.get("/api/inferences/2/input")
    assert (response.content, response.headers["content-type"]) == (
        b"<p>",
        "application/octet-stream",
    )
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("5", 404, "inference not found: 5"),
        (str(1 << 63), 404, "inference not found"),
        ("abc", 400, "expected an id as a string of digits, got 'abc'"),
        ("9" * 20, 400, "expected an id as a string of digits"),
        ("3/input", 404, "input of 3 is not available: removed since"),
        ("4/input", 404, "input of 4 is not available: not stored"),
        ("5/input", 404, "inference not found: 5"),
    ],
)
def test_unknown_inference_is_not_found(client, path: str, status: int, message: str) -> None:
    response = client.get(f"/api/inferences/{path}")
    assert response.status_code == status
    assert message in response.json()["error"]


def test_the_routes_are_described(client) -> None:
    paths = client.get("/schema/openapi.json").json()["paths"]
    assert "/api/inferences/query" in paths


@pytest.mark.parametrize(
    ("inference_id", "content", "content_type"),
    [(ID, b"\x89PNG", "image/png"), ("2", b"<p>", "application/octet-stream")],
)
def test_a_presigned_url_answers_the_input(client, inference_id, content, content_type) -> None:
    plain = client.get(f"/api/inferences/{inference_id}").json()
    assert "url" not in plain["input"]
    answer = client.get(f"/api/inferences/{inference_id}", params={"presign": "true"})
    url = answer.json()["input"].pop("url")
    assert url.startswith(f"{client.base_url}/api/blobs/")
    response = client.get(url)
    assert response.content == content
    assert response.headers["content-type"] == content_type
    assert response.headers["x-content-type-options"] == "nosniff"
    changed = client.get(url.replace("type=", "type=x"))
    assert changed.status_code == 400
    assert "the signature of the URL" in changed.json()["error"]


def test_a_presigned_url_of_bytes_that_are_gone_answers_404(client) -> None:
    url = client.get("/api/inferences/3?presign=True").json()["input"]["url"]
    assert client.get(url).status_code == 404


def test_input_that_was_not_stored_has_no_url(client) -> None:
    assert "url" not in client.get("/api/inferences/4?presign=1").json()["input"]


@pytest.mark.parametrize("query", ["", "?expires=1&type=image/png", "?signature=%ff&expires=x"])
def test_a_blob_is_answered_to_nobody_without_a_signature(client, query: str) -> None:
    digest = blob_key(b"\x89PNG").partition(":")[2]
    response = client.get(f"/api/blobs/{digest}{query}")
    assert response.status_code == 400
    assert "the signature of the URL is not one of this server" in response.json()["error"]
