"""Ground truth over HTTP: what fits the task, what is refused line by line, revisions and history."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quadriga.proto.http.chariot import parse_metadata_value
from quadriga.store.changes import ground_truth as joining
from quadriga.store.changes import truth_service
from quadriga.store.changes.service import ChangeService
from quadriga.store.query import inferences
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.ids import TIME_SHIFT, IdSource
from quadriga.store.records.records import (
    InputReference,
    JournaledChange,
    ModelReference,
    TruthStatement,
)
from tests.background import at_once, in_background
from tests.unit.http_client import client_of, store_routes
from tests.unit.store.conftest import make_record
from tests.unit.store.test_truth_scope import BOXES, HASH, IMAGE, TRUTHS, answer, answers
from tests.unit.store_harness import StoreHarness

LABELS = TRUTHS["IMAGE_CLASSIFICATION"]


class Server:
    """A store whose writer runs, and a client."""

    def __init__(
        self,
        store: StoreHarness,
        worker: int = 0,
        labels: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        labels = labels or {}
        self.store = store
        store.inferences = InferenceReader(
            store.url,
            store.journal_directory,
            store.blobs,
            served=lambda: [*map(str.lower, TRUTHS), "other"],
        )
        changes = ChangeService(
            store.inferences,
            store.journal,
            IdSource(worker),
            read_metadata=parse_metadata_value,
            erasures=store.erasures,
            labels_of=lambda model, _: labels.get(model, ()),
        )
        self.client = client_of(store_routes(store.inferences, changes))

    def send(self, method: str, path: str, body: Any = b"", **headers: str) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request(method, f"/api/{path}", content=content, headers=names)

    def ok(self, method: str, path: str, body: Any = b"", **headers: str) -> Any:
        response = self.send(method, path, body, **headers)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, method: str, path: str, body: Any = b"", **headers: str) -> tuple[int, str]:
        response = self.send(method, path, body, **headers)
        return response.status_code, response.json()["error"]

    def truths(self, *seqs: int) -> list[Any]:
        return [self.ok("GET", f"inferences/{seq}")["ground_truth"] for seq in seqs]


@pytest.fixture
def server(store: StoreHarness) -> Iterator[Server]:
    server = Server(store)
    with server.client, in_background(store.writer.run):
        yield server


def add(server: Server, *records: Any) -> None:
    server.store.journal.append(records)


@pytest.mark.parametrize("task", TRUTHS)
def test_annotations_have_to_fit_the_task_of_the_inference(server: Server, task: str) -> None:
    add(server, answer(1, task), answer(2, "TENSOR"))
    for other, truth in TRUTHS.items():
        if other == task or (task, other) == ("IMAGE_TEXT_TO_TEXT", "IMAGE_CLASSIFICATION"):
            assert server.ok("PUT", "inferences/1/ground-truth", truth)["ground_truth"] == truth
        else:
            status, error = server.refused("PUT", "inferences/1/ground-truth", truth)
            assert status == 400
            assert error.startswith("annotations[0]: expected ")
            assert f"as ground truth of {task}, got one of " in error
        server.ok("PUT", "inferences/2/ground-truth", truth)
    assert server.ok("PUT", "inferences/1/ground-truth", [])["ground_truth"] == []


@pytest.mark.parametrize("key", ["data_hash", "path"])
def test_lines_of_five_tasks_are_five_truths(server: Server, key: str) -> None:
    add(server, *answers())
    value = {"data_hash": HASH, "path": "a.png"}[key]
    lines = [json.dumps({key: value, "annotations": truth}) for truth in TRUTHS.values()]
    result = server.ok("POST", "ground-truth", "\n".join(lines[::-1]).encode())
    assert result == {"stated": 5, "matched": 5, "refused": [], "refused_more": 0}
    assert server.truths(1, 2, 3, 4, 5) == [*TRUTHS.values()]
    for task, line in zip(TRUTHS, lines, strict=True):
        node = {**json.loads(line), "annotations": [], "task": task.lower()}
        assert server.ok("POST", "ground-truth", node)["matched"] == 1
    assert server.truths(1, 2, 3, 4, 5) == [[]] * 5


def test_lines_that_do_not_fit_are_refused_one_by_one(server: Server) -> None:
    add(server, *answers())
    lines: list[tuple[dict[str, Any], str]] = [
        ({"data_hash": HASH, "annotations": BOXES}, ""),
        ({"inference_id": "2", "annotations": LABELS}, "line 2.annotations[0]: expected boxes as ground truth of OBJECT"),
        ({"request_id": "request-1", "annotations": BOXES}, "line 3.annotations[0]: expected labels alone as ground"),
        ({"data_hash": HASH, "annotations": BOXES, "task": "classification"}, "line 4.annotations[0]: expected labels"),
        ({"data_hash": HASH, "annotations": BOXES, "task": "boxes"}, "expected line 5: task to be one of IMAGE_"),
        ({"data_hash": HASH, "annotations": [*BOXES, *LABELS]}, ("line 6.annotations: expected annotations of one task, "
         "got boxes and labels alone")),
        ({"data_hash": HASH, "annotations": []}, ("line 7: task is required, because there are no annotations and it is "
         "joined to inferences of IMAGE_CLASSIFICATION and")),
        ({"data_hash": HASH, "annotations": LABELS, "model": "unknown"}, "model not found: 'unknown'"),
        ({"data_hash": HASH, "annotations": LABELS, "model": ""}, "expected line 9: model to be the name of a model"),
        ({"data_hash": HASH, "annotations": LABELS, "owner": "a"}, "line 10: expected an object with annotations"),
        ({"data_hash": "?", "annotations": LABELS}, "line 11: expected 'blake3:' and 64 hex digits"),
        ({"inference_id": "1", "annotations": LABELS, "model": "M-Object_Detection"}, "line 12: expected the model of the inference"),
        ({"inference_id": "1", "annotations": LABELS, "task": "tensor"}, "line 13: expected the task of the inference"),
        ({"path": "b.png", "annotations": None}, ("line 14: task is required, because there are no annotations and it "
         "is joined to no inference")),
        ({"data_hash": HASH, "annotations": LABELS, "review": "good"}, ("expected line 15: review to be one of needs_review, "
         "approved, rejected, got 'good'")),
        ({"data_hash": HASH, "annotations": LABELS, "review": "approved"}, ""),
    ]  # fmt: skip
    body = "\n".join(json.dumps(line) for line, _ in lines).encode()
    result = server.ok("POST", "ground-truth", body)
    assert (result["stated"], result["matched"], result["refused_more"]) == (2, 2, 0)
    expected = {number: reason for number, (_, reason) in enumerate(lines, 1) if reason}
    assert [refusal["line"] for refusal in result["refused"]] == [*expected]
    for refusal in result["refused"]:
        assert refusal["reason"].startswith(expected[refusal["line"]])
    assert server.truths(1, 2, 4) == [LABELS, BOXES, None]


def test_a_body_of_which_nothing_can_be_stated_is_refused(server: Server) -> None:
    add(server, *answers())
    items = [{"value": "1", "annotations": BOXES}, {"value": "2"}, 7, {"value": "1", "x": 1}]
    status, error = server.refused("POST", "ground-truth", {"join": "id", "items": items})
    assert status == 400
    assert error.startswith("items[0].annotations[0]: expected labels alone as ground truth of")
    assert error.endswith("; 3 more cannot be stated either")
    items.append({"value": "1", "annotations": LABELS})
    result = server.ok("POST", "ground-truth", {"join": "id", "items": items})
    assert [refusal["item"] for refusal in result["refused"]] == [0, 1, 2, 3]
    assert all("line" not in refusal for refusal in result["refused"])


def test_refusals_are_listed_up_to_a_limit(server: Server) -> None:
    lines = [{"path": str(at), "annotations": [*BOXES, *LABELS]} for at in range(9_999)]
    lines.append({"path": "x", "annotations": LABELS})
    body = "\n".join(map(json.dumps, lines)).encode()
    result = server.ok("POST", "ground-truth", body)
    assert (result["stated"], len(result["refused"]), result["refused_more"]) == (1, 100, 9_899)


def test_ten_thousand_lines_are_stated(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inferences, "JOURNAL_TIMEOUT_S", 60.0)  # a busy machine takes long
    add(server, *(answer(at, "OBJECT_DETECTION", metadata={"path": str(at)}) for at in range(1, 6)))
    lines = [{"path": str(at), "annotations": BOXES if at % 2 else []} for at in range(10_000)]
    result = server.ok("POST", "ground-truth", "\n".join(map(json.dumps, lines)).encode())
    assert result == {"stated": 10_000, "matched": 5, "refused": [], "refused_more": 0}
    assert server.truths(1, 2) == [BOXES, []]
    assert server.store.rows("SELECT DISTINCT task FROM truth") == [("OBJECT_DETECTION",)]


EMPTY_CASES: list[tuple[list[Any], dict[str, Any], set[str]]] = [
    (answers()[1:2], {}, {"OBJECT_DETECTION"}),  # that of all that it is joined to
    (answers(), {"task": "segmentation"}, {"IMAGE_SEGMENTATION"}),
    (answers(), {"model": "M-Object_Detection"}, {"OBJECT_DETECTION"}),
]


@pytest.mark.parametrize(("records", "scope", "tasks"), EMPTY_CASES)
def test_an_empty_list_is_of_the_task_that_it_can_only_be_of(
    server: Server, records: list[Any], scope: dict[str, Any], tasks: set[str]
) -> None:
    add(server, *records)
    body = {"join": "input.hash", "items": [{"value": HASH, "annotations": []}], **scope}
    assert server.ok("POST", "ground-truth", body)["matched"] == 1
    assert {task for (task,) in server.store.rows("SELECT task FROM truth")} == tasks


def test_a_removal_is_of_the_task_of_what_was_stated(server: Server) -> None:
    body: dict[str, Any] = {"join": "meta.path", "items": [{"value": "z", "annotations": BOXES}]}
    server.ok("POST", "ground-truth", body)
    body["items"][0]["annotations"] = None
    server.ok("POST", "ground-truth", body)
    add(server, answer(1, "OBJECT_DETECTION", metadata={"path": "z"}))
    server.ok("POST", "inferences/query", {"consistency": "journal"})
    assert server.truths(1) == [None]


def test_a_statement_may_be_limited_to_a_model(server: Server) -> None:
    add(server, answer(1, "OBJECT_DETECTION"), answer(2, "OBJECT_DETECTION", "other"))
    body = {
        "join": "input.hash",
        "model": "M-Object_Detection",
        "items": [{"value": HASH, "annotations": BOXES}],
    }
    assert server.ok("POST", "ground-truth", body)["matched"] == 1
    assert server.truths(1, 2) == [BOXES, None]
    assert server.ok("GET", "inferences/1/ground-truth")["model"] == "object_detection"
    status, error = server.refused("POST", "ground-truth", body | {"model": "unknown"})
    assert (status, error[:26]) == (404, "model not found: 'unknown'")
    status, error = server.refused("POST", "ground-truth", body | {"owner": "team"})
    assert (status, error) == (400, "expected owner to be 'default', got 'team'")


def test_where_limits_a_statement_to_what_is_stored_now(server: Server) -> None:
    for seq, camera in enumerate(["north", "south", "north"], 1):
        add(server, answer(seq, "OBJECT_DETECTION", metadata={"camera": camera, "path": "a.png"}))
    add(server, answer(4, "IMAGE_CLASSIFICATION", metadata={"camera": "north", "path": "a.png"}))
    body: dict[str, Any] = {"join": "meta.path", "where": "meta.camera=north",
                            "items": [{"value": "a.png", "annotations": BOXES}]}  # fmt: skip
    result = server.ok("POST", "ground-truth", body)
    assert (result["stated"], result["matched"]) == (1, 2)
    add(server, answer(5, "OBJECT_DETECTION", metadata={"camera": "north", "path": "a.png"}))
    assert server.truths(1, 2, 3, 4) == [BOXES, None, BOXES, None]
    assert server.ok("POST", "inferences/count", {"where": {"ground_truth": {"exists": True}}})[
        "count"
    ] == 2  # fmt: skip
    status, error = server.refused("POST", "ground-truth", body | {"where": "meta.camera=west"})
    assert status == 400
    assert (
        error == "items[0]: no stored inference of OBJECT_DETECTION with this value matches where"
    )
    status, error = server.refused("POST", "ground-truth", body | {"where": {"x": 1}})
    assert status == 400


def test_ground_truth_is_read_with_its_revision(server: Server) -> None:
    add(server, answer(1, "OBJECT_DETECTION"))
    status, error = server.refused("GET", "inferences/1/ground-truth")
    assert (status, error) == (404, "ground truth not found: none is stated for 1")
    assert server.refused("GET", "inferences/2/ground-truth")[0] == 404
    assert server.ok("GET", "inferences/1/ground-truth/history") == {"history": []}
    put = server.send("PUT", "inferences/1/ground-truth", {"annotations": BOXES, "source": "amy"})
    response = server.send("GET", "inferences/1/ground-truth")
    truth = response.json()
    assert put.headers["etag"] == response.headers["etag"] == f'"{truth["revision"]}"'
    assert truth.pop("created_at") > "2026"
    assert truth.pop("revision").isdigit()
    assert truth == {"task": "OBJECT_DETECTION", "model": "", "owner": "default", "source": "amy",
                     "review": "", "annotations": BOXES}  # fmt: skip


def test_history_says_who_stated_what(server: Server) -> None:
    add(server, *answers())
    server.ok("PUT", "inferences/2/ground-truth", {"annotations": BOXES, "source": "amy"})
    for truth, source in ((LABELS, "bob"), ([{**BOXES[0], "xmin": 2}], "eve")):
        items = [{"value": HASH, "annotations": truth}]
        server.ok("POST", "ground-truth", {"join": "input.hash", "source": source, "items": items})
    server.ok("DELETE", "inferences/2/ground-truth")
    history = server.ok("GET", "inferences/2/ground-truth/history")["history"]
    stated = [(entry["source"], entry["join"], entry["annotations"]) for entry in history]
    assert stated == [
        ("", "id", None),
        ("eve", "input.hash", [{**BOXES[0], "xmin": 2}]),
        ("amy", "id", BOXES),
    ]
    revisions = [int(entry["revision"]) for entry in history]
    assert revisions == sorted(revisions, reverse=True)


def test_a_history_is_cut(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    add(server, answer(1, "OBJECT_DETECTION"))
    for _ in range(4):
        server.ok("PUT", "inferences/1/ground-truth", BOXES)
    path = "inferences/1/ground-truth/history"
    monkeypatch.setattr(truth_service, "MAX_HISTORY", 3)
    assert len(server.ok("GET", path)["history"]) == 3
    monkeypatch.setattr(joining, "_MAX_HISTORY_CHARACTERS", 150)
    assert len(server.ok("GET", path)["history"]) == 2
    monkeypatch.setattr(joining, "_MAX_HISTORY_CHARACTERS", 0)
    assert len(server.ok("GET", path)["history"]) == 1


def test_an_outdated_revision_changes_nothing(server: Server) -> None:
    add(server, answer(1, "OBJECT_DETECTION"))
    path = "inferences/1/ground-truth"
    assert server.refused("PUT", path, BOXES, If_Match="*")[0] == 412
    assert server.refused("DELETE", path, If_Match='"1"')[0] == 412
    first = server.send("PUT", path, BOXES, If_None_Match="*").headers["etag"]
    assert server.refused("PUT", path, [], If_None_Match="*")[0] == 412
    second = server.send("PUT", path, [], If_Match=f'"7", {first}').headers["etag"]
    status, error = server.refused("PUT", path, BOXES, If_Match=first)
    current = second.strip('"')
    assert status == 412
    assert error == (
        f"the ground truth was changed meanwhile: its revision is {current} now; read it, and change it again"
    )
    assert server.refused("DELETE", path, If_Match=first)[0] == 412
    assert server.refused("DELETE", path, If_Match=f"W/{second}")[0] == 412
    assert server.refused("DELETE", path, If_Match='"x"')[0] == 412
    assert server.truths(1) == [[]]
    assert server.ok("DELETE", path, If_Match="*")["ground_truth"] is None
    assert server.refused("DELETE", path, If_Match=second)[0] == 412


@pytest.mark.parametrize("value", ["", "7", '"', '"a', '"a" "b"', '"a",', "**", '"' + "9" * 30])
def test_malformed_conditions_are_refused(server: Server, value: str) -> None:
    add(server, answer(1, "OBJECT_DETECTION"))
    status, error = server.refused("PUT", "inferences/1/ground-truth", BOXES, If_Match=value)
    assert (status, error[:21]) == (400, "expected If-Match to ")
    for headers in ({"If_None_Match": value}, {"If_None_Match": "*", "If_Match": "*"}):
        status, error = server.refused("PUT", "inferences/1/ground-truth", BOXES, **headers)
        assert (status, error[:26]) == (400, "expected If-None-Match to ")


def test_one_of_many_with_the_same_revision_wins(server: Server) -> None:
    add(server, answer(1, "OBJECT_DETECTION"))
    path = "inferences/1/ground-truth"
    etag = server.send("PUT", path, BOXES).headers["etag"]
    statuses: dict[int, int] = {}

    def change(number: int) -> None:
        body = {"annotations": [], "source": str(number)}
        statuses[number] = server.send("PUT", path, body, If_Match=etag).status_code

    at_once([partial(change, number) for number in range(8)])
    assert sorted(statuses.values()) == [200] + [412] * 7
    (winner,) = (number for number, status in statuses.items() if status == 200)
    assert server.ok("GET", path)["source"] == str(winner)


def test_one_of_two_servers_wins(tmp_path: Path, postgres: Any) -> None:
    url = postgres.create()
    stores = [StoreHarness(tmp_path / name, url) for name in ("one", "two")]
    servers = [Server(store, worker) for worker, store in enumerate(stores)]
    path = "inferences/1/ground-truth"
    try:
        stores[0].commit(answer(1, "OBJECT_DETECTION"))
        one, two = servers
        with (
            one.client, two.client,
            in_background(stores[0].writer.run), in_background(stores[1].writer.run),
        ):  # fmt: skip
            for number in range(10):
                etag = one.send("PUT", path, {"annotations": BOXES}).headers["etag"]
                statuses: list[int] = []

                def change(server: Server, etag: str = etag, to: list[int] = statuses) -> None:
                    to.append(server.send("PUT", path, [], If_Match=etag).status_code)

                at_once([partial(change, server) for server in servers])
                assert sorted(statuses) == [200, 412], number
    finally:
        for store in stores:
            store.close()
        postgres.drop(url)


def test_a_correction_holds_though_the_clock_of_another_server_is_ahead(server: Server) -> None:
    add(server, answer(1, "OBJECT_DETECTION"))
    path = "inferences/1/ground-truth"
    first = int(server.send("PUT", path, BOXES).headers["etag"].strip('"'))
    ahead = first + (30_000 << TIME_SHIFT)
    server.store.journal.append([JournaledChange(ahead, TruthStatement("id", "1", BOXES))])
    server.ok("POST", "inferences/query", {"consistency": "journal"})
    assert server.ok("PUT", path, [], If_Match=f'"{ahead}"')["ground_truth"] == []
    assert int(server.ok("GET", path)["revision"]) > ahead


def test_not_every_model_that_a_stranger_names_is_looked_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truth_service, "MAX_MODELS", 3)
    lines = [{"path": "x", "annotations": LABELS, "model": f"unknown {at}"} for at in range(9)]
    lines.append({"path": "x", "annotations": LABELS})
    result = server.ok("POST", "ground-truth", "\n".join(map(json.dumps, lines)).encode())
    reasons = [refusal["reason"] for refusal in result["refused"]]
    assert [reason[:20] for reason in reasons[:3]] == ["model not found: 'un"] * 3
    assert reasons[3:] == [
        f"expected line {number}: model to be one of at most 3 in a request"
        for number in range(4, 10)
    ]


def test_a_filter_does_not_multiply_annotations_without_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truth_service, "MAX_EXPANDED_BYTES", 500)
    add(server, *(answer(seq, "OBJECT_DETECTION") for seq in range(1, 11)))
    body = {"join": "input.hash", "where": {}, "items": [{"value": HASH, "annotations": BOXES}]}
    status, error = server.refused("POST", "ground-truth", body)
    assert (status, error[:47]) == (400, "expected annotations of at most 500 bytes for a")


HOSTILE = [
    {"join": "meta.a", "items": [{"value": "x", "annotations": LABELS}], "task": 7},
    {"join": "meta.a", "items": [{"value": "x", "annotations": LABELS}], "task": "\0"},
    {"join": "meta.a", "items": [{"value": "x", "annotations": LABELS}], "model": 7},
    {"join": "meta.a", "items": [{"value": "x", "annotations": LABELS}], "model": "x" * 3000},
    {"join": "meta.a", "items": [{"value": "x", "annotations": LABELS}], "owner": None},
    {"join": "meta.a\0", "items": [{"value": "x", "annotations": LABELS}]},
    {"join": "meta.a", "items": [[]]},
    {"join": "meta.a", "items": [{"value": {}, "annotations": {}}]},
    {"path": "x", "annotations": LABELS, "task": []},
    b"[" * 100_000,
    b'{"path": "x", "annotations": ' + b"[" * 100_000,
]


@pytest.mark.parametrize("body", HOSTILE)
def test_hostile_bodies_state_nothing(server: Server, body: Any) -> None:
    assert server.refused("POST", "ground-truth", body)[0] in (400, 404)
    assert server.store.rows("SELECT * FROM truth") == []


def test_texts_with_nul_are_stored_without(server: Server) -> None:
    body = {"join": "meta.a", "source": "\0",
            "items": [{"value": "x\0", "annotations": LABELS}]}  # fmt: skip
    assert server.ok("POST", "ground-truth", body)["stated"] == 1
    assert server.store.rows("SELECT value, source FROM truth") == [("x\ufffd", "\ufffd")]


def test_a_custom_task_is_named_once_it_is_stored(server: Server) -> None:
    body = {"join": "input.hash", "task": "counting",
            "items": [{"value": HASH, "annotations": LABELS}]}  # fmt: skip
    assert server.refused("POST", "ground-truth", body)[0] == 400
    model = ModelReference("counter", "1", "ab" * 32)
    add(server, make_record(1, task="COUNTING", model=model, input=InputReference("x", HASH)))
    server.ok("POST", "inferences/query", {"consistency": "journal"})
    assert server.ok("POST", "ground-truth", body)["matched"] == 1
    assert IMAGE.hash == HASH


def test_a_review_is_kept_with_the_statement(server: Server) -> None:
    add(server, *answers())
    body: dict[str, Any] = {"annotations": BOXES, "source": "amy", "review": "needs_review"}
    assert (
        server.ok("PUT", "inferences/2/ground-truth", body)["ground_truth_review"] == "needs_review"
    )
    server.ok(
        "PUT",
        "inferences/2/ground-truth",
        {"annotations": [], "source": "eve", "review": "rejected"},
    )
    items = [{"value": HASH, "annotations": LABELS}]
    approved = {"join": "input.hash", "items": items, "review": "approved"}
    assert server.ok("POST", "ground-truth", approved)["matched"] == 1
    line = {
        "inference_id": "4",
        "annotations": TRUTHS["IMAGE_SEGMENTATION"],
        "review": "needs_review",
    }
    assert server.ok("POST", "ground-truth", line)["matched"] == 1
    assert server.ok("GET", "inferences/2/ground-truth")["review"] == "rejected"
    history = server.ok("GET", "inferences/2/ground-truth/history")["history"]
    assert [(entry["source"], entry["review"]) for entry in history] == [
        ("eve", "rejected"),
        ("amy", "needs_review"),
    ]
    for where, ids in {
        "ground_truth.review=rejected": ["2"],
        "ground_truth.review=in:approved,needs_review": ["4", "1"],
        "ground_truth.review=exists:true": ["4", "2", "1"],
        "!ground_truth.review=rejected": ["5", "4", "3", "1"],
        "ground_truth.review=needs_review & ground_truth.label=exists:true": ["4"],
    }.items():
        page = server.ok("POST", "inferences/query", {"where": where})
        assert [record["id"] for record in page["inferences"]] == ids, where
    reviews = [
        record.get("ground_truth_review") for record in server.ok("GET", "inferences")["inferences"]
    ]
    assert reviews == [None, "needs_review", None, "rejected", "approved"]
    server.ok("PUT", "inferences/2/ground-truth", {"annotations": BOXES})
    assert "ground_truth_review" not in server.ok("GET", "inferences/2")


def test_an_unknown_review_is_refused(server: Server) -> None:
    add(server, *answers())
    for review in ("", "good", "Rejected"):
        body: dict[str, Any] = {"annotations": BOXES, "review": review}
        expected = f"expected review to be one of needs_review, approved, rejected, got {review!r}"
        assert server.refused("PUT", "inferences/2/ground-truth", body) == (400, expected)
        body = {"join": "id", "items": [{"value": "2", "annotations": BOXES}], "review": review}
        assert server.refused("POST", "ground-truth", body) == (400, expected)
    for operand, got in (("good", "a string 'good'"), (1, "an integer '1'")):
        where = {"ground_truth.review": operand}
        status, error = server.refused("POST", "inferences/query", {"where": where})
        assert (status, error) == (
            400,
            (
                f"expected where.ground_truth.review to be one of needs_review, approved, rejected, got {got}"
            ),
        )
