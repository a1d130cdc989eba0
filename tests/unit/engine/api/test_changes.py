import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from quadriga.proto.http.chariot import parse_metadata_value
from quadriga.store.changes import service as changing
from quadriga.store.changes import truth_service as stating
from quadriga.store.changes.service import ChangeService
from quadriga.store.changes.truth_service import MAX_STATEMENTS
from quadriga.store.query import inferences
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import InputReference
from tests.background import at_once, in_background
from tests.unit.http_client import call, client_of, store_routes
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

HASH = "blake3:" + "a" * 64


class Server:
    """A store whose writer runs, and a client."""

    def __init__(self, store: StoreHarness) -> None:
        self.store = store
        self.changes = ChangeService(
            store.inferences,
            store.journal,
            IdSource(0),
            read_metadata=parse_metadata_value,
            erasures=store.erasures,
        )
        self.client = client_of(store_routes(store.inferences, self.changes))

    def call(self, method: str, path: str, body: Any = b"") -> tuple[int, Any]:
        return call(self.client, method, path, body)

    def ok(self, method: str, path: str, body: Any = b"") -> Any:
        """Send a request that succeeds; see `call`."""
        status, answer = self.call(method, path, body)
        assert status == 200, answer
        return answer


@pytest.fixture
def idle(store: StoreHarness) -> Iterator[Server]:
    """A server whose writer does not run yet."""
    server = Server(store)
    with server.client:
        yield server


@pytest.fixture
def server(idle: Server) -> Iterator[Server]:
    with in_background(idle.store.writer.run):
        yield idle


def add(server: Server, *seqs: int, **fields: Any) -> None:
    server.store.journal.append([make_record(seq, **fields) for seq in seqs])


def test_metadata_is_set_replaced_and_removed(server: Server) -> None:
    add(server, 1, metadata={"camera": "north", "floor": 2, "place": {"a": 1}})
    change = {"set": {"camera": "south", "place": {"b": 2}}, "remove": ["floor", "unknown"]}
    expected = {"camera": "south", "place": {"b": 2}}
    assert server.ok("POST", "inferences/1/metadata", change)["metadata"] == expected
    assert server.ok("GET", "inferences/1")["metadata"] == expected
    assert server.ok("POST", "inferences/1/metadata", {"set_by": "me"})["metadata"] == {
        **expected, "set_by": "me"
    }  # fmt: skip
    history = server.ok("GET", "inferences/1/metadata/history")["history"]
    assert [entry["before"] for entry in history] == [
        expected, {"camera": "north", "floor": 2, "place": {"a": 1}}
    ]  # fmt: skip
    assert (history[1]["set"], history[1]["remove"]) == (change["set"], change["remove"])
    matches = server.ok("POST", "inferences/query", {"where": {"meta.place.b": 2}})["inferences"]
    assert [entry["id"] for entry in matches] == ["1"]
    assert not server.ok("POST", "inferences/query", {"where": {"meta.floor": 2}})["inferences"]


def test_metadata_comes_in_chariots_forms(server: Server) -> None:
    add(server, 1)
    entries = [
        {"key": "a", "type": "int", "value": "1"},
        {"key": "b", "type": "dict", "value": '{"c": 2}'},
    ]
    assert server.ok("POST", "inferences/1/metadata", entries)["metadata"] == {
        "a": 1,
        "b": {"c": 2},
    }
    extended = {
        "standard_metadata": {},
        "extended_metadata": [{"key": "a", "type": "str", "value": "x"}],
    }
    assert server.ok("POST", "inferences/1/metadata", extended)["metadata"]["a"] == "x"
    assert server.ok("GET", "inferences/1/metadata/history")["history"][0]["set"] == {"a": "x"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "expected the body to be a JSON object, got: "),
        (b"\xff", "expected the body to be a JSON object, got: "),
        (b"[" * 100_000, "expected the body to be a JSON object, got: "),
        ({}, "set or remove is required, with at least one key"),
        ({"set": {}}, "set or remove is required, with at least one key"),
        ({"set": 1}, "expected set to be an object, got 1"),
        ({"set": {}, "remove": "a"}, "expected remove to be a list of keys, got 'a'"),
        ({"remove": [1]}, "expected remove to be a list of keys, got [1]"),
        ({"set": {"a": 1}, "remove": ["a"]}, "expected each key to be set or removed, got 'a' in both"),
        (3, "body: expected an object or a list of entries, got int"),
        ([{"key": "a", "type": "int", "value": "x"}], "body[0] ('a'): expected a value that parses as"),
        ({"set": {"a": "\0"}}, "expected metadata 'a' to be text without NUL, got one"),
        ({"a.b": 1}, "expected metadata key 'a.b' once, got it twice once flattened"),
        ({"a": "x" * 65_536}, "expected metadata of at most 65536 bytes, got"),
        ({str(n): n for n in range(260)}, "expected at most 256 metadata keys, got"),
    ],
)  # fmt: skip
def test_metadata_that_breaks_a_rule_is_refused(server: Server, body, message) -> None:
    add(server, 1, metadata={"a": {"b": 1}})
    status, answer = server.call("POST", "inferences/1/metadata", body)
    assert (status, answer["error"][: len(message)]) == (400, message)
    assert server.ok("GET", "inferences/1")["metadata"] == {"a": {"b": 1}}
    assert server.ok("GET", "inferences/1/metadata/history") == {"history": []}


def test_changes_that_only_together_break_a_rule_are_not_both_acknowledged(server: Server) -> None:
    add(server, 1)
    answers: list[int] = []

    def change(body: Any) -> None:
        status, answer = server.call("POST", "inferences/1/metadata", body)
        assert status == 200 or "break the rules" in answer["error"] or "twice" in answer["error"]
        answers.append(status)

    bodies = [{"a": {"b": 1}}, {"a.b": 2}]
    at_once([partial(change, body) for body in bodies])
    assert sorted(answers) == [200, 400]
    assert server.ok("GET", "inferences/1")["metadata"] in bodies


def test_many_change_one_inference_at_the_same_time(server: Server) -> None:
    add(server, 1)
    path = "inferences/1/metadata"
    at_once([partial(server.ok, "POST", path, {f"k{n}": n}) for n in range(8)])
    answer = server.ok("GET", "inferences/1")
    assert answer["metadata"] == {f"k{n}": n for n in range(8)}
    history = server.ok("GET", "inferences/1/metadata/history")["history"]
    assert sorted(len(entry["before"]) for entry in history) == list(range(8))


LABELS = "IMAGE_CLASSIFICATION"
ALL = {"refused": [], "refused_more": 0}
BOX = {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}


def test_ground_truth_is_put_and_taken_away(server: Server) -> None:
    add(server, 1)
    body = {"annotations": [{"class_label": "cat", "bbox": BOX}], "source": "amy"}
    assert server.ok("PUT", "inferences/1/ground-truth", body)["ground_truth"] == [
        {"label": "cat", **BOX}
    ]
    assert server.ok("GET", "inferences/1")["ground_truth"] == [{"label": "cat", **BOX}]
    assert server.ok("PUT", "inferences/1/ground-truth", [])["ground_truth"] == []
    assert server.ok("DELETE", "inferences/1/ground-truth")["ground_truth"] is None
    assert server.ok("GET", "inferences/1")["ground_truth"] is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "expected the body to be a list of annotations, or a JSON object with annotations"),
        ({}, "expected the body to be a list of annotations, or a JSON object with annotations"),
        ({"annotations": [], "x": 1}, "expected the body to be a list of annotations, or"),
        ([{"label": 1}], "annotations[0].label: expected a text, got 1"),
        ({"annotations": [], "source": "x" * 257}, "expected source to be a text of at most 256"),
    ],
)
def test_other_ground_truth_is_refused(server: Server, body, message) -> None:
    add(server, 1)
    status, answer = server.call("PUT", "inferences/1/ground-truth", body)
    assert (status, answer["error"][: len(message)]) == (400, message)


def test_all_methods_of_a_path_are_named(server: Server) -> None:
    response = server.client.options("/api/inferences/1/ground-truth")
    assert (response.status_code, response.headers["allow"]) == (204, "DELETE, GET, OPTIONS, PUT")
    response = server.client.post("/api/inferences/1/ground-truth")
    assert sorted(response.headers["allow"].split(", ")) == ["DELETE", "GET", "OPTIONS", "PUT"]


def test_statements_apply_to_stored_and_later_inferences(server: Server) -> None:
    add(
        server, 1, 2, task=LABELS, input=InputReference("image", HASH), metadata={"path": "a/1.png"}
    )
    server.ok("POST", "inferences/1/metadata", {"frame": 7})
    statements = {"join": "meta.frame", "source": "amy",
             "items": [{"value": 7, "annotations": [{"label": "cat"}]}, {"value": 8, "annotations": []}]}  # fmt: skip
    assert server.ok("POST", "ground-truth", statements) == {"stated": 2, "matched": 1, **ALL}
    statements = {
        "join": "input.hash",
        "items": [{"value": HASH, "annotations": [{"label": "dog"}]}],
    }
    assert server.ok("POST", "ground-truth", statements) == {"stated": 1, "matched": 2, **ALL}
    add(server, 3, task=LABELS, metadata={"frame": 8})
    add(server, 4, task=LABELS, input=InputReference("image", HASH))
    matches = server.ok("POST", "inferences/query", {"consistency": "journal"})["inferences"]
    assert [record["ground_truth"] for record in matches] == [
        [{"label": "dog"}],
        [],
        *[[{"label": "dog"}]] * 2,
    ]
    taken = {"join": "input.hash", "items": [{"value": HASH, "annotations": None}]}
    assert server.ok("POST", "ground-truth", taken) == {"stated": 1, "matched": 0, **ALL}


def test_ground_truth_comes_as_lines_of_a_chariot_dataset(server: Server) -> None:
    add(server, 1, metadata={"path": "a/1.png"})
    add(server, 2, task=LABELS, metadata={"datum_id": 12})
    add(server, 3, task="IMAGE_SEGMENTATION", input=InputReference("image", HASH), request_id="r")
    lines = [
        {"path": "a/1.png", "split": "train", "annotations": [{"class_label": "cat", "bbox": BOX}]},
        {"datum_id": "12", "annotations": [{"class_label": "cat"}], "source": "amy"},
        {"data_hash": HASH, "annotations": [{"class_label": "cat", "contours": [[{"x": 1, "y": 1}]]}]},
        {"inference_id": "77", "annotations": []},
        {"request_id": "r#1", "annotations": []},
    ]  # fmt: skip
    body = b"\n".join(json.dumps(line).encode() for line in lines) + b"\r\n\n"
    server.ok("POST", "inferences/query", {"consistency": "journal"})
    assert server.ok("POST", "ground-truth", body) == {"stated": 5, "matched": 3, **ALL}
    assert server.ok("GET", "inferences/3")["ground_truth"] == [
        {"label": "cat", "contour": [[{"x": 1, "y": 1}]]}
    ]
    single_line = json.dumps(lines[0]).encode()
    assert server.ok("POST", "ground-truth", single_line) == {"stated": 1, "matched": 1, **ALL}


ITEMS = [{"value": "x", "annotations": []}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "expected 1 to 10000 statements, got 0"),
        (b"\xff", "line 1: expected a JSON object, got: "),
        (b"{", "line 1: expected a JSON object, got: "),
        ([1], "line 1: expected an object with annotations, source and one of path, datum_id"),
        ({"annotations": []}, "expected the body to be a JSON object with join, items and source"),
        ({"join": "id", "items": []}, "expected 1 to 10000 statements, got 0"),
        ({"join": "id", "items": ITEMS * (MAX_STATEMENTS + 1)}, "expected 1 to 10000 statements"),
        ({"join": "id", "items": ITEMS}, "items[0]: expected an id as a string of digits, got 'x'"),
        ({"join": "id", "items": [{"value": 1, "annotations": []}]}, "items[0]: expected an id as"),
        ({"join": "input.hash", "items": ITEMS}, "items[0]: expected 'blake3:' and 64 hex digits"),
        ({"join": "label", "items": ITEMS}, "expected join to be id, request_id, input.hash or meta."),
        ({"join": "meta.", "items": ITEMS}, "expected join to be id, request_id, input.hash or meta."),
        ({"join": "meta.a", "items": [{"value": None, "annotations": []}]},
         "items[0]: expected a text, number or boolean, got None"),
        ({"join": "meta.a", "items": [{"value": "x" * 2000, "annotations": []}]},
         "items[0]: expected a value of at most 2000 bytes, got 2006"),
        ({"join": "request_id", "items": [{"value": "", "annotations": []}]},
         "items[0]: expected a request id, got ''"),
        ({"join": "request_id", "items": [{"value": "x", "annotations": [{}]}]},
         "items[0].annotations[0].label: expected a text, got none"),
        ({"join": "request_id", "items": [{"value": "x"}]}, "items[0]: expected an object with value and"),
        ({"join": "request_id", "items": {}}, "expected the body to be a JSON object"),
        (b'{"path": "y"}', "line 1: annotations is required"),
        (b'{"path": "x", "annotations": []}\n{', "line 2: expected a JSON object, got: "),
        (b'{"path": "x", "datum_id": "y", "annotations": []}', "line 1: expected an object with"),
        (b'{"path": "x", "annotations": [{"class_label": "a", "bbox": {"xmin": 0}}]}',
         "line 1.annotations[0].bbox.ymin: expected a finite number, got none"),
        (b'{"path": "x", "annotations": [], "source": 1}', "expected line 1: source to be a text of"),
    ],
)  # fmt: skip
def test_invalid_statements_are_refused_and_none_is_stored(server: Server, body, message) -> None:
    status, answer = server.call("POST", "ground-truth", body)
    assert (status, answer["error"][: len(message)]) == (400, message)
    assert server.store.rows("SELECT * FROM truth") == []


def test_statements_that_tell_too_many_are_refused(server: Server, monkeypatch) -> None:
    monkeypatch.setattr(stating, "MAX_MATCHED", 3)
    add(server, 1, 2, 3, 4, metadata={"a": 1})
    server.ok("POST", "inferences/query", {"consistency": "journal"})
    body = {"join": "meta.a", "items": [{"value": 1, "annotations": []}]}
    status, answer = server.call("POST", "ground-truth", body)
    assert (status, answer["error"]) == (
        400, "expected statements that match at most 3 inferences, got more"
    )  # fmt: skip


def test_feedback_adds_up(server: Server) -> None:
    add(server, 1)
    server.ok("POST", "inferences/1/feedback", {"kind": "thumbs", "value": True})
    body = {"kind": "note", "comment": "too dark", "source": "amy"}
    feedback = server.ok("POST", "inferences/1/feedback", body)["feedback"]
    assert feedback[0].pop("id") < feedback[1].pop("id")
    assert feedback[0].pop("created_at") <= feedback[1].pop("created_at")
    assert feedback == [
        {"kind": "thumbs", "value": 1.0, "comment": "", "source": ""},
        {"kind": "note", "value": None, "comment": "too dark", "source": "amy"},
    ]
    assert "feedback" not in server.ok("POST", "inferences/query")["inferences"][0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "expected the body to be a JSON object with kind, value, comment and source"),
        ({}, "expected the body to be a JSON object with kind, value, comment and source"),
        ({"kind": ""}, "expected kind to be a text such as 'thumbs', got an empty one"),
        ({"kind": "x" * 65}, "expected kind to be a text of at most 64 characters, got 65"),
        ({"kind": "x", "value": "1"}, "expected the body to be a JSON object with kind"),
        ({"kind": "x", "comment": "x" * 10_001}, "expected comment to be a text of at most 10000"),
        ({"kind": "x", "vote": 1}, "expected the body to be a JSON object with kind"),
    ],
)
def test_other_feedback_is_refused(server: Server, body, message) -> None:
    add(server, 1)
    status, answer = server.call("POST", "inferences/1/feedback", body)
    assert (status, answer["error"][: len(message)]) == (400, message)


def test_matching_inferences_are_deleted(server: Server) -> None:
    add(server, *range(1, 11))
    server.ok("POST", "inferences/3/metadata", {"keep": False})
    add(server, 11, metadata={"keep": False})
    filter_ = {"meta.keep": False}
    expected = {"count": 2, "ids": ["11", "3"], "more": False}
    assert server.ok("POST", "inferences/delete", {"where": filter_, "dry_run": True}) == expected
    assert server.ok("GET", "inferences/3")["id"] == "3"
    assert server.ok("POST", "inferences/delete", {"where": filter_}) == expected
    for path in ("3", "11", "3/metadata/history"):
        assert server.call("GET", f"inferences/{path}")[0] == 404
    assert server.ok("POST", "inferences/delete", {"where": filter_})["count"] == 0
    assert server.ok("POST", "inferences/delete", {"all": True})["count"] == 9
    assert server.ok("POST", "inferences/query", {})["inferences"] == []


def test_matches_of_a_list_of_chariot_are_deleted(server: Server) -> None:
    add(server, *range(1, 5), metadata={"camera": "north"})
    add(server, 5, metadata={"camera": "east"})
    body = {"metadata_filter": [{"key": "camera", "value": "north"}], "where": {"id": {"gt": "2"}}}
    expected = {"count": 2, "ids": ["4", "3"], "more": False}
    assert server.ok("POST", "inferences/delete", {**body, "dry_run": True}) == expected
    assert server.ok("POST", "inferences/delete", body) == expected
    assert server.ok("POST", "inferences/count", {})["count"] == 3


def test_metadata_of_a_place_that_is_not_on_earth_is_refused_and_can_be_mended(
    server: Server,
) -> None:
    add(server, 1, metadata={"latitude": 91, "longitude": 0})  # as the first release stored it
    status, answer = server.call("POST", "inferences/1/metadata", {"longitude": 181})
    assert (status, answer["error"]) == (
        400,
        "expected metadata 'longitude' to be from -180 to 180 degrees, got 181",
    )
    changed = server.ok("POST", "inferences/1/metadata", {"camera": "north"})["metadata"]
    assert changed == {"latitude": 91, "longitude": 0, "camera": "north"}
    changed = server.ok("POST", "inferences/1/metadata", {"latitude": 9.1})["metadata"]
    assert changed["latitude"] == 9.1


def test_metadata_may_have_the_names_of_filters(server: Server) -> None:
    add(server, 1)
    metadata = {"time_range": "day", "where": "north", "gps_box": None}
    assert server.ok("POST", "inferences/1/metadata", metadata)["metadata"] == metadata


def test_a_deletion_has_an_end_and_goes_on_when_asked_again(server: Server, monkeypatch) -> None:
    monkeypatch.setattr(changing, "MAX_DELETED", 5)
    monkeypatch.setattr(changing, "_PAGE_SIZE", 2)
    add(server, *range(1, 9))
    answers = [server.ok("POST", "inferences/delete", {"all": True}) for _ in range(3)]
    assert [(answer["ids"], answer["more"]) for answer in answers] == [
        (["8", "7", "6", "5", "4"], True), (["3", "2", "1"], False), ([], False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "expected the body to be a JSON object with where, dry_run, all and erase"),
        ({}, 'a filter in where, or "all": true, is required'),
        ({"where": {}}, 'a filter in where, or "all": true, is required'),
        (
            {"where": {"and": [{}]}},
            'a filter in where, or "all": true, is required',
        ),
        ({"where": {"colour": 1}}, "expected where.colour to name one of"),
        ({"where": {"id": "1"}, "limit": 1}, "expected the body to be a JSON object with where"),
        ({"all": 1}, "expected the body to be a JSON object with where, dry_run, all and erase"),
        ({"metadata_filter": []}, 'a filter in where, or "all": true, is required'),
        (
            {"metadata_filter": [{"key": "a", "value": 1}]},
            "expected metadata_filter[0].value to be",
        ),
        (
            {"metadata_filter": [{"key": "a", "value": "b"}], "pagination": {"limit": 1}},
            "expected the body to be a JSON object with where, dry_run, all and erase",
        ),
    ],
)
def test_other_deletions_are_refused(server: Server, body, message) -> None:
    add(server, 1)
    status, answer = server.call("POST", "inferences/delete", body)
    assert (status, answer["error"][: len(message)]) == (400, message)
    assert server.ok("GET", "inferences/1")["id"] == "1"


CALLS: list[tuple[str, str, Any]] = [
    ("POST", "metadata", {"a": 1}),
    ("GET", "metadata/history", b""),
    ("PUT", "ground-truth", []),
    ("DELETE", "ground-truth", b""),
    ("POST", "feedback", {"kind": "x"}),
]


@pytest.mark.parametrize(("method", "subpath", "body"), CALLS)
def test_unknown_inference_is_not_changed(server: Server, method, subpath, body) -> None:
    assert server.call(method, f"inferences/9/{subpath}", body)[0] == 404
    assert server.call(method, f"inferences/{1 << 63}/{subpath}", body)[0] == 404
    assert server.call(method, f"inferences/abc/{subpath}", body)[0] == 400
    assert all(rows == [] for rows in server.store.all_rows().values())


@pytest.mark.parametrize(("method", "subpath", "body"), CALLS)
def test_change_waits_for_a_journaled_inference(
    idle: Server, monkeypatch, method, subpath, body
) -> None:
    monkeypatch.setattr(inferences, "JOURNAL_TIMEOUT_S", 0.05)
    add(idle, 1)
    status, answer = idle.call(method, f"inferences/1/{subpath}", body)
    assert status == 503
    assert "bytes are waiting" in answer["error"]
    monkeypatch.setattr(inferences, "JOURNAL_TIMEOUT_S", 20.0)
    with in_background(idle.store.writer.run):
        idle.ok(method, f"inferences/1/{subpath}", body)


def test_change_that_waits_for_the_writer_is_reported_as_journaled(
    idle: Server, monkeypatch
) -> None:
    idle.store.commit(make_record(1))
    monkeypatch.setattr(inferences, "JOURNAL_TIMEOUT_S", 0.05)
    status, answer = idle.call("POST", "inferences/1/metadata", {"a": 1})
    assert status == 503
    assert answer["error"].startswith(
        "the change is journaled and will be applied, but the journal "
    )
    assert answer["journaled"] is True
    assert idle.ok("GET", "inferences/1")["metadata"] == {}
    monkeypatch.setattr(inferences, "JOURNAL_TIMEOUT_S", 20.0)
    with in_background(idle.store.writer.run):
        record = idle.ok("POST", "inferences/1/metadata", {"b": 2})
    assert record["metadata"] == {"a": 1, "b": 2}


@pytest.mark.parametrize("subpath", [path for method, path, _ in CALLS if method == "POST"])
def test_a_journal_that_cannot_be_written_refuses_the_change(server: Server, subpath) -> None:
    add(server, 1)
    server.ok("POST", "inferences/query", {"consistency": "journal"})
    server.store.journal.close()
    directory = server.store.root / "journal"
    server.store.journal.directory = directory / "gone"
    status, answer = server.call("POST", f"inferences/1/{subpath}", {"kind": "x"})
    assert (status, answer["error"][:13]) == (503, "cannot append")
    server.store.journal.directory = directory
