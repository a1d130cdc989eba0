"""Datasets in the forms of other tools: what is written is read back as it was, and becomes ground truth again."""

import io
import json
import math
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from quadriga.store.exchange.export import ExportParameters, check_parameters, export
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import InputReference, JournaledChange, TruthStatement
from tests.unit.store.exchange_records import HOLE, MS, RING
from tests.unit.store_harness import StoreHarness

LABELS = [
    "ship",
    "a, b",
    "two words",
    "\u00e9\u6c34\U0001f6a2",
    "..",
    "a/b\\c",
    "1",
    "0.5",
    "null",
    "<&\"'>",
    "100%25",
]
PART = [{"x": 20.5, "y": 30}, {"x": 30, "y": 30}, {"x": 25, "y": 40.25}]
SIZE_WH = (200, 100)
SHAPES: dict[str, list[dict[str, Any]]] = {
    "OBJECT_DETECTION": [
        {"xmin": 1.5, "ymin": 2, "xmax": 33.123456, "ymax": 50},
        {"xmin": 0, "ymin": 0, "xmax": 200, "ymax": 100},
    ],
    "ORIENTED_OBJECT_DETECTION": [
        {"cx": 0.5, "cy": 0.25, "w": 0.2, "h": 0.1, "r": 0.3},
        {"cx": 0.5, "cy": 0.5, "w": 0.1, "h": 0.2, "r": -2.5},
        {"cx": 0.5, "cy": 0.5, "w": 0.1, "h": 0.2, "r": 0.0},
    ],
    "IMAGE_SEGMENTATION": [{"contour": [RING, HOLE]}, {"contour": [PART]}, {"contour": [RING, HOLE, PART]}],
    "IMAGE_CLASSIFICATION": [{}],
}  # fmt: skip
FORMS = [
    ("yolo", "OBJECT_DETECTION"),
    ("yolo-obb", "ORIENTED_OBJECT_DETECTION"),
    ("yolo-seg", "IMAGE_SEGMENTATION"),
    ("dota", "ORIENTED_OBJECT_DETECTION"),
    ("dota", "OBJECT_DETECTION"),
    ("imagefolder", "IMAGE_CLASSIFICATION"),
    *(("cvat", task) for task in SHAPES),
    *(("label-studio", task) for task in SHAPES),
    *(("coco", task) for task in SHAPES if task != "IMAGE_CLASSIFICATION"),
]


def picture(size_wh: tuple[int, int] = SIZE_WH, orientation: int = 1, colour: int = 0) -> bytes:
    """Return a JPEG; `size_wh` is its size as a person sees it."""
    stored = size_wh if orientation < 5 else size_wh[::-1]
    image, exif = Image.new("RGB", stored, (colour, 90, 30)), Image.Exif()
    exif[274] = orientation
    data = io.BytesIO()
    image.save(data, "JPEG", exif=exif)
    return data.getvalue()


def truths(task: str) -> list[list[dict[str, Any]]]:
    """Return the ground truth of some images of a task: each label with each shape, and nothing at all."""
    shapes = SHAPES[task]
    if task == "IMAGE_CLASSIFICATION":
        return [[{"label": label}] for label in LABELS]
    images = [[{"label": label, **shape} for shape in shapes] for label in LABELS]
    return [*images, [{"label": label, **shapes[0]} for label in LABELS], []]


def fill(store: StoreHarness, record, task: str, **fields: Any) -> dict[str, list[dict[str, Any]]]:
    """Store an inference with ground truth for each of `truths`; return the truth by id."""
    by_id = {}
    entries = []
    for number, annotations in enumerate(truths(task)):
        seq = MS + number << 22
        data = picture(colour=15 * number)
        image = InputReference(
            "same.jpg", store.blobs.put(data), *SIZE_WH, "image/jpeg", kept=True, bytes=len(data)
        )
        predictions = [{"label": "wrong", "score": 0.25, **SHAPES[task][0]}]
        values = {"metadata": {"camera": f"camera-{number % 3}"}, **fields}
        entries.append(record(seq, task=task, predictions=predictions, input=image, **values))
        statement = TruthStatement("id", str(seq), annotations, task=task)
        entries.append(JournaledChange(MS + 500 + number << 22, statement))
        by_id[str(seq)] = annotations
    store.add(*entries)
    return by_id


def forget_truth(store: StoreHarness) -> None:
    for table in ("ground_truth", "truth"):
        store.execute(f"DELETE FROM {table}")


def close_to(found: Any, expected: Any) -> bool:
    """Compare annotations: numbers within a millionth of a pixel or of a radian."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            close_to(found[key], expected[key]) for key in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close_to, found, expected))
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
    return bool(found == expected)


@pytest.mark.parametrize("written", FORMS, ids="-".join)
@pytest.mark.parametrize("split", [{}, {"train": 0.7, "val": 0.3}])
def test_ground_truth_comes_back_from_each_form(
    file_store, tmp_path, record, written: tuple[str, str], split: dict[str, float]
) -> None:
    form, task = written
    by_id = fill(file_store, record, task)
    file = file_store.export(tmp_path / "set.zip", format=form, split=split)
    forget_truth(file_store)
    if form == "coco":  # without the whole records, as another tool would write it
        file = without_records(file)
    imported = file_store.import_file(file, "ground-truth")
    assert (imported.matched, imported.unmatched) == (len(by_id), 0)
    for seq, annotations in by_id.items():
        assert close_to(file_store.ground_truth(int(seq)), annotations), (seq, annotations)


COUNTS = [  # whose annotations, those of 4 images with ground truth and 3 without, how many are left out of YOLO
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
    assert sum(exported.left_out.values()) == (left_out if form == "yolo" else 0)
    truths_, predictions = (annotated.get(key, 0) for key in ("ground_truth", "predictions"))
    assert exported.lines()[0] == (
        f"annotated by ground truth: {truths_}, by predictions: {predictions}"
    )


def test_a_table_counts_no_annotations(file_store, tmp_path, record) -> None:
    fill(file_store, record, "OBJECT_DETECTION")
    parameters = ExportParameters(format="jsonl")
    exported = export(file_store.inferences, file_store.blobs, parameters, tmp_path / "a.jsonl")
    assert (exported.annotated, exported.lines()) == ({}, [])


def without_records(file: Path) -> Path:
    """Write a COCO zip again, without what only we write into it, but for oriented boxes."""
    target = file.with_name("foreign.zip")
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(target, "w") as copy:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith(".json") and "annotations" in name:
                document = json.loads(data)
                for image in document["images"]:
                    del image["inference"]
                data = json.dumps(document).encode()
            copy.writestr(name, data)
    return target


@pytest.mark.parametrize("written", [form for form in FORMS if form[0] != "coco"], ids="-".join)
@pytest.mark.parametrize("what", ["only labels", "renamed", "folder"])
def test_ground_truth_is_matched_without_what_an_export_says(
    file_store, tmp_path, record, written: tuple[str, str], what: str
) -> None:
    """Images are matched by the id in their names, or by their bytes if they are renamed."""
    form, task = written
    by_id = fill(file_store, record, task)
    file = file_store.export(tmp_path / "set.zip", format=form)
    forget_truth(file_store)
    folder = tmp_path / "set"
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            data, path = archive.read(name), name
            if what == "renamed":
                for number, seq in enumerate(by_id):
                    path = path.replace(seq, f"scene_{number}")
                    if not name.endswith(".jpg"):
                        data = data.replace(seq.encode(), f"scene_{number}".encode())
            is_left_out = (what == "renamed" and name == "quadriga-images.jsonl") or (
                what == "only labels" and form != "imagefolder" and name.endswith(".jpg")
            )
            if not is_left_out:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
    if what == "renamed" and form == "label-studio":
        text = (folder / "tasks.json").read_text()
        tasks = json.loads(text)
        for item in tasks:
            item["data"] = {"image": item["data"]["image"], "task": task}
        (folder / "tasks.json").write_text(json.dumps(tasks))
    importer_task = task if what == "renamed" else None
    imported = file_store.import_file(folder, "ground-truth", task=importer_task)
    assert (imported.matched, imported.unmatched) == (len(by_id), 0)
    for seq, annotations in by_id.items():
        assert close_to(file_store.ground_truth(int(seq)), annotations), (seq, annotations)


@pytest.mark.parametrize("form", ["yolo", "dota", "cvat"])
def test_predictions_are_truth_only_if_somebody_says_so(
    file_store, tmp_path, record, form: str
) -> None:
    by_id = fill(file_store, record, "OBJECT_DETECTION")
    file = file_store.export(tmp_path / "set.zip", format=form, annotations="predictions")
    forget_truth(file_store)
    imported = file_store.import_file(file, "ground-truth")
    assert (imported.ground_truths, imported.passed_over) == (0, len(by_id))
    imported = file_store.import_file(file, "ground-truth", accept_predictions=True)
    assert imported.matched == len(by_id)
    assert {item["label"] for item in file_store.ground_truth(MS << 22)} == {"wrong"}


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


@pytest.mark.parametrize(
    ("split", "sizes"),
    [
        ({}, []),
        ({"train": 0.7, "val": 0.3}, [("train", "9"), ("val", "4")]),
        ({"train": 0.999999999, "val": 1e-9}, [("train", "13")]),
    ],
)
def test_splits_of_cvat_are_tasks_of_a_project(
    file_store, tmp_path, record, split: dict[str, float], sizes: list[tuple[str, str]]
) -> None:
    """CVAT and Datumaro read subsets from projects alone."""
    fill(file_store, record, "OBJECT_DETECTION")
    file = file_store.export(tmp_path / "set.zip", format="cvat", split=split)
    with zipfile.ZipFile(file) as archive:
        root = ET.fromstring(archive.read("annotations.xml"))
    owner = root.find("meta/project" if split else "meta/task")
    assert owner is not None
    assert [label.findtext("name") for label in owner.iterfind("labels/label")] == LABELS
    tasks = owner.findall("tasks/task")
    assert [(task.findtext("subset"), task.findtext("size")) for task in tasks] == sizes
    subsets = [image.get("subset") for image in root.iterfind("image")]
    if split:
        assert owner.findtext("subsets", "").split("\n") == [name for name, _ in sizes]
        assert [(name, str(subsets.count(name))) for name, _ in sizes] == sizes
    else:
        assert owner.findtext("size") == str(len(subsets))
        assert {*subsets} == {None}


@pytest.mark.parametrize("form", ["yolo", "cvat", "dota", "label-studio"])
def test_boxes_of_a_turned_image_are_those_that_a_person_sees(
    file_store, tmp_path, record, form: str
) -> None:
    """The image lies on its side in the file, and only EXIF says so; its size comes from the image alone."""
    data = picture((100, 200), orientation=6)
    image = InputReference("a", file_store.blobs.put(data), 100, 200, "image/jpeg", kept=True)
    box = {"label": "ship", "xmin": 10, "ymin": 150, "xmax": 90, "ymax": 200}
    truth = TruthStatement("id", str(MS << 22), [box], task="OBJECT_DETECTION")
    file_store.add(record(MS << 22, input=image), JournaledChange(MS + 1 << 22, truth))
    file = file_store.export(tmp_path / "set.zip", format=form)
    forget_truth(file_store)
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "set")
    (tmp_path / "set" / "quadriga-images.jsonl").unlink()
    assert file_store.import_file(tmp_path / "set", "ground-truth", task="OBJECT_DETECTION").matched == 1  # fmt: skip
    assert file_store.ground_truth(MS << 22) == [box]
    upright = file_store.export(tmp_path / "upright.zip", format=form, upright=True)
    with zipfile.ZipFile(upright) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".jpg"))
        with Image.open(io.BytesIO(archive.read(name))) as turned:
            assert turned.size == (100, 200)
            assert turned.getexif().get(274, 1) == 1


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


def test_what_a_form_cannot_hold_is_left_out_and_counted(file_store, tmp_path, record) -> None:
    data = picture()
    image = InputReference("a", file_store.blobs.put(data), *SIZE_WH, "image/jpeg", kept=True)
    answers = [{"prompt": "what?", "answer": "ships"}]
    file_store.add(
        record(MS << 22, task="IMAGE_TEXT_TO_TEXT", predictions=answers, input=image),
        record(MS + 1 << 22, predictions=[], input=image),
        record(MS + 2 << 22, predictions=[], input=InputReference("gone", width=5, height=5)),
        record(MS + 3 << 22, predictions=[{"label": "a"}, {"label": "b"}], input=image),
    )
    left_out = {}
    for form in ("yolo", "imagefolder", "label-studio"):
        parameters = ExportParameters(format=form)
        result = export(file_store.inferences, file_store.blobs, parameters, tmp_path / "set.zip")
        left_out[form] = result.left_out
        assert result.inferences == 4
        assert result.written == 4 - sum(result.left_out.values())
    label, image_gone = "none of its annotations has a label", "its image is not stored"
    shape = "none of its annotations has a shape of the format"
    assert left_out["yolo"] == {label: 1, image_gone: 1, shape: 1}
    several = "it has several labels"
    assert left_out["imagefolder"] == {label: 1, "it has no label": 1, image_gone: 1, several: 1}
    assert left_out["label-studio"] == {label: 1, image_gone: 1}


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
