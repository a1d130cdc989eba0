"""Datasets in the formats of other tools: what is written into a store, and comes back."""

import io
import json
import math
import zipfile
from pathlib import Path
from typing import Any

from PIL import Image

from quadriga.engine.config.extras import dataset_formats
from quadriga.store.exchange.export import ExportParameters, export
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


def write_zip(file: Path, members: dict[str, str | bytes]) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file


def check_round_trip(
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


def check_matching(file_store, tmp_path, record, written: tuple[str, str], what: str) -> None:
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


def check_predictions(file_store, tmp_path, record, form: str) -> None:
    by_id = fill(file_store, record, "OBJECT_DETECTION")
    file = file_store.export(tmp_path / "set.zip", format=form, annotations="predictions")
    forget_truth(file_store)
    imported = file_store.import_file(file, "ground-truth")
    assert (imported.ground_truths, imported.passed_over) == (0, len(by_id))
    imported = file_store.import_file(file, "ground-truth", accept_predictions=True)
    assert imported.matched == len(by_id)
    assert {item["label"] for item in file_store.ground_truth(MS << 22)} == {"wrong"}


def check_turned(file_store, tmp_path, record, form: str) -> None:
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


def left_out(store: StoreHarness, record, tmp_path: Path, form: str) -> dict[str, int]:
    """Export inferences that not every form can hold; return how many were left out, by reason."""
    data = picture()
    image = InputReference("a", store.blobs.put(data), *SIZE_WH, "image/jpeg", kept=True)
    answers = [{"prompt": "what?", "answer": "ships"}]
    store.add(
        record(MS << 22, task="IMAGE_TEXT_TO_TEXT", predictions=answers, input=image),
        record(MS + 1 << 22, predictions=[], input=image),
        record(MS + 2 << 22, predictions=[], input=InputReference("gone", width=5, height=5)),
        record(MS + 3 << 22, predictions=[{"label": "a"}, {"label": "b"}], input=image),
    )
    result = export(
        store.inferences,
        store.blobs,
        ExportParameters(format=form),
        tmp_path / "set.zip",
        formats=dataset_formats(),
    )
    assert result.inferences == 4
    assert result.written == 4 - sum(result.left_out.values())
    return result.left_out


NO_LABEL, IMAGE_GONE = "none of its annotations has a label", "its image is not stored"
