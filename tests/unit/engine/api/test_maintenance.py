from collections.abc import Iterator
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from quadriga.proto.http.chariot import parse_metadata_value
from quadriga.store.changes.service import ChangeService
from quadriga.store.records.ids import IdSource
from tests.background import in_background
from tests.unit.http_client import call, client_of, store_routes
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness


@pytest.fixture
def client(store: StoreHarness) -> Iterator[TestClient[Litestar]]:
    changes = ChangeService(
        store.inferences,
        store.journal,
        IdSource(0),
        read_metadata=parse_metadata_value,
        erasures=store.erasures,
    )
    handlers = store_routes(store.inferences, changes)
    with in_background(store.writer.run), client_of(handlers) as client:
        yield client


RULE = "models/shapes-detector/retention"
FOR_EVER = {"model": "shapes-detector", "inputs_days": None, "inferences_days": None}


def test_a_rule_is_replaced_as_a_whole(client: TestClient[Litestar]) -> None:
    assert client.get(f"/api/{RULE}").json() == FOR_EVER
    for rule in ({"inputs_days": 7, "inferences_days": 30.5}, {"inputs_days": 1}, {}):
        assert call(client, "PUT", RULE, rule) == (200, FOR_EVER | rule)
        assert client.get(f"/api/{RULE}").json() == FOR_EVER | rule
    other_path = "models/an%20other%00/retention"
    assert call(client, "PUT", other_path, {"inferences_days": 0})[0] == 200
    assert client.get(f"/api/{other_path}").json()["inferences_days"] == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"inputs_days": 8, "inferences_days": 7}, "at most inferences_days (7), got 8"),
        ({"inputs_days": -1}, ">= 0"),
        ({"inferences_days": 1e300}, "<= 1000000"),
        ({"inferences_days": "7"}, "numbers or null"),
        ({"days": 7}, "unknown field"),
        (b"", "a JSON object"),
        (b"[]", "a JSON object"),
        (b"\xff", "a JSON object"),
    ],
)
def test_invalid_retention_rule_is_refused(
    client: TestClient[Litestar], body: Any, reason: str
) -> None:
    status, answer = call(client, "PUT", RULE, body)
    assert (status, answer.keys()) == (400, {"error"})
    assert reason in answer["error"]
    assert client.get(f"/api/{RULE}").json() == FOR_EVER


def test_statistics_are_answered(client: TestClient[Litestar], store: StoreHarness) -> None:
    store.journal.append([make_record(n, status=200 if n else 500) for n in range(4)])
    store.inferences.wait_for_journal()
    body = {"group": ["model", {"time": "1d"}], "metrics": ["count", "error_rate", "labels"]}
    assert call(client, "POST", "inferences/aggregate", body) == (
        200,
        {
            "groups": [
                {
                    "time": "2025-01-01T00:00:00.000Z",
                    "model": "shapes-detector",
                    "count": 4,
                    "error_rate": 0.25,
                    "labels": {"circle": 4},
                }
            ],
            "source": "rollups",
            "partial": False,
        },
    )
    status, answer = call(client, "POST", "inferences/aggregate", {"group": ["x"]})
    assert (status, answer.keys()) == (400, {"error"})
    assert call(client, "POST", "inferences/aggregate", b"")[1]["groups"][0]["count"] == 4
