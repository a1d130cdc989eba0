"""What is taken out can be read by others, and brought in again."""

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.blobs.files import BlobStore
from store.blobs.interface import key_of
from store.errors import NotReadyError, QueryError, StoreError
from store.exchange import shapes
from store.exchange.export import ExportParameters, decode_parameters, export
from store.exchange.import_files import read
from store.exchange.imports import Importer
from store.inferences import Inferences, QueryRequest
from store.journal import Journal, frames, segments, sent_file
from store.records import InferenceRecord, InputReference, JournaledChange, TruthStatement
from store.writer import Writer

MS = 1_769_860_800_123 - 1_735_689_600_000
RING = [{"x": 1, "y": 1}, {"x": 9, "y": 1}, {"x": 9, "y": 9}, {"x": 1, "y": 9}]
HOLE = [{"x": 3, "y": 3}, {"x": 5, "y": 3}, {"x": 5, "y": 5}, {"x": 3, "y": 5}]

PREDICTIONS: dict[str, Any] = {
    "IMAGE_CLASSIFICATION": [{"label": "a", "score": 0.2}, {"label": "b", "score": 0.8}],
    "OBJECT_DETECTION": [
        {"label": "a", "score": 0.5, "xmin": 1.5, "ymin": 2, "xmax": 3.5, "ymax": 5}
    ],
    "ORIENTED_OBJECT_DETECTION": [
        {"label": "b", "score": 0.25, "cx": 0.5, "cy": 0.5, "w": 0.2, "h": 0.5, "r": 0.0}
    ],
    "IMAGE_SEGMENTATION": [{"label": "c", "score": 1.0, "contour": [RING, HOLE]}],
    "IMAGE_TEXT_TO_TEXT": [{"prompt": "what?", "answer": "dogs and \u00e9\u0000"}],
    "TENSOR": [[1.0, 2e-9], [3, 4]],
}


class Store:
    """A store with a database of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.journal = folder / "journal"
        self.url = url
        self.blobs = BlobStore(folder / "blobs")
        self.inferences = Inferences(url, self.journal, self.blobs)

    def add(self, *records: InferenceRecord | JournaledChange) -> None:
        appending = Journal(self.journal, 0)
        appending.append(records)
        appending.close()
        writer = Writer(self.journal, self.url)
        writer.drain()
        writer.close()

    def export(self, target: Path, **parameters: Any) -> Path:
        asked = msgspec.convert(parameters, ExportParameters)
        export(self.inferences, self.blobs, asked, target)
        return target

    def bring_in(self, file: Path, what: str = "inferences", join: str | None = None) -> Any:
        return Importer(self.journal, self.url, self.blobs, what, join).run(read(file))


@pytest.fixture
def store(tmp_path: Path, database_url: str):
    made = Store(tmp_path, database_url)
    yield made
    made.inferences.close()


@pytest.fixture
def other(tmp_path: Path):
    (tmp_path / "other").mkdir()
    made = Store(tmp_path / "other", f"sqlite:///{tmp_path}/other/store.db")
    yield made
    made.inferences.close()


def tasks(record, blobs: BlobStore) -> list[InferenceRecord]:
    """An inference of every task, with and without images."""
    made = []
    for number, (task, predictions) in enumerate(PREDICTIONS.items()):
        data = b"image %d" % number
        made.append(
            record(
                MS + number << 22,
                task=task,
                predictions=predictions,
                input=InputReference(
                    "image", blobs.put(data), 100, 50, "image/png", kept=True, bytes=len(data)
                ),
                metadata={"camera": "north", "at": {"floor": number}, "latitude": 1.5, "list": [1]},
                standard={"protocol": "v2"},
                latency_ms=1.2345,
            )
        )
    made.append(record(MS + 99 << 22, status=500, predictions=[], input=InputReference("x")))
    return made


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
NUMBER = st.integers(-(1 << 53), 1 << 53) | st.floats(allow_nan=False, allow_infinity=False)
SHAPES = {
    "IMAGE_CLASSIFICATION": st.lists(st.fixed_dictionaries({"label": TEXT, "score": NUMBER})),
    "OBJECT_DETECTION": st.lists(
        st.fixed_dictionaries({"label": TEXT}, optional=dict.fromkeys(shapes.EDGES, NUMBER))
    ),
    "ORIENTED_OBJECT_DETECTION": st.lists(
        st.fixed_dictionaries({"label": TEXT, **dict.fromkeys(shapes.ORIENTED, NUMBER)})
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


@settings(max_examples=15, deadline=None)
@given(given_records=st.lists(st.tuples(TASKS, METADATA), min_size=1, max_size=6))
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_any_inferences_come_back_as_they_were(record, given_records, form: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stores = []
        for name in ("one", "two"):
            (Path(folder) / name).mkdir()
            stores.append(Store(Path(folder) / name, f"sqlite:///{folder}/{name}/store.db"))
        one, two = stores
        one.add(*(
            record(MS + number << 22, task=task, predictions=predictions, metadata=metadata)
            for number, ((task, predictions), metadata) in enumerate(given_records)
        ))  # fmt: skip
        two.bring_in(one.export(Path(folder) / f"first.{form}", format=form))
        lines = [each.export(Path(folder) / "all.jsonl").read_bytes() for each in stores]
        assert lines[0] == lines[1]
        assert lines[0].count(b"\n") == len(given_records)
        for dataset in ("chariot", "coco"):
            one.export(Path(folder) / "set.zip", format=dataset)
        for each in stores:
            each.inferences.close()


@pytest.mark.parametrize("name", ["a.jsonl", "images.zip", "a.parquet", "images.parquet"])
def test_what_is_imported_is_exported_alike(store, other, tmp_path, record, name: str) -> None:
    form, images = "parquet" if "parquet" in name else "jsonl", "images" in name
    records = tasks(record, store.blobs.files)
    truth = TruthStatement("id", str(records[1].seq), [{"label": "a"}], "me")
    store.add(*records, JournaledChange(MS + 200 << 22, truth))
    file = store.exchange.export(tmp_path / name, format=form, images=images)
    for _ in range(2):  # twice is once
        imported = other.bring_in(file)
        assert (imported.inferences, imported.images) == (7, 6 if images else 0)
        first = store.exchange.export(tmp_path / "first.jsonl").read_bytes()
        assert other.export(tmp_path / "second.jsonl").read_bytes() == first
    assert first.count(b"\n") == 7
    if images:
        assert other.inferences.input_bytes(str(MS << 22))[0] == b"image 0"


def test_a_line_is_what_the_api_answers(store, tmp_path, record) -> None:
    store.add(*tasks(record, store.blobs.files))
    lines = store.exchange.export(tmp_path / "all.jsonl").read_bytes().splitlines()
    page = store.inferences.query(QueryRequest(order="ts"))
    assert lines == [msgspec.json.encode(answered) for answered in page.inferences]


def test_only_what_matches_is_exported_over_many_pages(
    store, tmp_path, record, monkeypatch
) -> None:
    monkeypatch.setattr("store.exchange.export.PAGE", 7)
    store.add(*(record(MS + n << 22, metadata={"odd": n % 2 == 1}) for n in range(100)))
    told = []
    where = ExportParameters({"meta.odd": True})
    count = export(
        store.inferences,
        store.blobs.files,
        where,
        tmp_path / "odd.jsonl",
        lambda *so: told.append(so),
    )
    assert count == 50
    rows = [json.loads(line) for line in (tmp_path / "odd.jsonl").read_text().splitlines()]
    assert [int(row["id"]) for row in rows] == [MS + n << 22 for n in range(1, 100, 2)]
    assert told[0] == (0, None)
    assert told[1:] == [(min(n, 50), 50) for n in range(7, 57, 7)]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "chariot", "coco"])
def test_nothing_is_left_of_an_export_that_is_ended(store, tmp_path, record, form: str) -> None:
    store.add(record(MS << 22))
    target = tmp_path / "target"
    target.mkdir()

    def tell(done: int, _: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(
            store.inferences, store.blobs.files, ExportParameters(format=form), target / "x", tell
        )
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("form", ["jsonl", "parquet", "chariot", "coco"])
def test_an_export_of_nothing_is_a_whole_file(store, other, tmp_path, record, form: str) -> None:
    store.add(record(MS << 22))
    name = {"jsonl": "none.jsonl", "parquet": "none.parquet"}.get(form, "none.zip")
    file = store.exchange.export(tmp_path / name, format=form, where={"label": "nobody"})
    assert other.bring_in(file).inferences == 0


def test_parquet_has_labels_scores_and_boxes_as_lists(store, tmp_path, record) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    store.add(*tasks(record, store.blobs.files))
    table = pq.read_table(store.exchange.export(tmp_path / "all.parquet", format="parquet"))
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


def members(file: Path, name: str) -> list[Any]:
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        return [json.loads(line) for line in archive.read(name).splitlines()]


def test_a_dataset_for_chariot_is_as_its_page_says(store, tmp_path, record) -> None:
    store.add(*tasks(record, store.blobs.files))
    file = store.exchange.export(tmp_path / "set.zip", format="chariot")
    lines = members(file, "annotations.jsonl")
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
    described = members(file, "metadata.jsonl")[1]["metadata"]
    assert described["at.floor"] == 1
    assert described["GPSLatitude"] == 1.5
    assert described["inference_id"] == str(ids[1])
    assert all(isinstance(value, str | int | float | bool) for value in described.values())
    with zipfile.ZipFile(file) as archive:
        assert archive.read(f"images/{ids[0]}.png") == b"image 0"


def test_coco_is_as_its_page_says(store, tmp_path, record) -> None:
    store.add(*tasks(record, store.blobs.files))
    file = store.exchange.export(tmp_path / "coco.zip", format="coco")
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        whole = json.loads(archive.read("annotations.json"))
        results = json.loads(archive.read("results.json"))
        assert archive.read(f"images/{whole['images'][0]['file_name']}") == b"image 0"
    assert [image["id"] for image in whole["images"]] == [1, 2, 3, 4, 5, 6]
    assert {one["name"] for one in whole["categories"]} == {"a", "b", "c"}
    names = {one["id"]: one["name"] for one in whole["categories"]}
    best, detection, oriented, segment = whole["annotations"]
    assert (names[best["category_id"]], "bbox" in best) == ("b", False)
    assert (detection["bbox"], detection["area"]) == ([1.5, 2, 2, 3], 6)
    assert oriented["bbox"] == pytest.approx([40, 12.5, 20, 25])
    assert oriented["segmentation"][0] == pytest.approx([40, 12.5, 60, 12.5, 60, 37.5, 40, 37.5])
    assert oriented["oriented_bbox"]["w"] == 0.2
    assert segment["bbox"] == [1, 1, 8, 8]
    assert segment["area"] == 60  # less the hole
    assert len(segment["segmentation"]) == 1
    assert [names[one["category_id"]] for one in results] == ["a", "b", "a", "b", "c"]
    assert [one["score"] for one in results] == [0.2, 0.8, 0.5, 0.25, 1.0]


@pytest.mark.parametrize("form", ["chariot", "coco"])
def test_inferences_come_back_from_a_dataset(store, other, tmp_path, record, form: str) -> None:
    store.add(*tasks(record, store.blobs.files))
    file = store.exchange.export(tmp_path / "set.zip", format=form, annotations="predictions")
    assert other.bring_in(file).images == 6
    for seq in (MS + 1 << 22, MS + 2 << 22, MS + 3 << 22, MS + 4 << 22):
        was, now = (each.inferences.get(str(seq)) for each in (store, other))
        assert json.loads(bytes(now.predictions)) == json.loads(bytes(was.predictions))
        assert (now.model, now.input, now.created_at) == (was.model, was.input, was.created_at)
        assert json.loads(bytes(now.metadata))["camera"] == "north"
        assert other.inferences.input_bytes(str(seq)) == store.inferences.input_bytes(str(seq))


TRUTH = [{"label": "a", "xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "chariot", "coco"])
def test_ground_truth_comes_back_alone(store, other, tmp_path, record, form: str) -> None:
    records = tasks(record, store.blobs.files)
    truth = TruthStatement("id", str(records[1].seq), TRUTH)
    store.add(*records, JournaledChange(MS + 200 << 22, truth))
    name = {"jsonl": "set.jsonl", "parquet": "set.parquet"}.get(form, "set.zip")
    file = store.exchange.export(tmp_path / name, format=form)
    other.add(*tasks(record, other.blobs))
    imported = other.bring_in(file, "ground-truth")
    assert (imported.ground_truths, imported.inferences) == (1, 0)
    found = other.inferences.get(str(records[1].seq)).ground_truth
    assert json.loads(bytes(found)) == TRUTH
    without = [one for one in records if one is not records[1]]
    assert all(other.inferences.get(str(one.seq)).ground_truth is None for one in without)


def test_predictions_do_not_come_back_as_ground_truth(store, other, tmp_path, record) -> None:
    store.add(*tasks(record, store.blobs.files))
    for form in ("chariot", "coco"):
        file = store.exchange.export(tmp_path / "set.zip", format=form, annotations="predictions")
        imported = other.bring_in(file, "ground-truth")
        assert (imported.ground_truths, imported.passed_over) == (0, 6)


def test_datasets_without_truth_hold_what_has_truth_alone(store, tmp_path, record) -> None:
    store.add(*tasks(record, store.blobs.files))
    file = store.exchange.export(tmp_path / "set.zip", format="chariot", annotations="ground_truth")
    assert members(file, "annotations.jsonl") == []


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
    image = InputReference("image", key_of(b"image 1"))
    store.add(record(MS << 22, input=image, metadata=metadata))
    assert store.bring_in(foreign(tmp_path, form), "ground-truth", join).ground_truths == 1
    found = json.loads(bytes(store.inferences.get(str(MS << 22)).ground_truth))
    assert [one["label"] for one in found] == ["ship"] * len(found)
    if form.startswith("coco"):
        box, contour, crowd = found
        assert (box["xmin"], box["ymax"]) == (1, 6)
        assert contour["contour"][0][2] == {"x": 4, "y": 6}
        assert (crowd["crowd"], crowd["xmax"]) == (True, 4)


ID = str(MS << 22)
GOOD = {"id": ID, "model": {"name": "m"}, "task": "TENSOR"}


@pytest.mark.parametrize(
    ("line", "said"),
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
        (GOOD | {"id": "8" * 19}, "line 2: expected the id of an inference that was"),
        (GOOD | {"metadata": []}, "line 2: expected metadata to be an object, got list"),
        (GOOD | {"metadata": {"": 1}}, "line 2: expected metadata key"),
        (GOOD | {"image_no": 1 << 31}, "line 2: expected an inference"),
        (GOOD | {"input": {"hash": "md5:1"}}, "line 2: expected an inference"),
        (GOOD | {"ground_truth": [{"label": 1}]}, r"line 2: annotations\[0\].label: expected"),
        ({"path": "a", "annotations": []}, "line 2: expected an inference as an export writes it"),
    ],
)
def test_a_line_that_means_nothing_is_named(store, tmp_path, line: Any, said: str) -> None:
    file = tmp_path / "bad.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    file.write_text(json.dumps(GOOD) + "\n" + text + "\n")
    with pytest.raises(StoreError, match=said):
        store.bring_in(file)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"", "expected a file .jsonl, .parquet, .json or .zip, got .txt"),
        ("a.zip", b"no", "expected a.zip to be a zip file"),
        ("a.parquet", b"no", "expected a.parquet to be Parquet"),
        ("a.json", b"{}", "expected COCO's JSON with images"),
        ("a.json", b"[" * 100_000, "expected COCO's JSON with images"),
    ],
)
def test_a_file_that_means_nothing_is_named(tmp_path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(QueryError, match=said):
        list(read(tmp_path / name))


def test_an_image_that_is_another_is_refused(store, tmp_path) -> None:
    asked = GOOD | {"input": {"hash": key_of(b"one"), "kept": True}}
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("inferences.jsonl", json.dumps(asked))
        archive.writestr(f"images/{ID}.png", b"another")
    with pytest.raises(QueryError, match="line 1: expected the image blake3:"):
        store.bring_in(tmp_path / "a.zip")


def test_an_import_beside_a_writer_leaves_the_moving_to_it(store, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("store.exchange.imports.MOVED_S", 0.0)
    (tmp_path / "one.jsonl").write_text(json.dumps(GOOD))
    writer = Writer(store.journal, store.url)
    try:
        assert store.bring_in(tmp_path / "one.jsonl").inferences == 1
        assert writer.drain() == 1
    finally:
        writer.close()
    assert store.inferences.get(ID).model.name == "m"


def test_a_missing_extra_is_named(tmp_path, monkeypatch) -> None:
    for module in ("store.exchange.export", "store.exchange.import_files"):
        monkeypatch.setattr(f"{module}.find_spec", lambda _: None)
    with pytest.raises(QueryError, match="pip install quadriga"):
        decode_parameters(b'{"format": "parquet"}')
    with pytest.raises(QueryError, match="pip install quadriga"):
        list(read(tmp_path / "a.parquet"))


def test_a_database_that_is_away_takes_the_import_later(store, tmp_path) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps(GOOD))
    away = "postgresql://nobody@127.0.0.1:1/none"
    with pytest.raises(NotReadyError, match="expected the database to answer"):
        Importer(store.journal, away, store.blobs.files, "inferences", None).run(
            read(tmp_path / "one.jsonl")
        )
    store.add()
    assert store.inferences.get(ID).id == ID


def test_an_import_leaves_the_journal_to_a_server_that_sends_it_on(store, tmp_path) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps(GOOD))
    sent_file(store.journal).write_text("{}")
    store.bring_in(tmp_path / "one.jsonl")
    assert [seq for path in segments(store.journal) for seq, *_ in frames(path)] == [int(ID)]
    sent_file(store.journal).unlink()
    store.add()
    assert segments(store.journal) == []
    assert store.inferences.get(ID).id == ID


def test_two_imports_at_once_are_refused(store, tmp_path) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps(GOOD) + "\n")

    def items():
        with pytest.raises(StoreError, match="expected one import at a time"):
            store.bring_in(tmp_path / "one.jsonl")
        yield from read(tmp_path / "one.jsonl")

    Importer(store.journal, store.url, store.blobs.files, "inferences", None).run(items())
    assert store.inferences.get(ID).id == ID


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"format": "xml"}', b'{"wher": 1}', b'{"images": 1}', b"[" * 9999, b"\xff"],
)
def test_parameters_that_mean_nothing_are_refused(body: bytes) -> None:
    with pytest.raises(
        QueryError,
        match=r"expected the body to be a JSON object with where, format .chariot, coco, jsonl, parquet.,",
    ):
        decode_parameters(body)
