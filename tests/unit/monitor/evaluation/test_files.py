"""Evaluation of files of records, and of COCO's."""

import io
import json
import re
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quadriga.monitor.evaluation.files import evaluate_files as files
from quadriga.monitor.evaluation.files.evaluate_files import (
    evaluate_coco,
    evaluate_parquet,
    evaluate_records,
)
from quadriga.monitor.evaluation.reporting import EvaluationOptions
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.store.query.filters.comparisons import ComparisonParser
from quadriga.store.query.filters.forms import parse_text
from tests.unit.monitor.evaluation.evaluation_images import stable_report

BOX = {"label": "ship", "xmin": 0, "ymin": 0, "xmax": 10, "ymax": 10}
FOUND = [BOX | {"score": 0.5}]
ASKED = EvaluationOptions(resamples=5)


def record(name, **fields):
    return {"id": name, "predictions": FOUND, "ground_truth": [BOX], **fields}


def lines(*records):
    return io.BytesIO(b"\n".join(record if isinstance(record, bytes) else json.dumps(record).encode() for record in records))  # fmt: skip


def evaluated(*records, task="detection", **options):
    return evaluate_records(lines(*records), task, name="a.jsonl", options=ASKED, **options)


def value(report, kind="AP"):
    return next(metric.value for metric in report.metrics if metric.type == kind)


def test_records_are_evaluated_whatever_kind_of_id_they_have() -> None:
    report = evaluated(record(7), b"", record("b", predictions=[]))
    assert (report.status, report.task, report.data.current.n) == ("ok", "OBJECT_DETECTION", 2)
    assert value(report) == pytest.approx(51 / 101)  # half of the objects


def test_images_without_truth_and_failures_are_left_out_and_counted() -> None:
    report = evaluated(record(1), {"id": 2}, record(3, status=500))
    assert report.data.current.n == 1
    assert report.data.excluded == {"no_truth": 1, "failed": 1}


@pytest.mark.parametrize("records", [[], [{"id": 1, "ground_truth": None}]])
def test_nothing_to_evaluate_is_insufficient(records) -> None:
    report = evaluated(*records)
    assert report.status == "insufficient"
    assert value(report) is None


def test_shards_make_no_difference(monkeypatch) -> None:
    records = [record(at, predictions=FOUND * (at % 3), metadata={"a": at % 2}) for at in range(9)]
    report = evaluated(*records, by=["meta.a"])
    monkeypatch.setattr(files, "SHARD_SIZE", 2)
    assert stable_report(evaluated(*records, by=["meta.a"])) == stable_report(report)
    assert [(slice_.by, slice_.value, slice_.n) for slice_ in report.slices] == [
        ("meta.a", "0", 5),
        ("meta.a", "1", 4),
    ]


def test_the_window_is_that_of_the_times_and_exports_are_records() -> None:
    report = evaluated(
        record(1, created_at="2026-01-02T00:00:00Z", input={"width": 5, "height": 4}),
        record(2, created_at="2026-01-01T00:00:00Z", predictions=[], input={"hash": "blake3:1"}),
    )
    window = report.data.current
    assert (window.start, window.end) == ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
    assert [(image.inference_id, image.image, image.reason) for image in report.worst] == [
        ("2", "blake3:1", "miss")
    ]


def test_the_worst_images_have_what_is_drawn_on_them() -> None:
    report = evaluated(*(record(at, predictions=[]) for at in range(2)), record(2))
    assert [json.loads(bytes(image.ground_truth)) for image in report.worst] == [[BOX], [BOX]]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"{", "a.jsonl:3: expected JSON, got: "),
        (b"[]", "a.jsonl:3: expected `object`, got `array`"),
        (b'{"id": null}', "a.jsonl:3.id: expected `int | str`, got `null`"),
        (b'{"predictions": []}', "a.jsonl:3: expected a field `id`"),
        (b'{"id": "\xff"}', "a.jsonl:3: expected JSON, got: "),
        (record("1"), "a.jsonl:3: expected each id once, got '1' again"),
        (record(3, predictions=[BOX]), "a.jsonl:3: image '3': predictions[0]: expected a field `score`"),
        (record(3, created_at="yesterday"), "a.jsonl:3: expected created_at to be a time such as 2026-01-31T12:00:00Z, got 'yesterday'"),
        (record(3, created_at="0001-01-01T00:00:00+09:00"), "a.jsonl:3: expected created_at to be a time"),
        (record(3, created_at=1769860800), "a.jsonl:3.created_at: expected `str | null`, got `int`"),
        (b'{"id": 3},', "a.jsonl:3: expected JSON, got: JSON is malformed: trailing characters (byte 10); write one JSON object in each line"),
        (record(3, ground_truth=[{"label": "a"}]), "a.jsonl:3: image '3': ground_truth[0]: expected a field"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named(bad, message: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        evaluated(record(1), b"", bad, record(4))
    assert str(caught.value).startswith(message)


TIMES = {  # texts, their hours, and the window
    "offsets": (["2026-03-29T09:30:00+09:00", "2026-03-28T23:00:00-08:00"], ["00", "07"], ("2026-03-29T00:30:00Z", "2026-03-29T07:00:00Z")),
    "no offset": (["2026-03-29T05:00:00"], ["05"], ("2026-03-29T05:00:00Z",) * 2),
    "a space": (["2026-03-29 05:00:00.250Z"], ["05"], ("2026-03-29T05:00:00.250Z",) * 2),
    "a date": (["2026-03-29"], ["00"], ("2026-03-29T00:00:00Z",) * 2),
    "with milliseconds and without": (["2026-03-29T05:00:00.5Z", "2026-03-29T05:00:00Z"], ["05"], ("2026-03-29T05:00:00Z", "2026-03-29T05:00:00.500Z")),
}  # fmt: skip


@pytest.mark.parametrize(("texts", "hours", "window"), TIMES.values(), ids=TIMES)
def test_times_are_in_utc(texts, hours, window) -> None:
    records = [record(at, created_at=text) for at, text in enumerate(texts)]
    report = evaluated(*records, by=["hour", "day"])
    assert (report.data.current.start, report.data.current.end) == window
    assert sorted(part.value for part in report.slices if part.by == "hour") == hours
    assert {part.value for part in report.slices if part.by == "day"} == {"2026-03-29"}


PARQUET_TIMES = {  # times of half past nine in Tokyo, and the hour
    "UTC": (pa.array([1_774_744_200_000], pa.timestamp("ms", "UTC")), "00"),
    "a zone": (pa.array([1_774_744_200], pa.timestamp("s", "Asia/Tokyo")), "00"),
    "no zone": (pa.array([1_774_744_200_000_000_000], pa.timestamp("ns")), "00"),
    "text": (pa.array(["2026-03-29T09:30:00+09:00"]), "00"),
    "nothing": (pa.array([None], pa.timestamp("ms")), None),
}  # fmt: skip


@pytest.mark.parametrize(("times", "hour"), PARQUET_TIMES.values(), ids=PARQUET_TIMES)
def test_times_of_parquet_are_in_utc(tmp_path, monkeypatch, times, hour) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    texts = {"predictions": json.dumps(FOUND), "ground_truth": json.dumps([BOX]), "model": "m", "task": "t"}  # fmt: skip
    columns = {name: pa.array([text]) for name, text in texts.items()}
    pq.write_table(
        pa.table({"id": pa.array([1]), "created_at": times, **columns}), tmp_path / "a.parquet"
    )
    report = evaluate_parquet(tmp_path / "a.parquet", "detection", by=["hour"], options=ASKED)
    monkeypatch.undo()
    time.tzset()
    assert [part.value for part in report.slices] == [hour]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_records_may_be_in_any_unicode(encoding) -> None:
    text = "".join(json.dumps(record(at)) + "\r\n" for at in range(2))
    file = io.BytesIO(text.encode(encoding))
    assert evaluate_records(file, "detection", name="a", options=ASKED).data.current.n == 2
    with pytest.raises(EvaluationError, match="a: expected text in UTF-8"):
        evaluate_records(io.BytesIO(b"\xff\xfea"), "detection", name="a")


VALUES = [1, 1.0, True, "1", "1.0", "true", "north", "a & b", "", -0.0, 0.1, 1e300, (1 << 53) + 1, "1e5", "ge:5", "a,b", 'say "x"', "\u00fc b"]  # fmt: skip


def test_a_slice_is_the_filter_that_it_names() -> None:
    """Each distinct value has a slice, and the filter of its name finds that value alone."""
    records = [record(at, metadata={"k": value}) for at, value in enumerate(VALUES)]
    counts = {part.value: part.n for part in evaluated(*records, by=["meta.k"]).slices}
    assert counts.pop("1") == 2
    assert set(counts.values()) == {1}
    found = [parse_text(f"meta.k={name}", ComparisonParser(0)).value for name in counts]
    assert {(type(value), value) for value in found} == {
        (type(value), value) for value in [True, *VALUES[3:9], 0, *VALUES[10:]]
    }


def test_tasks_that_are_none_are_refused() -> None:
    with pytest.raises(EvaluationError, match="as task, got 'x'"):
        evaluated(task="x")


COCO = {
    "images": [{"id": 1, "width": 20, "height": 20, "file_name": "a.jpg"}, {"id": 2}],
    "categories": [{"id": 3, "name": "ship"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 3, "bbox": [0, 0, 10, 10], "area": 100,
         "segmentation": [[0, 0, 10, 0, 10, 10, 0, 10]]},
        {"id": 2, "image_id": 1, "category_id": 3, "bbox": [12, 12, 4, 4], "area": 16,
         "segmentation": {"size": [20, 20], "counts": [252, 4, 16, 4, 16, 4, 16, 4, 84]}},
    ],
}  # fmt: skip


@pytest.fixture
def coco(tmp_path):
    def evaluate(results, task=None, encoding=None):
        (tmp_path / "truth.json").write_text(json.dumps(COCO), encoding)
        (tmp_path / "found.json").write_text(json.dumps(results), encoding)
        return evaluate_coco(tmp_path / "truth.json", tmp_path / "found.json", task, options=ASKED)

    return evaluate


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_boxes_of_coco_are_evaluated_and_drawn(coco, encoding) -> None:
    found = [{"image_id": 1, "category_id": 3, "bbox": [0, 0, 10, 10], "score": 0.5}]
    report = coco(found, encoding=encoding)
    assert report.data.current.n == 2
    assert value(report) == pytest.approx(51 / 101)
    (worst,) = report.worst
    assert (worst.inference_id, worst.reason) == ("1", "miss")
    assert json.loads(bytes(worst.predictions)) == [BOX | {"score": 0.5}]
    assert [annotation["xmin"] for annotation in json.loads(bytes(worst.ground_truth))] == [0, 12]


def test_masks_of_coco_are_drawn_as_contours(coco) -> None:
    results = [
        {"image_id": 1, "category_id": 3, "score": 0.5, "segmentation": COCO["annotations"][1]["segmentation"]}
    ]  # fmt: skip
    report = coco(results)
    assert report.task == "IMAGE_SEGMENTATION"
    (worst,) = report.worst
    square = [[{"x": 12, "y": 12}, {"x": 12, "y": 15}, {"x": 15, "y": 15}, {"x": 15, "y": 12}]]
    assert json.loads(bytes(worst.predictions))[0]["contour"] == square
    assert json.loads(bytes(worst.ground_truth))[1]["contour"] == square


def test_the_record_of_the_document_is_one() -> None:
    page = (Path(__file__).parents[4] / "docs" / "evaluation.md").read_text()
    section = page.partition("\n## Evaluate files\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    report = evaluated(json.loads(example), by=["meta.camera_id"])
    assert [slice_.value for slice_ in report.slices] == ["north"]
    assert value(report) == pytest.approx(0.9)  # their overlap is 760 / 838
    wrong = json.loads(example)
    del wrong["predictions"][0]["score"]
    message = re.findall(r"``answers\.jsonl:17: (.*?: expected a field `score`) ``", section)
    with pytest.raises(EvaluationError) as caught:
        evaluated(wrong)
    assert message == [str(caught.value).removeprefix("a.jsonl:1: ")]
