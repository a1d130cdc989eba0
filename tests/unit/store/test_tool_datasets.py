"""Datasets in the forms of other tools: what is written is read back as it was, and becomes ground truth again."""

import json
import zipfile
from typing import Any

import pytest

from quadriga.store.exchange.export import ExportParameters, check_parameters, export
from quadriga.store.exchange.import_files import read
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import InputReference, JournaledChange, TruthStatement
from tests.unit.store.exchange_records import MS
from tests.unit.store.tool_datasets import (
    FORMS,
    IMAGE_GONE,
    LABELS,
    NO_LABEL,
    SIZE_WH,
    check_matching,
    check_predictions,
    check_round_trip,
    check_turned,
    fill,
    forget_truth,
    left_out,
    picture,
)

FORMS_HERE = [form for form in FORMS if form[0].startswith(("yolo", "coco"))]


@pytest.mark.parametrize("written", FORMS_HERE, ids="-".join)
@pytest.mark.parametrize("split", [{}, {"train": 0.7, "val": 0.3}])
def test_ground_truth_comes_back(file_store, tmp_path, record, written, split) -> None:
    check_round_trip(file_store, tmp_path, record, written, split)


@pytest.mark.parametrize("written", FORMS_HERE[:3], ids="-".join)
@pytest.mark.parametrize("what", ["only labels", "renamed", "folder"])
def test_ground_truth_is_matched_without_what_an_export_says(
    file_store, tmp_path, record, written, what
) -> None:
    check_matching(file_store, tmp_path, record, written, what)


@pytest.mark.parametrize("form", ["yolo"])
def test_predictions_are_truth_only_if_somebody_says_so(file_store, tmp_path, record, form) -> None:
    check_predictions(file_store, tmp_path, record, form)


@pytest.mark.parametrize("form", ["yolo"])
def test_boxes_of_a_turned_image_are_those_that_a_person_sees(
    file_store, tmp_path, record, form
) -> None:
    check_turned(file_store, tmp_path, record, form)


def test_what_a_form_cannot_hold_is_left_out_and_counted(file_store, tmp_path, record) -> None:
    shape = "none of its annotations has a shape of the format"
    assert left_out(file_store, record, tmp_path, "yolo") == {NO_LABEL: 1, IMAGE_GONE: 1, shape: 1}


COUNTS = [  # whose annotations, those of 4 images with ground truth and 3 without, how many are left out
    ("either", {"ground_truth": 4, "predictions": 3}, 0),
    ("ground_truth", {"ground_truth": 4}, 3),
    ("predictions", {"predictions": 7}, 0),
]


@pytest.mark.parametrize(("annotations", "annotated", "left_out"), COUNTS)
@pytest.mark.parametrize("form", ["yolo", "coco", "chariot"])
def test_an_export_counts_whose_annotations_it_has(  # noqa: PLR0917 - fixtures and a row
    file_store, tmp_path, record, form, annotations, annotated, left_out
) -> None:
    ids = sorted(fill(file_store, record, "OBJECT_DETECTION"))
    for seq in ids[4:7]:
        file_store.execute(f"DELETE FROM ground_truth WHERE seq = {seq}")
    parameters = ExportParameters(
        where={"id": {"in": ids[:7]}}, format=form, annotations=annotations
    )
    exported = export(file_store.inferences, file_store.blobs, parameters, tmp_path / "set.zip")
    assert exported.annotated == annotated
    assert sum(exported.left_out.values()) == left_out
    truths_, predictions = (annotated.get(key, 0) for key in ("ground_truth", "predictions"))
    assert exported.lines()[0] == (
        f"annotated by ground truth: {truths_}, by predictions: {predictions}"
    )


def test_a_table_counts_no_annotations(file_store, tmp_path, record) -> None:
    fill(file_store, record, "OBJECT_DETECTION")
    parameters = ExportParameters(format="jsonl")
    exported = export(file_store.inferences, file_store.blobs, parameters, tmp_path / "a.jsonl")
    assert (exported.annotated, exported.lines()) == ({}, [])


def test_labels_are_clamped_to_the_image_for_yolo(file_store, tmp_path, record) -> None:
    """Ultralytics refuses an image with a label beyond it."""
    boxes = [(-50, -50, 1e9, 60), (300, 0, 400, 50), (190, 90, 210, 120)]
    items = [
        dict(zip(("label", "xmin", "ymin", "xmax", "ymax"), ("a", *box), strict=True))
        for box in boxes
    ]
    data = picture()
    image = InputReference("a", file_store.blobs.put(data), *SIZE_WH, "image/jpeg", kept=True)
    truth = TruthStatement("id", str(MS << 22), items, task="OBJECT_DETECTION")
    file_store.add(record(MS << 22, input=image), JournaledChange(MS + 1 << 22, truth))
    for form in ("yolo", "yolo-obb", "yolo-seg"):
        file = file_store.export(tmp_path / "set.zip", format=form)
        with zipfile.ZipFile(file) as archive:
            lines = archive.read(f"labels/train/{MS << 22}.txt").decode().splitlines()
        numbers = [[float(word) for word in line.split()[1:]] for line in lines]
        assert all(0 <= number <= 1 for line in numbers for number in line)
    assert len(lines) == 3
    file = file_store.export(tmp_path / "set.zip", format="yolo")
    with zipfile.ZipFile(file) as archive:
        lines = archive.read(f"labels/train/{MS << 22}.txt").decode().splitlines()
    assert lines == ["0 0.5 0.3 1.0 0.6", "0 0.975 0.95 0.05 0.1"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"format": "yolo", "split": {"train": 0.8}}, "expected the shares of all splits to be 1"),
        ({"format": "yolo", "split": {"../x": 1}}, "expected the name of a split to be"),
        ({"format": "yolo", "split": {"a": 0, "b": 1}}, "expected a share above 0"),
        ({"format": "yolo", "split_by": "camera"}, "expected split_by to be input.hash or meta"),
        ({"format": "jsonl", "split": {"a": 1}}, "expected split and image_url with a dataset"),
        ({"format": "cvat", "image_url": "{id.__class__}"}, "expected image_url with {id}"),
        ({"format": "imagefolder", "images": False}, "imagefolder is made of images"),
        ({"format": "coco", "upright": True}, "expected upright with cvat, dota"),
    ],
)
def test_parameters_that_fit_no_format_are_refused(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        check_parameters(ExportParameters(**parameters))


def test_truth_that_matches_nothing_says_why(file_store, tmp_path, record) -> None:
    fill(file_store, record, "OBJECT_DETECTION")
    file = file_store.export(tmp_path / "set.zip", format="yolo")
    forget_truth(file_store)
    file_store.execute(f"DELETE FROM inference WHERE seq = {MS << 22}")
    checked = file_store.importer("ground-truth")
    counts = checked.check(file_store.read(file))
    assert (counts.matched, counts.unmatched) == (len(LABELS) + 1, 1)
    reason = f"no stored inference has id '{MS << 22}'"
    assert checked.reasons == [f"labels/train/{MS << 22}.txt: {reason}"]
    assert file_store.rows("SELECT count(*) FROM truth") == [(0,)]  # nothing was written
    other_model = file_store.importer("ground-truth", model="another")
    other_model.run(file_store.read(file))
    assert "of the model shapes-detector" in other_model.reasons[-1]
    file_store.add(record(MS + 99 << 22, task="IMAGE_CLASSIFICATION", input=InputReference("x")))
    lines = {"path": f"{MS + 99 << 22}.jpg", "annotations": [{"class_label": "a", "bbox": dict(zip(("xmin", "ymin", "xmax", "ymax"), (1, 2, 3, 4), strict=True))}]}  # fmt: skip
    (tmp_path / "one.jsonl").write_text(json.dumps(lines))
    other_task = file_store.importer("ground-truth")
    other_task.run(file_store.read(tmp_path / "one.jsonl"))
    assert "of the task IMAGE_CLASSIFICATION, and the truth is of OBJECT_DETECTION" in other_task.reasons[0]  # fmt: skip


def test_a_format_that_is_not_here_is_named(file_store, tmp_path, record) -> None:
    parameters = ExportParameters(format="cvat")
    message = "the format cvat requires a folder of quadriga.extras that is not here"
    with pytest.raises(QueryError, match=message):
        export(file_store.inferences, file_store.blobs, parameters, tmp_path / "set.zip")
    assert list(tmp_path.glob("*set.zip*")) == []
    (tmp_path / "a.xml").write_text("<annotations/>")
    with pytest.raises(QueryError, match=message):
        list(read(tmp_path / "a.xml"))
