"""Datasets of Label Studio: what is written is read back as it was, and what is wrong in those of strangers is named."""

import json
import zipfile
from typing import Any

import pytest

from quadriga.engine.config.extras import dataset_formats
from quadriga.store.exchange.dataset_files import open_dataset_files
from quadriga.store.exchange.import_files import read
from quadriga.store.records.errors import QueryError
from tests.unit.store.exchange_records import MS
from tests.unit.store.tool_datasets import (
    FORMS,
    IMAGE_GONE,
    NO_LABEL,
    check_matching,
    check_round_trip,
    check_turned,
    fill,
    left_out,
    write_zip,
)

FORMS_HERE = [form for form in FORMS if form[0] == "label-studio"]


@pytest.mark.parametrize("written", FORMS_HERE, ids="-".join)
@pytest.mark.parametrize("split", [{}, {"train": 0.7, "val": 0.3}])
def test_ground_truth_comes_back(file_store, tmp_path, record, written, split) -> None:
    check_round_trip(file_store, tmp_path, record, written, split)


@pytest.mark.parametrize("written", FORMS_HERE, ids="-".join)
@pytest.mark.parametrize("what", ["only labels", "renamed", "folder"])
def test_ground_truth_is_matched_without_what_an_export_says(
    file_store, tmp_path, record, written, what
) -> None:
    check_matching(file_store, tmp_path, record, written, what)


def test_boxes_of_a_turned_image_are_those_that_a_person_sees(file_store, tmp_path, record) -> None:
    check_turned(file_store, tmp_path, record, "label-studio")


def test_tasks_of_label_studio_have_truth_and_predictions_apart(
    file_store, tmp_path, record
) -> None:
    fill(file_store, record, "OBJECT_DETECTION")
    written = {}
    for annotated in ("either", "ground_truth", "predictions"):
        file = file_store.export(
            tmp_path / "set.zip", format="label-studio", annotations=annotated,
            image_url="/data/local-files/?d=ships/{file}",
        )  # fmt: skip
        with zipfile.ZipFile(file) as archive:
            assert not [name for name in archive.namelist() if name.endswith(".jpg")]
            written[annotated] = json.loads(archive.read("tasks.json"))
            config = archive.read("label_config.xml").decode()
    assert [*written["either"][0]] == ["id", "data", "annotations", "predictions"]
    assert [*written["ground_truth"][0]] == ["id", "data", "annotations"]
    assert [*written["predictions"][0]] == ["id", "data", "predictions"]
    (prediction,) = written["either"][0]["predictions"]
    assert prediction["model_version"] == "shapes-detector@1"
    assert prediction["result"][0]["score"] == 0.25
    data = written["either"][0]["data"]
    assert data["image"] == f"/data/local-files/?d=ships/{MS << 22}.jpg"
    assert (data["inference_id"], data["metadata"]["camera"]) == (str(MS << 22), "camera-0")
    assert '<Label value="wrong"/>' in config


def test_what_tasks_cannot_hold_is_left_out_and_counted(file_store, tmp_path, record) -> None:
    expected = {NO_LABEL: 1, IMAGE_GONE: 1}
    assert left_out(file_store, record, tmp_path, "label-studio") == expected


def task(value: Any, **region: Any) -> str:
    """Return tasks of Label Studio with one region."""
    result = {
        "type": "rectanglelabels",
        "original_width": 10,
        "original_height": 10,
        "value": value,
    }
    return json.dumps(
        [{"data": {"image": "a.jpg"}, "annotations": [{"result": [result | region]}]}]
    )


BOX = {"x": 1, "y": 1, "width": 5, "height": 5, "rectanglelabels": ["a"]}
REFUSED = [
    ({"tasks.json": task({**BOX, "x": "1"})}, "result 0: expected percents"),
    ({"tasks.json": task({**BOX, "x": 1e999})}, "expected a JSON array of tasks"),
    ({"tasks.json": task(BOX, original_width=0)}, "expected percents of an image of known size"),
    ({"tasks.json": task({"format": "rle", "rle": [1]}, type="brush")}, "expected rectangles, polygons and choices"),
    ({"tasks.json": "[" * 99_999}, "expected a JSON array of tasks"),
    ({"tasks.json": '[{"data": 1}]'}, "task 0: expected a task of Label Studio"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "message"), REFUSED)
def test_what_is_wrong_is_named(tmp_path, members: dict[str, str | bytes], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        list(read(write_zip(tmp_path / "set.zip", members), formats=dataset_formats()))


@pytest.mark.parametrize("name", ["../../secret.jpg", "/etc/passwd", "images/../../secret.jpg"])
def test_names_that_lead_out_of_the_dataset_are_no_files(tmp_path, name: str) -> None:
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    folder = tmp_path / "a" / "set"
    folder.mkdir(parents=True)
    text = task({"choices": ["a"]}, type="choices").replace("a.jpg", name)
    (folder / "tasks.json").write_text(text)
    (item,) = read(folder, formats=dataset_formats())
    assert item.image() is None
    with pytest.raises(FileNotFoundError):
        open_dataset_files(folder).read(name)


@pytest.mark.parametrize("value", ["x", "-1", "9" * 30, "\u0661"])
def test_an_id_that_is_none_is_refused(file_store, tmp_path, record, value: str) -> None:
    file_store.add(record(1))
    text = task({"choices": ["a"]}, type="choices")
    tasks = json.loads(text)
    tasks[0]["data"]["inference_id"] = value
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    with pytest.raises(QueryError, match="expected an id of at most 19 digits"):
        file_store.import_file(tmp_path / "tasks.json", "ground-truth")
