"""Facets, neighbours and what resembles one over HTTP: both forms of a request, and errors as elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from litestar import Litestar
from litestar.testing import TestClient

from quadriga.store.records.records import (
    ImageSignals,
    InputReference,
    ModelReference,
    SignalsOfImages,
)
from tests.unit.http_client import client_of, store_routes
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient[Litestar]]:
    store = StoreHarness(tmp_path, f"sqlite:///{tmp_path}/store.db")
    store.commit(
        *(make_record(seq, metadata={"camera": "north", "altitude": seq}) for seq in (1, 2, 3)),
        make_record(4, metadata={"camera": "east"}),
        *(
            make_record(
                seq,
                input=InputReference("image", f"blake3:{seq:064x}", 8, 8),
                metadata={"camera": "similar"},
            )
            for seq in (5, 6, 7)
        ),
    )
    embeddings = {5: (1, 0), 6: (0, 1), 7: (1, 1)}
    signals = [
        ImageSignals(seq, b"", np.array(e, "<f2").tobytes(), "ab" * 8)
        for seq, e in embeddings.items()
    ]
    store.commit_changes(SignalsOfImages(signals))
    with client_of(store_routes(store.inferences)) as client:
        yield client
    store.close()


@pytest.mark.parametrize("slash", ["", "/"])
def test_facets_are_answered_by_url_and_by_body(client, slash: str) -> None:
    by_url = client.get(
        f"/api/inferences/facets{slash}?meta.camera=north&fields=meta.altitude&bins=2"
    )
    body = {"where": {"meta.camera": "north"}, "fields": ["meta.altitude"], "bins": 2}
    by_body = client.post(f"/api/inferences/facets{slash}", json=body)
    assert (by_url.status_code, by_body.status_code) == (200, 200)
    answer = by_url.json()
    assert answer == by_body.json()
    time = answer.pop("time")
    assert [bin_["count"] for bin_ in time if bin_["count"]] == [3]  # within one millisecond
    assert time[0].keys() == {"from", "to", "count"}
    assert answer == {
        "count": 3,
        "is_exact_count": True,
        "exact": True,
        "sampled": 3,
        "facets": [
            {
                "field": "meta.altitude",
                "type": "number",
                "count": 3,
                "distinct": 3,
                "values": [{"value": 1.0, "count": 1}, {"value": 2.0, "count": 1}, {"value": 3.0, "count": 1}],
                "histogram": [{"from": 0.0, "to": 2.0, "count": 1}, {"from": 2.0, "to": 4.0, "count": 2}],
            }
        ],
        "more_facets": 0,
    }  # fmt: skip


def test_facets_of_everything_have_all_fields(client) -> None:
    answer = client.post("/api/inferences/facets").json()
    assert answer == client.get("/api/inferences/facets").json()
    assert {"model", "label", "score", "latency_ms", "meta.camera", "meta.altitude"} <= {
        facet["field"] for facet in answer["facets"]
    }
    chariot = {"metadata_filter": [{"key": "camera", "operator": "eq", "value": "east"}]}
    assert client.post("/api/inferences/facets", json=chariot).json()["count"] == 1


def test_neighbours_are_answered_within_the_filter_of_the_url(client) -> None:
    path = "/api/inferences/2/neighbours"
    assert client.get(path).json() == {"previous": "3", "next": "1", "partial": False}
    answer = client.get(f"{path}?meta.altitude=ge:2&order=ts").json()
    assert answer == {"previous": None, "next": "3", "partial": False}
    answer = client.get(f"{path}/?q=(meta.camera=east|id=1)").json()
    assert answer == {"previous": "4", "next": "1", "partial": False}


def test_what_resembles_an_inference_is_answered_within_the_filter_of_the_url(client) -> None:
    answer = client.get("/api/inferences/5/similar").json()
    expected = [{"id": "7", "similarity": 0.707107}, {"id": "6", "similarity": 0.0}]
    assert answer == {"inferences": expected, "compared": 2, "partial": False}
    answer = client.get("/api/inferences/5/similar/?id=le:6&limit=1").json()
    assert answer == {"inferences": expected[1:], "compared": 1, "partial": False}
    answer = client.get("/api/inferences/6/similar?q=meta.camera=north").json()
    assert answer == {"inferences": [], "compared": 0, "partial": False}


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("5/similar?limit=101", 400, "expected limit, got: Expected `int` <= 100"),
        ("5/similar?order=ts", 400, "expected order to name one of id"),
        ("x/similar", 400, "expected an id as a string of digits, got 'x'"),
        ("9/similar", 404, "inference not found: 9"),
        ("1/similar", 404, "the inference has no embedding, or not yet: 1"),
        ("facets?fields=x", 400, "expected fields[0] to be one of model, version"),
        ("facets?values=0", 400, "expected fields, values, bins, got: Expected `int` >= 1"),
        ("facets?colour=red", 400, "expected colour to name one of id"),
        ("facets?q=(", 400, "of the filter"),
        ("2/neighbours?limit=1", 400, "expected limit to name one of id"),
        ("2/neighbours?order=up", 400, "expected order (-ts, ts), got: "),
        ("x/neighbours", 400, "expected an id as a string of digits, got 'x'"),
        ("9/neighbours", 404, "inference not found: 9"),
    ],
)
def test_bad_requests_are_refused_with_their_reason(
    client, path: str, status: int, message: str
) -> None:
    response = client.get(f"/api/inferences/{path}")
    assert response.status_code == status
    assert message in response.json()["error"]


def test_the_routes_are_described_with_their_parameters(client) -> None:
    paths = client.get("/schema/openapi.json").json()["paths"]
    facets = paths["/api/inferences/facets"]
    assert [p["name"] for p in facets["get"]["parameters"]] == ["q", "fields", "values", "bins"]
    schema = facets["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"where", "fields", "values", "bins"} <= schema["properties"].keys()
    neighbours = paths["/api/inferences/{inference_id}/neighbours"]["get"]["parameters"]
    assert [p["name"] for p in neighbours] == ["inference_id", "q", "order"]
    similar = paths["/api/inferences/{inference_id}/similar"]["get"]["parameters"]
    assert [p["name"] for p in similar] == ["inference_id", "q", "limit"]


def test_disagreements_are_answered_with_both_records(tmp_path: Path) -> None:
    store = StoreHarness(tmp_path, f"sqlite:///{tmp_path}/store.db")
    image = InputReference("image", "blake3:" + "0" * 64, 8, 8)
    for seq, label in ((1, "star"), (2, "ring")):
        model = ModelReference("shapes", str(seq), "ab" * 32)
        predictions = [{"label": label, "score": 0.9}]
        store.commit(make_record(seq, model=model, input=image, predictions=predictions))
    with client_of(store_routes(store.inferences)) as client:
        body = {"a": "shapes:1", "b": "shapes:2"}
        answer = client.post("/api/inferences/disagreements", json=body)
        assert answer.status_code == 200
        (pair,) = answer.json()["disagreements"]
        assert (pair["a"]["id"], pair["b"]["id"]) == ("1", "2")
        assert (pair["only_a"], pair["only_b"]) == ([0], [0])
        refused = client.post("/api/inferences/disagreements", json={"a": "shapes:1"})
        assert refused.status_code == 400
        assert "missing required field `b`" in refused.json()["error"]
    store.close()


def test_what_to_label_next_is_answered_by_url_and_by_body(client) -> None:
    by_url = client.get("/api/inferences/label-queue?meta.camera=north&by=random&limit=2")
    body = {"where": {"meta.camera": "north"}, "by": "random", "limit": 2}
    by_body = client.post("/api/inferences/label-queue", json=body)
    assert (by_url.status_code, by_body.status_code) == (200, 200)
    answer = by_url.json()
    assert answer == by_body.json()
    assert len(answer["inferences"]) == 2
    assert (answer["considered"], answer["partial"]) == (3, False)
    assert client.get("/api/inferences/label-queue?by=age").status_code == 400
    assert client.get("/api/inferences/label-queue?after=99").status_code == 404
