"""Stored inferences as pages, one after the other, and as tables."""

import json
import sys
import time

import pyarrow as pa
import pytest

from quadriga.client import BadAnswer, Client, JobFailed, MissingPackage
from quadriga.client.errors import InputError
from tests.unit.client.conftest import json_response, response


def record(number: int, /, **metadata) -> dict:
    return {
        "id": str(number), "created_at": "2026-01-31T12:00:00.000Z", "model": {"name": "m", "version": "1"},
        "task": "OBJECT_DETECTION", "action": "predict", "latency_ms": 4.2, "status": 200,
        "input": {"width": 640, "height": 480, "hash": "blake3:0"}, "metadata": metadata, "ground_truth": None,
        "predictions": [{"label": "ü", "score": None, "xmin": 0, "ymin": 0, "xmax": 1, "ymax": 1}],
    }  # fmt: skip


def pages(*rows: list, cursors=None) -> list[bytes]:
    names = cursors or [*(f"c{number}" for number in range(1, len(rows))), None]
    return [
        json_response({"inferences": page, "cursor": cursor})
        for page, cursor in zip(rows, names, strict=True)
    ]


def bodies(server) -> list[dict]:
    return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]


@pytest.fixture
def client(server):
    with Client(server.url, key="", retries=0) as client:
        yield client


def test_pages_are_read_as_they_are_needed(client, server):
    server.answers(*pages([record(1), record(2)], [record(3)]))
    query = client.query("label=ü & meta.a=1")
    assert not server.requests
    rows = iter(query)
    assert next(rows).id == "1"
    assert len(server.requests) == 1
    assert [row.id for row in rows] == ["2", "3"]
    first, second = bodies(server)
    assert first == {"where": "label=ü & meta.a=1", "order": "-ts", "limit": 1000}
    assert second == {**first, "cursor": "c1"}


def test_a_query_says_what_it_is_and_how_much_was_read(client, server):
    server.answers(*pages([record(1), record(2)], [record(3)]))
    query = client.query("label=ü")
    assert str(query) == "<Inferences of 'label=ü': not read yet>"
    rows = iter(query)
    next(rows)
    assert repr(query) == "<Inferences of 'label=ü': 2, more to come>"
    assert list(rows)
    assert repr(query) == "<Inferences of 'label=ü': 3>"
    assert len(server.requests) == 2, "a text sends nothing"
    assert repr(client.query()) == "<Inferences of 'all': not read yet>"


def test_jobs_reports_and_groups_are_short_texts(client, server):
    job = {"id": "17-a", "kind": "drift", "state": "running", "progress": {"done": 3, "total": 20}}
    report = {
        "id": "17-a", "kind": "drift", "status": "ok", "model": {"name": "m", "version": "1"},
        "data": {"current": {"n": 20}}, "signals": [{"name": "a"}] * 50,
    }  # fmt: skip
    server.answers(*[json_response(answer) for answer in (job, job, {"jobs": [job]}, report)])
    shown = "<Job 17-a: drift running: 3/20>"
    assert [repr(client.jobs.get("17-a")), repr(client.inferences.export())] == [shown, shown]
    assert repr(client.jobs.list()) == f"[{shown}]"
    assert repr(client.reports.get("17-a")) == "<Report 17-a: drift of m@1: ok, 20 images>"
    assert repr(client.jobs) == f"<Jobs of Client('{server.url}')>"


def test_a_limit_ends_the_pages(client, server):
    server.answers(*pages([record(1), record(2)], [record(3)], cursors=["a", "b"]))
    assert [row.id for row in client.query(limit=3, page_size=2)] == ["1", "2", "3"]
    assert [body["limit"] for body in bodies(server)] == [2, 1]
    assert list(client.query(limit=0)) == []
    assert len(server.requests) == 2


def test_what_the_server_says_about_an_empty_answer_is_a_warning(client, server):
    said = "no stored inference has the metadata key 'rum'; did you mean meta.run?"
    server.answers(
        json_response({"inferences": [], "cursor": None, "warnings": [said]}),
        *2 * [json_response({"count": 0, "is_exact": True, "warnings": [said]})],
        *pages([]),
    )
    query = client.query("meta.rum=v1")
    for count in (
        lambda: len(list(query)),
        lambda: client.inferences.count("meta.rum=v1"),
        query.count,
    ):
        with pytest.warns(UserWarning, match="did you mean meta.run") as caught:
            assert count() == 0
        assert [warning.filename for warning in caught] == [
            __file__
        ]  # and not a file of the client
    assert list(client.query("meta.run=v9")) == []  # a warning would be an error here


@pytest.mark.parametrize("warnings", [None, []])
def test_an_answer_may_name_no_warnings(client, server, warnings):
    server.answers(
        json_response({"inferences": [], "cursor": None, "warnings": warnings}),
        json_response({"count": 0, "is_exact": True, "warnings": warnings}),
        json_response({"id": "1", "warnings": warnings}),
    )
    assert list(client.query("meta.run=v9")) == []
    assert client.inferences.count("meta.run=v9") == 0
    assert client.truth.state("1", "disc").id == "1"


def test_a_count_waits_as_its_query_does(client, server):
    server.answers(json_response({"count": 24, "is_exact": True}))
    assert client.query("label=ü", consistency="journal").count() == 24
    assert client.query("label=ü").count() == client.inferences.count("label=ü") == 24
    waiting = {"where": "label=ü", "consistency": "journal"}
    assert bodies(server) == [waiting, {"where": "label=ü"}, {"where": "label=ü"}]


def test_comparisons_wait_unless_they_need_not(client, server):
    for compare in (client.inferences.compare, client.inferences.disagreements):
        compare("m@1", "m:2", score=0.3)
        compare("m", "n", consistency=None)
    waiting = {"a": "m@1", "b": "m:2", "consistency": "journal", "score": 0.3}
    assert bodies(server) == [waiting, {"a": "m", "b": "n"}] * 2


@pytest.mark.parametrize(("limit", "page_size"), [(-1, 10), (None, 0), (None, 1001)])
def test_limits_that_are_none_are_refused(client, limit, page_size):
    with pytest.raises(InputError, match="page_size"):
        client.query(limit=limit, page_size=page_size)


def test_a_server_that_repeats_a_page_does_not_hold_the_client_for_ever(client, server):
    server.answers(*pages([record(1)], [record(1)], cursors=["same", "same"]))
    with pytest.raises(BadAnswer, match="same cursor"):
        list(client.query())


def test_what_is_no_page_is_a_bad_answer(client, server):
    server.answers(json_response([1]))
    with pytest.raises(BadAnswer, match="a page of inferences"):
        list(client.query())


def test_tables_have_a_column_for_each_path_of_the_metadata(client, server):
    rows = [
        record(1, camera="north", place={"floor": 2, "tags": [1, "a"]}, mixed=1),
        record(2, mixed="text", number=1),
        record(3, number=2.5, big=2**70, empty={}),
    ]
    server.answers(*pages(rows))
    table = client.query().to_arrow()
    assert isinstance(table, pa.Table)
    columns = table.to_pydict()
    paths = ["camera", "place.floor", "place.tags", "mixed", "number", "big", "empty"]
    assert [name for name in columns if name.startswith("meta.")] == [f"meta.{path}" for path in paths]  # fmt: skip
    assert columns["meta.camera"] == ["north", None, None]
    assert columns["meta.place.floor"] == [2, None, None]
    assert columns["meta.place.tags"] == ['[1, "a"]', None, None]
    assert columns["meta.mixed"] == ["1", "text", None]
    assert columns["meta.number"] == [None, 1.0, 2.5]
    assert columns["meta.big"] == [None, None, str(2**70)]
    assert columns["meta.empty"] == [None, None, "{}"]
    assert columns["labels"] == [["ü"]] * 3
    assert str(columns["scores"][0]) == "[nan]"
    assert json.loads(columns["predictions"][0])[0]["label"] == "ü"


def test_a_table_of_detections_has_a_row_for_each(client, server):
    ring = [{"x": 1.0, "y": 2.0}, {"x": 5.0, "y": 2.0}, {"x": 5.0, "y": 9.0}]
    rows = [record(1, camera="north"), record(2), record(3), record(4), record(5, camera="east")]
    rows[0]["predictions"] *= 2
    rows[1]["predictions"] = []
    rows[2]["predictions"] = [{"label": "lake", "score": 0.7, "contour": [ring]}]
    rows[3]["predictions"] = [{"label": "ship", "score": 0.5, "cx": 0.5, "cy": 0.5, "w": 0.1, "h": 0.2, "r": 1.5}]  # fmt: skip
    rows[4]["predictions"] = [{"prompt": "?", "answer": "yes"}]
    server.answers(*pages(rows))
    columns = client.query().to_arrow(detections=True).to_pydict()
    assert columns["id"] == ["1", "1", "3", "4", "5"]
    assert columns["number"] == [0, 1, 0, 0, 0]
    assert columns["label"] == ["ü", "ü", "lake", "ship", None]
    assert columns["score"] == [None, None, 0.7, 0.5, None]
    boxes = list(zip(*(columns[name] for name in ("xmin", "ymin", "xmax", "ymax")), strict=True))
    assert boxes == [(0, 0, 1, 1)] * 2 + [(1, 2, 5, 9)] + [(None,) * 4] * 2
    assert columns["r"] == [None, None, None, 1.5, None]
    assert columns["answer"] == [None] * 4 + ["yes"]
    assert columns["meta.camera"] == ["north", "north", None, None, "east"]
    assert columns["width"] == [640] * 5
    assert [row["label"] for row in client.query().detections()][:2] == ["ü", "ü"]


def test_a_table_of_ground_truth_has_the_columns_of_detections(client, server):
    ring = [{"x": 1.0, "y": 2.0}, {"x": 5.0, "y": 2.0}, {"x": 5.0, "y": 9.0}]
    box = {"label": "star", "xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}
    rows = [record(seq, camera="north") for seq in range(1, 8)]
    truths = [[box, box], [], None, [{"label": "lake", "contour": [ring]}], [{"label": "disc"}]]
    truths += [[{"prompt": "?", "answers": ["yes", "ja"]}], [{"answer": "no"}]]
    for row, truth in zip(rows, truths, strict=True):
        row["ground_truth"] = truth
    server.answers(*pages(rows))
    columns = client.query().to_arrow(annotations=True).to_pydict()
    assert list(columns) == list(client.query().to_arrow(detections=True).to_pydict())
    assert columns["id"] == ["1", "1", "4", "5", "6", "7"]
    assert columns["number"] == [0, 1, 0, 0, 0, 0]
    assert columns["label"] == ["star", "star", "lake", "disc", None, None]
    assert columns["score"] == [None] * 6
    boxes = list(zip(*(columns[name] for name in ("xmin", "ymin", "xmax", "ymax")), strict=True))
    assert boxes == [(1, 2, 3, 4)] * 2 + [(1, 2, 5, 9)] + [(None,) * 4] * 3
    assert columns["answer"] == [None] * 4 + ['["yes", "ja"]', "no"]
    assert columns["meta.camera"] == ["north"] * 6
    assert [row["label"] for row in client.query().annotations()] == columns["label"]
    with pytest.raises(InputError, match="expected detections or annotations, got both"):
        client.query().to_arrow(detections=True, annotations=True)


def test_a_frame_has_rows_of_inferences_or_of_detections(client, server):
    pytest.importorskip("pandas")
    rows = [record(1), record(2)]
    rows[0]["predictions"] *= 3
    server.answers(*pages(rows))
    assert len(client.query().to_pandas()) == 2
    frame = client.query().to_pandas(detections=True)
    assert frame["label"].tolist() == ["ü"] * 4
    assert str(frame["created_at"].dtype).startswith("datetime64")


def test_nothing_found_is_a_table_without_rows(client, server):
    server.answers(*pages([]))
    assert client.query().to_arrow().num_rows == 0
    table = client.query().to_arrow(detections=True)
    assert (table.num_rows, table.column_names[:6]) == (0, ["id", "created_at", "model", "version", "number", "label"])  # fmt: skip


def test_other_tables_say_which_package_is_missing(client, server, monkeypatch):
    server.answers(*pages([record(1)]))
    for convert in ("to_pandas", "to_polars", "to_arrow"):
        for name in ("pandas", "polars", "pyarrow"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingPackage, match="pip install p"):
            getattr(client.query(), convert)()


def test_a_stored_inference_has_its_image_and_predictions(client, server):
    server.answers(*pages([record(1)]), response(200, b"picture"))
    (inference,) = client.query()
    assert inference.image() == b"picture"
    assert inference.labels == ["ü"]
    assert inference.image_size == (640, 480)
    assert inference.to_coco(category_ids=["ü"])[0]["bbox"] == [0, 0, 1, 1]
    server.answers(json_response({"labels": ["a", "ü"], "label_count": 2}))
    assert inference.to_coco()[0]["category_id"] == 2
    assert (inference.model, inference.version, inference.metadata) == ("m", "1", {})


def test_a_failed_job_has_its_reason(client, server):
    running = {"id": "j", "state": "running", "progress": {"done": 1, "total": 2}}
    failed = {
        "id": "j",
        "state": "failed",
        "error": "no space",
        "progress": {"done": 1, "total": 2},
    }
    server.answers(json_response(running), json_response(failed))
    with pytest.raises(JobFailed, match="job j: no space") as raised:
        client.jobs.wait("j")
    assert raised.value.job == failed


def test_the_wait_for_a_job_has_an_end(client, server):
    server.answers(
        json_response({"id": "j", "state": "running", "progress": {"done": 0, "total": None}})
    )
    with pytest.raises(TimeoutError, match="job j is running"):
        client.jobs.wait("j", timeout=0.3)


def test_a_result_that_is_cut_leaves_no_file(client, server, tmp_path):
    whole = response(200, b"x" * 100)
    server.script = lambda sock, *_: sock.sendall(whole[:-1]) or "close"
    with pytest.raises(ConnectionError):
        client.jobs.result("j", tmp_path / "export.jsonl")
    assert list(tmp_path.iterdir()) == []
    server.answers(whole)
    assert client.jobs.result("j", tmp_path / "export.jsonl").read_bytes() == b"x" * 100
    assert [path.name for path in tmp_path.iterdir()] == ["export.jsonl"]
    with pytest.raises(InputError, match="cannot write"):
        client.jobs.result("j", tmp_path / "missing" / "x")


def test_a_long_download_may_take_longer_than_a_request(server, tmp_path):
    """Each MiB has the time of a request."""
    part = b"x" * (1 << 20)

    def slowly(sock, *_):
        sock.sendall(b"HTTP/1.1 200 x\r\nContent-Length: %d\r\n\r\n" % (4 * len(part)))
        for _ in range(4):
            time.sleep(0.5)
            sock.sendall(part)

    server.script = slowly
    with Client(server.url, key="", timeout=1.5, total_timeout=1.5) as client:
        assert client.jobs.result("j", tmp_path / "x").stat().st_size == 4 * len(part)
    server.script = lambda sock, *_: (
        sock.sendall(b"HTTP/1.1 200 x\r\nContent-Length: 9\r\n\r\n"),
        time.sleep(3),
    )
    with Client(server.url, key="", timeout=0.5) as client, pytest.raises(ConnectionError):
        client.jobs.result("j", tmp_path / "y")


def test_everything_is_deleted_only_if_it_is_said(client, server):
    for where in (None, "", {}):
        with pytest.raises(InputError, match="every=True"):
            client.inferences.delete(where)
    assert not server.requests
    client.inferences.delete(every=True)
    assert bodies(server) == [{"dry_run": False, "all": True, "erase": False}]


def test_events_are_read_until_the_iterator_is_closed(client, server):
    def stream(sock, *_):
        sock.sendall(b"HTTP/1.1 200 x\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n")
        for number in range(3):
            sock.sendall(b'event: inference\ndata: {"id":\ndata: %d}\n\n' % number)

    server.script = stream
    tail = client.inferences.tail("label=a")
    assert [next(tail)["id"] for _ in range(3)] == [0, 1, 2]
    tail.close()
    assert b"GET /api/inferences/tail?q=label%3Da HTTP/1.1" in server.requests[0]
    server.answers(json_response({"error": "no filter"}, 400))
    with pytest.raises(Exception, match="no filter"):
        next(client.inferences.tail("x"))
