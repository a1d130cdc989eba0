"""What others wrote is brought in, or refused by name."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from quadriga.engine.config.extras import dataset_formats
from quadriga.store.blobs.interface import blob_key
from quadriga.store.exchange.export import decode_parameters
from quadriga.store.exchange.import_files import read
from quadriga.store.exchange.imports import Importer
from quadriga.store.journal.journal import clickhouse_position_path, read_frames, segment_paths
from quadriga.store.records.errors import NotReadyError, QueryError, StoreError
from quadriga.store.records.records import InputReference, JournaledChange, TruthStatement
from quadriga.store.writing.writer import Writer
from tests.unit.store.exchange_records import (
    MS,
    read_zip_lines,
    records_of_every_task,
)

TRUTH = [{"label": "a", "xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "chariot", "coco"])
def test_ground_truth_comes_back_alone(store, other_store, tmp_path, record, form: str) -> None:
    records = records_of_every_task(record, store.blobs)
    truth = TruthStatement("id", str(records[1].seq), TRUTH)
    store.add(*records, JournaledChange(MS + 200 << 22, truth))
    name = {"jsonl": "set.jsonl", "parquet": "set.parquet"}.get(form, "set.zip")
    file = store.export(tmp_path / name, format=form)
    other_store.add(*records_of_every_task(record, other_store.blobs))
    imported = other_store.import_file(file, "ground-truth")
    assert (imported.ground_truths, imported.inferences) == (1, 0)
    annotations = other_store.inferences.get(str(records[1].seq)).ground_truth
    assert json.loads(bytes(annotations)) == TRUTH
    without = [record_ for record_ in records if record_ is not records[1]]
    assert all(
        other_store.inferences.get(str(record_.seq)).ground_truth is None for record_ in without
    )


def test_ground_truth_by_an_id_that_leads_to_an_inference_is_its_own(
    store, tmp_path, record
) -> None:
    first, other, second, unknown = (MS + number << 22 for number in range(4))
    store.add(record(first), record(other))
    store.execute(f"INSERT INTO repeated_id VALUES ({second}, {first})")
    file = tmp_path / "truth.jsonl"
    box = {"class_label": "a", "bbox": {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}}
    lines = [{"path": f"{id_}.jpg", "annotations": [box]} for id_ in (second, other, unknown)]
    file.write_text("\n".join(map(json.dumps, lines)))
    imported = store.import_file(file, "ground-truth")
    assert (imported.matched, imported.unmatched) == (2, 1)
    assert [store.ground_truth(seq) for seq in (first, second, other)] == [TRUTH] * 3


def test_predictions_do_not_come_back_as_ground_truth(store, other_store, tmp_path, record) -> None:
    store.add(*records_of_every_task(record, store.blobs))
    for form in ("chariot", "coco"):
        file = store.export(tmp_path / "set.zip", format=form, annotations="predictions")
        imported = other_store.import_file(file, "ground-truth")
        assert (imported.ground_truths, imported.passed_over) == (0, 6)


def test_datasets_without_truth_hold_what_has_truth_alone(store, tmp_path, record) -> None:
    store.add(*records_of_every_task(record, store.blobs))
    file = store.export(tmp_path / "set.zip", format="chariot", annotations="ground_truth")
    assert read_zip_lines(file, "annotations.jsonl") == []


COCO = {
    "images": [{"id": 5, "file_name": "a.jpg", "width": 10, "height": 10}],
    "categories": [{"id": 3, "name": "ship"}],
    "annotations": [
        {"id": 1, "image_id": 5, "category_id": 3, "bbox": [1, 2, 3, 4], "iscrowd": 0},
        {"id": 2, "image_id": 5, "category_id": 3, "bbox": [1, 2, 3, 4],
         "segmentation": [[1, 2, 4, 2, 4, 6]]},
        {"id": 3, "image_id": 5, "category_id": 3, "bbox": [1, 2, 3, 4], "iscrowd": 1,
         "segmentation": {"counts": [1, 2], "size": [10, 10]}},
    ],
}  # fmt: skip


def foreign(folder: Path, form: str) -> Path:
    """Write a dataset of others over one image."""
    if form == "coco.json":
        (folder / "set.json").write_text(json.dumps(COCO))
        return folder / "set.json"
    if form == "lines":
        line = {"datum_id": "d1", "annotations": [{"class_label": "ship"}]}
        (folder / "set.jsonl").write_text(json.dumps(line))
        return folder / "set.jsonl"
    with zipfile.ZipFile(folder / "set.zip", "w") as archive:
        if form == "coco.zip":
            archive.writestr("annotations.json", json.dumps(COCO))
            archive.writestr("images/a.jpg", b"image 1")
        else:
            line = {"path": "a.jpg", "annotations": [{"class_label": "ship"}]}
            archive.writestr("annotations.jsonl", json.dumps(line))
            archive.writestr("a.jpg", b"image 1")
    return folder / "set.zip"


@pytest.mark.parametrize(
    ("form", "join"),
    [
        ("coco.zip", None),
        ("coco.zip", "input.hash"),
        ("coco.json", "meta.file_name"),
        ("chariot", None),
        ("chariot", "meta.path"),
        ("lines", "meta.datum_id"),
    ],
)
def test_truth_of_others_is_joined_by_what_is_asked(store, tmp_path, record, form, join) -> None:
    metadata = {"path": "a.jpg", "file_name": "a.jpg", "datum_id": "d1"}
    image = InputReference("image", blob_key(b"image 1"))
    task = "OBJECT_DETECTION" if form.startswith("coco") else "IMAGE_CLASSIFICATION"
    store.add(record(MS << 22, task=task, input=image, metadata=metadata))
    assert store.import_file(foreign(tmp_path, form), "ground-truth", join).ground_truths == 1
    annotations = json.loads(bytes(store.inferences.get(str(MS << 22)).ground_truth))
    assert [annotation["label"] for annotation in annotations] == ["ship"] * len(annotations)
    if form.startswith("coco"):
        box, contour, crowd = annotations
        assert (box["xmin"], box["ymax"]) == (1, 6)
        assert contour["contour"][0][2] == {"x": 4, "y": 6}
        assert (crowd["crowd"], crowd["xmax"]) == (True, 4)


ID = str(MS << 22)
GOOD = {"id": ID, "model": {"name": "m"}, "task": "TENSOR"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: expected a JSON object, got"),
        ("[]", "line 2: expected a JSON object, got"),
        ("\x00", "line 2: expected a JSON object, got"),
        (
            {},
            "line 2: expected an inference, or annotations of a path, got: Object missing required",
        ),
        (GOOD | {"id": "abc"}, "line 2: expected an inference"),
        (GOOD | {"id": "9" * 19}, "line 2: expected an inference"),
        (GOOD | {"id": "8" * 19}, "line 2: inference id .* is dated in the future"),
        (GOOD | {"metadata": []}, "line 2: expected metadata to be an object, got list"),
        (GOOD | {"metadata": {"": 1}}, "line 2: expected metadata key"),
        (GOOD | {"image_no": 1 << 31}, "line 2: expected an inference"),
        (GOOD | {"input": {"hash": "md5:1"}}, "line 2: expected an inference"),
        (GOOD | {"ground_truth": [{"label": 1}]}, r"line 2: annotations\[0\].label: expected"),
        ({"path": "a", "annotations": []}, "line 2: expected an inference as an export writes it"),
    ],
)
def test_a_line_that_means_nothing_is_named(store, tmp_path, line: Any, message: str) -> None:
    file = tmp_path / "bad.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    file.write_text(json.dumps(GOOD) + "\n" + text + "\n")
    with pytest.raises(StoreError, match=message):
        store.import_file(file)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.txt",
            b"",
            "expected a folder, or a file .jsonl, .parquet, .json, .xml or .zip, got .txt",
        ),
        ("a.zip", b"no", "cannot open a.zip, which is neither a folder nor a zip"),
        ("a.parquet", b"no", "expected a.parquet to be Parquet"),
        ("a.json", b"{}", "expected COCO's JSON with images"),
        ("a.json", b"[" * 100_000, "expected a JSON array of tasks"),
    ],
)
def test_a_file_that_means_nothing_is_named(
    tmp_path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(QueryError, match=message):
        list(read(tmp_path / name, formats=dataset_formats()))


def test_an_image_that_is_another_is_refused(store, tmp_path) -> None:
    inference = GOOD | {"input": {"hash": blob_key(b"one"), "kept": True}}
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("inferences.jsonl", json.dumps(inference))
        archive.writestr(f"images/{ID}.png", b"another")
    with pytest.raises(QueryError, match="line 1: expected the image blake3:"):
        store.import_file(tmp_path / "a.zip")


def test_an_import_beside_a_writer_leaves_the_moving_to_it(store, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("quadriga.store.exchange.imports.COMMIT_TIMEOUT_S", 0.0)
    (tmp_path / "one.jsonl").write_text(json.dumps(GOOD))
    writer = Writer(store.journal_directory, store.url)
    try:
        assert store.import_file(tmp_path / "one.jsonl").inferences == 1
        assert writer.drain() == 1
    finally:
        writer.close()
    assert store.inferences.get(ID).model.name == "m"


def test_a_missing_extra_is_named(tmp_path, monkeypatch) -> None:
    for module in ("quadriga.store.exchange.export", "quadriga.store.exchange.import_files"):
        monkeypatch.setattr(f"{module}.find_spec", lambda _: None)
    with pytest.raises(QueryError, match="pip install 'quadriga"):
        decode_parameters(b'{"format": "parquet"}')
    with pytest.raises(QueryError, match="pip install 'quadriga"):
        list(read(tmp_path / "a.parquet"))


def test_a_database_that_is_away_takes_the_import_later(store, tmp_path) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps(GOOD))
    away = "postgresql://nobody@127.0.0.1:1/none"
    with pytest.raises(NotReadyError, match="the database does not answer"):
        Importer(store.journal_directory, away, store.blobs, "inferences", None).run(
            read(tmp_path / "one.jsonl")
        )
    store.add()
    assert store.inferences.get(ID).id == ID


def test_an_import_leaves_the_journal_to_a_server_that_sends_it_on(store, tmp_path) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps(GOOD))
    clickhouse_position_path(store.journal_directory).write_text("{}")
    store.import_file(tmp_path / "one.jsonl")
    assert [
        seq for path in segment_paths(store.journal_directory) for seq, *_ in read_frames(path)
    ] == [int(ID)]
    clickhouse_position_path(store.journal_directory).unlink()
    store.add()
    assert segment_paths(store.journal_directory) == []
    assert store.inferences.get(ID).id == ID


def test_two_imports_at_once_are_refused(store, tmp_path) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps(GOOD) + "\n")

    def items():
        with pytest.raises(StoreError, match="expected one import at a time"):
            store.import_file(tmp_path / "one.jsonl")
        yield from read(tmp_path / "one.jsonl")

    Importer(store.journal_directory, store.url, store.blobs, "inferences", None).run(items())
    assert store.inferences.get(ID).id == ID


def write_lines(folder: Path, *truths: list[dict[str, Any]]) -> Path:
    """Write a line for each truth, of the images `0.jpg`, `1.jpg` and so on."""
    lines = [{"path": f"{at}.jpg", "annotations": truth} for at, truth in enumerate(truths)]
    path = folder / "set.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_an_empty_list_has_the_task_of_all_others_in_the_file(store, tmp_path, record) -> None:
    file = write_lines(tmp_path, [], TRUTH, [])
    assert store.import_file(file, "ground-truth", "meta.path").ground_truths == 3
    rows = store.rows("SELECT value, task FROM truth ORDER BY value")
    assert rows == [(f"{at}.jpg", "OBJECT_DETECTION") for at in range(3)]


@pytest.mark.parametrize("truths", [([],), (TRUTH, [], [{"label": "a"}])])
def test_an_empty_list_of_no_certain_task_is_named(store, tmp_path, truths) -> None:
    file = write_lines(tmp_path, *truths)
    with pytest.raises(QueryError, match=r"line \d: the task of an empty list .*: --task names it"):
        store.import_file(file, "ground-truth", "meta.path")


def test_a_task_of_imported_ground_truth_may_be_named(store, tmp_path) -> None:
    importer = Importer(
        store.journal_directory, store.url, store.blobs, "ground-truth", "meta.path", task="TENSOR"
    )
    importer.run(read(write_lines(tmp_path, TRUTH, [], [{"label": "a"}])))
    assert store.rows("SELECT DISTINCT task FROM truth") == [("TENSOR",)]
    importer = Importer(
        store.journal_directory, store.url, store.blobs, "ground-truth", "meta.path",
        task="IMAGE_SEGMENTATION",
    )  # fmt: skip
    with pytest.raises(QueryError, match=r"line 1: annotations\[0\]: expected contours as ground"):
        importer.run(read(write_lines(tmp_path, TRUTH)))


@pytest.mark.parametrize("form", ["jsonl", "parquet", "coco"])
@pytest.mark.parametrize("kind", ["inferences", "ground-truth"])
def test_a_review_comes_back(store, other_store, tmp_path, record, *, form: str, kind: Any) -> None:
    records = records_of_every_task(record, store.blobs)
    target = str(records[1].seq)
    truth = TruthStatement("id", target, TRUTH, review="approved")
    store.add(*records, JournaledChange(MS + 200 << 22, truth))
    name = {"jsonl": "set.jsonl", "parquet": "set.parquet"}.get(form, "set.zip")
    file = store.export(tmp_path / name, format=form)
    if kind == "ground-truth":
        other_store.add(*records_of_every_task(record, other_store.blobs))
    other_store.import_file(file, kind)
    assert other_store.inferences.get(target).ground_truth_review == "approved"


@pytest.mark.parametrize("form", ["chariot", "coco"])
def test_a_rejected_truth_is_not_in_a_dataset(store, tmp_path, record, form: str) -> None:
    records = records_of_every_task(record, store.blobs)
    for number, review in enumerate(("rejected", "needs_review"), 1):
        truth = TruthStatement("id", str(records[1].seq), TRUTH, review=review)
        store.add(*records, JournaledChange(MS + 200 + number << 22, truth))
        file = store.export(tmp_path / "set.zip", format=form, annotations="ground_truth")
        with zipfile.ZipFile(file) as archive:
            images = [name for name in archive.namelist() if name.startswith("images/")]
        assert len(images) == (review != "rejected")
