"""What is taken out can be read by others, and brought in again."""

import json
import tempfile
import zipfile
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadriga.engine.config.extras import dataset_formats
from quadriga.store.exchange.export import ExportParameters, Format, decode_parameters, export
from quadriga.store.query.inferences import QueryRequest
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import JournaledChange, TruthStatement
from quadriga.tasks.predictions import BOX_KEYS, ORIENTED_BOX_KEYS
from tests.unit.store.exchange_records import (
    HOLE,
    MS,
    PREDICTIONS,
    RING,
    read_zip_lines,
    records_of_every_task,
)
from tests.unit.store_harness import StoreHarness

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
NUMBER = st.integers(-(1 << 53), 1 << 53) | st.floats(allow_nan=False, allow_infinity=False)
SHAPES = {
    "IMAGE_CLASSIFICATION": st.lists(st.fixed_dictionaries({"label": TEXT, "score": NUMBER})),
    "OBJECT_DETECTION": st.lists(
        st.fixed_dictionaries({"label": TEXT}, optional=dict.fromkeys(BOX_KEYS, NUMBER))
    ),
    "ORIENTED_OBJECT_DETECTION": st.lists(
        st.fixed_dictionaries({"label": TEXT, **dict.fromkeys(ORIENTED_BOX_KEYS, NUMBER)})
    ),
    "IMAGE_SEGMENTATION": st.lists(
        st.fixed_dictionaries(
            {
                "label": TEXT,
                "contour": st.lists(st.lists(st.fixed_dictionaries({"x": NUMBER, "y": NUMBER}))),
            }
        )
    ),
    "IMAGE_TEXT_TO_TEXT": st.lists(st.fixed_dictionaries({"prompt": TEXT, "answer": TEXT})),
    "TENSOR": st.recursive(NUMBER | TEXT | st.none(), st.lists),
}
TASKS = st.sampled_from(sorted(SHAPES)).flatmap(lambda task: st.tuples(st.just(task), SHAPES[task]))
NAMES = st.text("abc\u00e9_", min_size=1, max_size=5)
METADATA = st.dictionaries(NAMES, TEXT | NUMBER | st.booleans() | st.lists(NUMBER), max_size=4)


@settings(max_examples=15)
@given(given_records=st.lists(st.tuples(TASKS, METADATA), min_size=1, max_size=6))
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_any_inferences_come_back_as_they_were(record, given_records, form: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stores = []
        for name in ("one", "two"):
            (Path(folder) / name).mkdir()
            stores.append(StoreHarness(Path(folder) / name, f"sqlite:///{folder}/{name}/store.db"))
        first_store, two = stores
        first_store.add(*(
            record(MS + number << 22, task=task, predictions=predictions, metadata=metadata)
            for number, ((task, predictions), metadata) in enumerate(given_records)
        ))  # fmt: skip
        two.import_file(first_store.export(Path(folder) / f"first.{form}", format=form))
        lines = [store_.export(Path(folder) / "all.jsonl").read_bytes() for store_ in stores]
        assert lines[0] == lines[1]
        assert lines[0].count(b"\n") == len(given_records)
        for dataset in ("chariot", "coco"):
            first_store.export(Path(folder) / "set.zip", format=dataset)
        for store_ in stores:
            store_.close()


@pytest.mark.parametrize("name", ["a.jsonl", "images.zip", "a.parquet", "images.parquet"])
def test_what_is_imported_is_exported_alike(
    store, other_store, tmp_path, record, name: str
) -> None:
    form, images = "parquet" if "parquet" in name else "jsonl", "images" in name
    records = records_of_every_task(record, store.blobs)
    truth = TruthStatement("id", str(records[1].seq), [{"label": "a"}], "me")
    store.add(*records, JournaledChange(MS + 200 << 22, truth))
    file = store.export(tmp_path / name, format=form, images=images)
    for _ in range(2):  # twice is once
        imported = other_store.import_file(file)
        assert (imported.inferences, imported.images) == (7, 6 if images else 0)
        first = store.export(tmp_path / "first.jsonl").read_bytes()
        assert other_store.export(tmp_path / "second.jsonl").read_bytes() == first
    assert first.count(b"\n") == 7
    if images:
        assert other_store.inferences.input_bytes(str(MS << 22))[0] == b"image 0"


def test_a_line_is_what_the_api_answers(store, tmp_path, record) -> None:
    store.add(*records_of_every_task(record, store.blobs))
    lines = store.export(tmp_path / "all.jsonl").read_bytes().splitlines()
    page = store.inferences.query(QueryRequest(order="ts"))
    assert lines == [msgspec.json.encode(answered) for answered in page.inferences]


def test_only_what_matches_is_exported_over_many_pages(
    store, tmp_path, record, monkeypatch
) -> None:
    monkeypatch.setattr("quadriga.store.exchange.export.PAGE_SIZE", 7)
    store.add(*(record(MS + n << 22, metadata={"odd": n % 2 == 1}) for n in range(100)))
    progress = []
    where = ExportParameters({"meta.odd": True})
    count = export(
        store.inferences,
        store.blobs,
        where,
        tmp_path / "odd.jsonl",
        lambda *so: progress.append(so),
    )
    assert count.inferences == 50
    rows = [json.loads(line) for line in (tmp_path / "odd.jsonl").read_text().splitlines()]
    assert [int(row["id"]) for row in rows] == [MS + n << 22 for n in range(1, 100, 2)]
    assert progress[0] == (0, None)
    assert progress[1:] == [(min(n, 50), 50) for n in range(7, 57, 7)]


@pytest.mark.parametrize("form", get_args(Format))
def test_nothing_is_left_of_an_export_that_is_ended(store, tmp_path, record, form: str) -> None:
    store.add(record(MS << 22))
    target = tmp_path / "target"
    target.mkdir()

    def tell(done: int, _: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(
            store.inferences,
            store.blobs,
            ExportParameters(format=form),
            target / "x",
            tell,
            formats=dataset_formats(),
        )
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("form", get_args(Format))
def test_an_export_of_nothing_is_a_whole_file(
    store, other_store, tmp_path, record, form: str
) -> None:
    store.add(record(MS << 22))
    name = {"jsonl": "none.jsonl", "parquet": "none.parquet"}.get(form, "none.zip")
    file = store.export(tmp_path / name, format=form, where={"label": "nobody"})
    assert other_store.import_file(file).inferences == 0


def test_parquet_has_labels_scores_and_boxes_as_lists(store, tmp_path, record) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    store.add(*records_of_every_task(record, store.blobs))
    table = pq.read_table(store.export(tmp_path / "all.parquet", format="parquet"))
    rows = {row["task"]: row for row in table.to_pylist()[:6]}
    assert rows["IMAGE_CLASSIFICATION"]["labels"] == ["a", "b"]
    assert rows["IMAGE_CLASSIFICATION"]["boxes"] == [None, None]
    detection = rows["OBJECT_DETECTION"]
    assert (detection["id"], detection["scores"]) == (MS + 1 << 22, [0.5])
    assert detection["boxes"] == [{"xmin": 1.5, "ymin": 2.0, "xmax": 3.5, "ymax": 5.0}]
    assert detection["created_at"].timestamp() * 1000 == 1_769_860_800_124
    oriented = rows["ORIENTED_OBJECT_DETECTION"]["boxes"][0]
    assert list(oriented.values()) == pytest.approx([40.0, 12.5, 60.0, 37.5])
    assert rows["IMAGE_TEXT_TO_TEXT"]["labels"] == [None]
    assert rows["TENSOR"]["labels"] == []
    assert json.loads(rows["TENSOR"]["predictions"]) == PREDICTIONS["TENSOR"]
    assert json.loads(detection["metadata"])["at"] == {"floor": 1}


def test_a_dataset_for_chariot_is_as_its_page_says(store, tmp_path, record) -> None:
    store.add(*records_of_every_task(record, store.blobs))
    file = store.export(tmp_path / "set.zip", format="chariot")
    lines = read_zip_lines(file, "annotations.jsonl")
    ids = [MS + number << 22 for number in range(6)]  # the last one has no image
    assert [line["path"] for line in lines] == [f"images/{seq}.png" for seq in ids]
    assert [list(line) for line in lines] == [["path", "annotations"]] * 6
    annotations = [line["annotations"] for line in lines]
    assert annotations[0] == [{"class_label": "b", "attributes": {"score": 0.8}}]
    assert annotations[1][0]["bbox"] == {"xmin": 1.5, "ymin": 2, "xmax": 3.5, "ymax": 5}
    assert annotations[2][0]["oriented_bbox"] == {"cx": 0.5, "cy": 0.5, "w": 0.2, "h": 0.5, "r": 0}
    assert annotations[3][0]["contour"] == [RING, HOLE]
    assert annotations[4] == [{"context": "what?", "generated_text": "dogs and \u00e9\0"}]
    assert annotations[5] == []
    described = read_zip_lines(file, "metadata.jsonl")[1]["metadata"]
    assert described["at.floor"] == 1
    assert described["GPSLatitude"] == 1.5
    assert described["inference_id"] == str(ids[1])
    assert all(isinstance(value, str | int | float | bool) for value in described.values())
    with zipfile.ZipFile(file) as archive:
        assert archive.read(f"images/{ids[0]}.png") == b"image 0"


def test_coco_is_as_its_page_says(store, tmp_path, record) -> None:
    store.add(*records_of_every_task(record, store.blobs))
    file = store.export(tmp_path / "coco.zip", format="coco")
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        document = json.loads(archive.read("annotations.json"))
        results = json.loads(archive.read("results.json"))
        assert archive.read(f"images/{document['images'][0]['file_name']}") == b"image 0"
    assert [image["id"] for image in document["images"]] == [1, 2, 3, 4, 5, 6]
    assert {category_["name"] for category_ in document["categories"]} == {"a", "b", "c"}
    names = {category_["id"]: category_["name"] for category_ in document["categories"]}
    best, detection, oriented, segment = document["annotations"]
    assert (names[best["category_id"]], "bbox" in best) == ("b", False)
    assert (detection["bbox"], detection["area"]) == ([1.5, 2, 2, 3], 6)
    assert oriented["bbox"] == pytest.approx([40, 12.5, 20, 25])
    assert oriented["segmentation"][0] == pytest.approx([40, 12.5, 60, 12.5, 60, 37.5, 40, 37.5])
    assert oriented["oriented_bbox"]["w"] == 0.2
    assert segment["bbox"] == [1, 1, 8, 8]
    assert segment["area"] == 60  # less the hole
    assert len(segment["segmentation"]) == 1
    assert [names[category_["category_id"]] for category_ in results] == ["a", "b", "a", "b", "c"]
    assert [category_["score"] for category_ in results] == [0.2, 0.8, 0.5, 0.25, 1.0]


@pytest.mark.parametrize("form", ["chariot", "coco"])
def test_inferences_come_back_from_a_dataset(
    store, other_store, tmp_path, record, form: str
) -> None:
    store.add(*records_of_every_task(record, store.blobs))
    file = store.export(tmp_path / "set.zip", format=form, annotations="predictions")
    assert other_store.import_file(file).images == 6
    for seq in (MS + 1 << 22, MS + 2 << 22, MS + 3 << 22, MS + 4 << 22):
        was, now = (store_.inferences.get(str(seq)) for store_ in (store, other_store))
        assert json.loads(bytes(now.predictions)) == json.loads(bytes(was.predictions))
        assert (now.model, now.input, now.created_at) == (was.model, was.input, was.created_at)
        assert json.loads(bytes(now.metadata))["camera"] == "north"
        assert other_store.inferences.input_bytes(str(seq)) == store.inferences.input_bytes(
            str(seq)
        )


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"format": "xml"}', b'{"wher": 1}', b'{"images": 1}', b"[" * 9999, b"\xff"],
)
def test_parameters_that_mean_nothing_are_refused(body: bytes) -> None:
    with pytest.raises(
        QueryError,
        match=r"expected the body to be a JSON object with where, format .chariot, coco, cvat, dota, imagefolder, jsonl, label-studio, parquet, yolo, yolo-obb, yolo-seg.,",
    ):
        decode_parameters(body)
