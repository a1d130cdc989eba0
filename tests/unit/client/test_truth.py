"""Ground truth as people have it: labels, items of a field, lines of a dataset, files."""

import json

import numpy as np
import pytest

from quadriga.client import Client, mask_annotations
from quadriga.client.errors import InputError, TruthWarning
from tests.unit.client.conftest import json_response

STAR, DISC = [{"label": "star"}], [{"label": "disc"}]
ITEM = {"value": "a.jpg", "annotations": STAR}
LINE = {"path": "a.jpg", "annotations": STAR}


@pytest.fixture
def client(server):
    server.answers(json_response({"id": "1", "stated": 1}))
    with Client(server.url, key="", retries=0) as client:
        yield client


def body(server) -> bytes:
    (request,) = server.requests
    return request.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("annotations", "sent"), [("disc", DISC), (DISC, DISC), (iter(DISC), DISC), ([], []), ((), [])]
)
def test_a_label_alone_is_the_truth_of_the_whole_image(client, server, annotations, sent):
    client.truth.state("1", annotations)
    assert json.loads(body(server)) == {"annotations": sent, "source": ""}


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"label": "disc"}, "expected annotations to be a list of objects or one label, got dict"),
        (7, "got int"),
        (None, "got NoneType"),
        (["disc", "ring"], r"expected annotations\[0\] to be an object such as .*, got 'disc'"),
    ],
)
def test_what_is_no_truth_is_refused_before_anything_is_sent(client, server, annotations, message):
    with pytest.raises(InputError, match=message):
        client.truth.state("1", annotations)
    assert not server.requests


@pytest.mark.parametrize(
    ("rows", "options", "sent"),
    [
        ([ITEM], {"join": "meta.file"}, {"join": "meta.file", "items": [ITEM]}),
        ([{"value": "1", "annotations": "disc"}], {"source": "amy"}, {"join": "id", "items": [{"value": "1", "annotations": DISC}], "source": "amy"}),
        ([{"value": "1", "annotations": None}], {}, {"join": "id", "items": [{"value": "1", "annotations": None}]}),
        ([], {}, {"join": "id", "items": []}),
        (iter([ITEM]), {"where": "label=star"}, {"join": "id", "items": [ITEM], "where": "label=star"}),
    ],
)  # fmt: skip
def test_items_are_stated_of_one_field(client, server, rows, options, sent):
    client.truth.bulk(rows, **options)
    assert json.loads(body(server)) == sent


LINES = [LINE, {"data_hash": "blake3:0", "annotations": "disc", "source": "eve"}]


@pytest.mark.parametrize("form", ["rows", "lines", "list", "str"])
def test_lines_of_a_dataset_are_taken_as_the_endpoint_takes_them(client, server, tmp_path, form):
    path = tmp_path / "truth.jsonl"
    text = "\n\n".join(map(json.dumps, LINES)) + "\n"
    path.write_text(json.dumps(LINES) if form == "list" else "\ufeff" + text, encoding="utf-8")
    items = {"rows": LINES, "lines": path, "list": path, "str": str(path)}[form]
    client.truth.bulk(items, source="amy")
    first, second = map(json.loads, body(server).split(b"\n"))
    assert first == {**LINE, "source": "amy"}
    assert second == {"data_hash": "blake3:0", "annotations": DISC, "source": "eve"}


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        ({"value": 1}, {}, "expected a list of objects or a path, got dict"),
        (7, {}, "got int"),
        (["a"], {}, r"expected items\[0\] to be an object, got 'a'"),
        ([{"annotations": STAR}], {}, r"items\[0\] to have annotations and value, or one of path, .*, got annotations"),
        ([LINE, {"path": "b"}], {}, r"expected items\[1\] to have annotations and value"),
        ([ITEM, LINE], {}, r"expected items\[1\] to have value and annotations, got path, annotations"),
        ([{**LINE, "datum_id": "7"}], {}, r"expected items\[0\] to have annotations and value, or one of"),
        ([LINE], {"join": "id"}, r"expected items\[0\] to be joined on id, got one of meta.path"),
        ([LINE], {"where": "label=star"}, "expected items with value and annotations beside where, got lines"),
        ([{"path": "a", "annotations": ["disc"]}], {}, r"items\[0\].annotations\[0\] to be an object"),
        ([{"value": {1}, "annotations": []}], {}, r"the body\['items'\]\[0\]\['value'\] to be a value of JSON"),
        ("missing.jsonl", {}, "cannot read 'missing.jsonl'"),
    ],
)  # fmt: skip
def test_what_is_neither_form_is_named_by_its_place(client, server, items, options, message):
    with pytest.raises(InputError, match=message):
        client.truth.bulk(items, **options)
    assert not server.requests


def test_a_line_that_is_no_json_is_named_by_its_number(client, tmp_path):
    path = tmp_path / "truth.jsonl"
    path.write_text(json.dumps(LINE) + "\n\n{broken\n")
    with pytest.raises(InputError, match=r"truth.jsonl, line 3: "):
        client.truth.bulk(path)


STATED = {
    "one": lambda truth: truth.state("1", "discc").id == "1",
    "many": lambda truth: truth.bulk([{"value": "1", "annotations": "discc"}])["stated"] == 1,
}


@pytest.mark.parametrize("state", STATED.values(), ids=STATED)
def test_what_the_server_doubts_is_a_warning_where_it_was_stated(server, state):
    text = "'discc' is not a label of 'gauge'; did you mean disc?"
    server.answers(json_response({"id": "1", "stated": 1, "warnings": [text]}))
    with Client(server.url, key="", retries=0) as client, pytest.warns(TruthWarning) as caught:
        assert state(client.truth)
    assert [(str(warning.message), warning.filename) for warning in caught] == [(text, __file__)]


def test_what_the_server_doubts_of_a_mask_is_a_warning_where_it_was_stated(server):
    server.answers(stored(2, 2), json_response({"id": "1", "warnings": ["'lak' is not a label"]}))
    with Client(server.url, key="", retries=0) as client, pytest.warns(TruthWarning) as caught:
        client.truth.state_mask("1", MASK, {1: "lak"}, ignore={2})
    assert [warning.filename for warning in caught] == [__file__]


MASK = np.array([[0, 1], [1, 2]], np.uint8)


def stored(width, height):
    return json_response({"id": "1", "input": {"width": width, "height": height}})


def test_a_mask_is_stated_as_the_regions_of_its_labels(server):
    server.answers(stored(2, 2), json_response({"id": "1"}))
    with Client(server.url, key="", retries=0) as client:
        client.truth.state_mask("1", MASK, {1: "lake"}, ignore={2}, source="amy")
    sent = json.loads(server.requests[1].partition(b"\r\n\r\n")[2])
    assert sent["source"] == "amy"
    assert sent["annotations"] == mask_annotations(MASK == 1, "lake")


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        ((4, 4), {"ignore": {2}}, "expected a mask of 4 x 4 pixels, got 2 x 2"),
        ((2, 2), {}, "got none for 2"),
        ((None, None), {}, "got none for 2"),
    ],
)
def test_a_mask_that_does_not_fit_is_not_stated(server, size, options, message):
    server.answers(stored(*size))
    client = Client(server.url, key="", retries=0)
    with client, pytest.raises(InputError, match=message):
        client.truth.state_mask("1", MASK, {1: "lake"}, **options)
    assert len(server.requests) == 1
