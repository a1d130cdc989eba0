"""Events of KServe's logger: in any order, twice, alone, unreadable, hostile; each pair is one inference."""

import itertools
import json
from typing import Any

import msgspec
import pytest

from quadriga.engine.external.event_pairs import EventPairs, EventResult
from quadriga.proto.access import Caller
from quadriga.proto.errors import Forbidden, InvalidRequest
from quadriga.proto.request import RequestContext, set_current_request
from quadriga.store.records.errors import JournalError
from quadriga.store.records.ids import time_ms
from tests.unit.engine.logged.log_harness import BOX, LogHarness, encoded, picture

TYPE = "org.kubeflow.serving.inference."
REQUEST = {"instances": [{"image": {"b64": encoded(picture())}}]}
RESPONSE = {"predictions": [[BOX]]}
BODIES = {"request": REQUEST, "response": RESPONSE}
ORDERS = [
    order
    for size in (2, 3, 4)
    for order in itertools.product(("request", "response"), repeat=size)
    if len(set(order)) == 2
]


def attributes(kind: str, **changes: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": "one",
        "type": TYPE + kind,
        "source": "http://localhost:9081/",
        "time": "2026-01-31T12:00:00.5Z" if kind == "request" else "2026-01-31T12:00:00.75Z",
        "inferenceservicename": "theirs",
        "namespace": "prod",
        "component": "predictor",
        "endpoint": "default",
        "metadata": '{"X-Camera": ["north"]}',
        **changes,
    }


def take(harness: LogHarness, kind: str, body: Any = None, **changes: Any) -> EventResult:
    data = BODIES[kind] if body is None else body
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    return harness.events.take(attributes(kind, **changes), text)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_pair_is_one_inference_whatever_comes_first_and_how_often(harness, order) -> None:
    results = [take(harness, kind) for kind in order]
    (record,) = harness.records()
    assert {id_ for result in results for id_ in result.inference_ids} == {str(record.seq)}
    assert [r.state for r in results].count("stored") == 1
    assert (record.request_id, record.model.name, record.task) == (
        "one",
        "theirs",
        "OBJECT_DETECTION",
    )
    assert (record.latency_ms, time_ms(record.seq)) == (250, 1_769_860_800_500)
    assert record.input.width == 8
    assert msgspec.json.decode(record.metadata) == {
        "kserve": {
            "namespace": "prod",
            "component": "predictor",
            "endpoint": "default",
            "headers": {"X-Camera": "north"},
        }
    }
    assert harness.standard() == {"engine": "1", "protocol": "kserve-logger", "event_id": "one"}
    assert harness.halves.counts() == (0, 0)
    assert harness.signals() == [record.seq]


def test_halves_at_two_servers_that_share_the_folder_are_one_inference(harness, tmp_path) -> None:
    other = LogHarness(tmp_path / "other", worker=2)
    shared = EventPairs(other.service, harness.halves)
    assert take(harness, "request").state == "waiting"
    result = shared.take(attributes("response"), json.dumps(RESPONSE).encode())
    assert result.state == "stored"
    assert take(harness, "request").state == "repeated"
    assert (len(harness.records()), len(other.records())) == (0, 1)
    other.close()


def test_a_server_that_dies_while_it_stores_a_pair_stores_it_once(harness, monkeypatch) -> None:
    take(harness, "request")

    def die(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(harness.halves, "finish", die)
        with pytest.raises(RuntimeError):
            take(harness, "response")
    assert len(harness.records()) == 1
    assert take(harness, "response").state == "stored"
    assert len(harness.records()) == 1


@pytest.mark.parametrize(
    "change",
    [{"namespace": "dev"}, {"endpoint": "canary"}, {"component": "transformer"}, {"id": "two"}],
)
def test_halves_of_different_pairs_wait_for_their_own(harness, change) -> None:
    take(harness, "request")
    assert take(harness, "response", **change).state == "waiting"
    assert harness.records() == []


def test_the_id_of_another_teams_event_reaches_nothing_of_it(harness) -> None:
    set_current_request(
        RequestContext(caller=Caller(name="v", rights=frozenset({"infer"}), team="victim"))
    )
    take(harness, "request")
    set_current_request(
        RequestContext(caller=Caller(name="a", rights=frozenset({"infer"}), team="attacker"))
    )
    assert take(harness, "response", {"predictions": [[]]}).state == "waiting"
    set_current_request(
        RequestContext(caller=Caller(name="v", rights=frozenset({"infer"}), team="victim"))
    )
    assert take(harness, "response").state == "stored"
    (record,) = harness.records()
    assert (record.team, harness.predictions()) == ("victim", [BOX])
    # what stayed alone is of the team that sent it, whoever stores it
    set_current_request(
        RequestContext(caller=Caller(name="v", rights=frozenset({"infer"}), team="victim"))
    )
    assert harness.events.sweep() == 1
    assert harness.records()[1].team == "attacker"


def test_a_flood_of_halves_is_bounded_and_keeps_no_other_team_away(harness) -> None:
    set_current_request(
        RequestContext(caller=Caller(name="a", rights=frozenset({"infer"}), team="flood"))
    )
    body = {"instances": ["x" * 100_000]}
    for number in range(9):
        take(harness, "request", body, id=str(number))
    with pytest.raises(JournalError, match="at most 1000000 bytes"):
        take(harness, "request", body, id="one more")
    _, waiting_bytes = harness.halves.counts()
    assert waiting_bytes <= 1_000_000
    set_current_request(
        RequestContext(caller=Caller(name="v", rights=frozenset({"infer"}), team="other"))
    )
    take(harness, "request")
    assert take(harness, "response").state == "stored"


def test_halves_that_stay_alone_are_stored_alone_and_late_ones_are_dropped(harness) -> None:
    take(harness, "request", id="r")
    take(harness, "response", id="s")
    assert harness.events.sweep() == 2
    assert harness.events.sweep() == 0
    by_id = {record.request_id: record for record in harness.records()}
    assert (by_id["r"].status, bytes(by_id["r"].predictions), by_id["r"].input.kept) == (
        500,
        b"[]",
        True,
    )
    assert msgspec.json.decode(by_id["r"].standard)["error"] == "no response was logged"
    assert (by_id["s"].status, by_id["s"].input.kept) == (200, False)
    assert msgspec.json.decode(by_id["s"].predictions) == [BOX]
    assert take(harness, "response", id="r").state == "late"
    assert take(harness, "request", id="r").state == "repeated"
    assert len(harness.records()) == 2
    counts = harness.events.counters()
    names = ("alone", "late", "repeated", "paired", "waiting")
    assert [counts.get(f"events_{n}_total", counts.get(f"events_{n}")) for n in names] == [
        2,
        1,
        1,
        0,
        0,
    ]


UNREAD = {
    "too many": {"predictions": [[BOX], [BOX]]},
    "no number": {"predictions": [[{**BOX, "score": float("nan")}]]},
    "no predictions": {"predictions": []},
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_pair_that_cannot_be_read_is_kept_with_its_image_and_the_reason(harness, name) -> None:
    take(harness, "request")
    assert take(harness, "response", UNREAD[name]).state == "stored"
    (record,) = harness.records()
    assert (record.task, record.input.width) == ("TENSOR", 8)
    assert harness.predictions() == [{"name": "response", "data": json.dumps(UNREAD[name])}]
    assert harness.standard()["unread"]
    assert harness.events.counters()["events_unread_total"] == 1


def test_a_pair_whose_image_is_a_bomb_is_kept_without_it(harness) -> None:
    take(harness, "request", {"instances": [{"b64": encoded(picture(200, 200))}]})
    take(harness, "response")
    (record,) = harness.records()
    assert (record.input.kept, record.task) == (False, "TENSOR")
    assert "1 to 10000 pixels" in harness.standard()["unread"]


REFUSED = {
    "another type": (
        attributes("request", type="com.example.order"),
        b"{}",
        "expected a CloudEvent of type",
    ),
    "no service": (attributes("request", inferenceservicename=""), b"{}", "inferenceservicename"),
    "an odd service": (attributes("request", inferenceservicename="../x"), b"{}", "expected model"),
    "NUL": (attributes("request", namespace="a\0b"), b"{}", "Unicode without NUL"),
    "half a character": (attributes("request", id="\ud800"), b"{}", "Unicode without NUL"),
    "a long id": (attributes("request", id="x" * 2000), b"{}", "attribute 'id'"),
    "no JSON": (attributes("request"), b"\xff\xd8", "request: expected JSON"),
    "a list": (attributes("response"), b"[1]", "response: expected a JSON object"),
    "neither": (attributes("response"), b'{"a": 1}', "outputs as of V2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_event_of_the_logger_is_refused_before_it_is_kept(harness, name) -> None:
    event, body, reason = REFUSED[name]
    with pytest.raises(InvalidRequest, match=reason):
        harness.events.take(event, body)
    assert harness.halves.counts() == (0, 0)


def test_a_key_for_other_models_sends_no_events(harness) -> None:
    set_current_request(
        RequestContext(caller=Caller(name="n", rights=frozenset({"infer"}), models=("mine-*",)))
    )
    with pytest.raises(Forbidden):
        take(harness, "request")
    assert harness.halves.counts() == (0, 0)


@pytest.mark.parametrize("text", ["", "yesterday", "2999-01-01T00:00:00Z", "1999-01-01T00:00:00Z"])
def test_an_event_without_a_time_that_means_something_is_of_now(harness, text) -> None:
    take(harness, "request", time=text)
    take(harness, "response", time=text)
    (record,) = harness.records()
    assert time_ms(record.seq) > 1_770_000_000_000
    assert record.latency_ms == 0


def test_an_event_of_a_time_without_a_place_is_of_now(harness) -> None:
    harness.first_place_ms = 1_770_000_000_000
    take(harness, "request")
    take(harness, "response")
    (record,) = harness.records()
    assert time_ms(record.seq) > 1_770_000_000_000
    assert record.latency_ms == 250


def test_bytes_behind_the_json_of_v2_are_read(harness) -> None:
    raw = picture()
    request = {
        "inputs": [
            {
                "name": "in",
                "datatype": "BYTES",
                "shape": [1],
                "parameters": {"binary_data_size": len(raw) + 4},
            }
        ]
    }
    body = json.dumps(request).encode() + len(raw).to_bytes(4, "little") + raw
    take(harness, "request", body)
    take(harness, "response")
    (record,) = harness.records()
    assert harness.blobs.get(record.input.hash) == raw


def test_a_half_that_a_loss_of_power_emptied_keeps_nothing_up(harness) -> None:
    take(harness, "request", id="damaged")
    take(harness, "request", id="whole")
    folder = harness.data / "events" / ".none"
    damaged, *_ = [path for path in folder.glob("*.request") if b"damaged" in path.read_bytes()]
    damaged.write_bytes(b"")
    assert harness.events.sweep() == 1
    assert [record.request_id for record in harness.records()] == ["whole"]
    assert harness.events.sweep() == 0
    assert take(harness, "request", id="damaged").state == "waiting"


ODD = [
    "[1]",
    "null",
    '{"a": null}',
    '{"": [1]}',
    '{"a.b": {"c": ["d"]}}',
    "{" * 9000,
    '{"a": "\\u0000"}',
    "x" * 20_000,
]


@pytest.mark.parametrize("text", ODD)
def test_odd_headers_of_the_logger_lose_no_inference(harness, text) -> None:
    take(harness, "request", metadata=text, annotations=text)
    assert take(harness, "response", metadata=text).state == "stored"
    (record,) = harness.records()
    assert msgspec.json.decode(record.metadata)["kserve"]["namespace"] == "prod"
