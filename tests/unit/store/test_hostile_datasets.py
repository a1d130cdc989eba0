"""Datasets of strangers: nothing is read or written beside them, nothing grows without bounds, and what is wrong is named."""

import io
import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from quadriga.store.exchange import dataset_files
from quadriga.store.exchange.dataset_files import open_dataset_files
from quadriga.store.exchange.formats.label_folders import folder_of_label, label_of_folder
from quadriga.store.exchange.import_files import read
from quadriga.store.exchange.splits import Splits, parse_splits
from quadriga.store.exchange.zip_stream import ZipStream
from quadriga.store.records.errors import QueryError, StoreError
from quadriga.store.records.records import InputReference
from tests.unit.store.test_tool_datasets import LABELS, picture

YAML = "names: {0: ship}\ntask: detect\n"
LINE = "0 0.5 0.5 0.5 0.5\n"
IMAGE = '<image id="0" name="{name}" width="10" height="10">{shapes}</image>'


def cvat(*shapes: str, name: str = "a.jpg", before: str = "") -> str:
    """Return a file of CVAT with one image."""
    image = IMAGE.format(name=name, shapes="".join(shapes))
    return f'<?xml version="1.0"?>{before}<annotations>{image}</annotations>'


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


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
EXTERNAL = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
ALIASES = "a: &a [x, x, x]\nb: &b [*a, *a, *a]\nnames: [*b, *b]\n"
BOX = {"x": 1, "y": 1, "width": 5, "height": 5, "rectanglelabels": ["a"]}
REFUSED = [
    ({"annotations.xml": cvat(before=BOMB)}, "expected no document type"),
    ({"annotations.xml": cvat(before=EXTERNAL)}, "expected no document type"),
    ({"annotations.xml": "<annotations><image"}, "annotations.xml: expected XML"),
    ({"annotations.xml": "<svg/>"}, "expected CVAT's <annotations>, got <svg>"),
    ({"annotations.xml": "<annotations><track id='0'/></annotations>"}, "got tracks of a video"),
    ({"annotations.xml": cvat('<mask label="a" rle="1"/>')}, "image a.jpg: shape 0: .* got a mask"),
    ({"annotations.xml": cvat('<box label="a" xtl="nan" ytl="0" xbr="1" ybr="1"/>')}, "shape 0: expected coordinates as finite numbers"),
    ({"annotations.xml": cvat('<polygon label="a" points="1,2;inf,4"/>')}, "finite numbers"),
    ({"annotations.xml": cvat('<polygon label="a" points="1;2"/>')}, "finite numbers"),
    ({"annotations.xml": cvat("<box/>")}, "a label is required"),
    ({"train.xml": "<annotations><image"}, "train.xml: expected XML"),
    ({"train.xml": cvat("<box/>"), "val.xml": "<svg/>"}, "train.xml: image a.jpg: shape 0: a label is required"),
    ({"train.xml": cvat(before=BOMB)}, "no dataset found"),
    ({"train.xml": cvat(before=f"<!--{' ' * 5000}-->")}, "no dataset found"),
    ({"a.xml": "<annotation><folder/></annotation>", "b.xml": "no XML", "c.xml": ""}, "no dataset found"),
    ({"data.yaml": YAML, "labels/a.txt": "0 nan 0.5 0.5 0.5\n", "images/a.jpg": picture()}, "a.txt:1: expected finite numbers"),
    ({"data.yaml": YAML, "labels/a.txt": LINE}, "labels/a.txt: the size of images/a is not known"),
    ({"data.yaml": YAML, "labels/a.txt": LINE, "images/a.jpg": "no image"}, "cannot read the size of images/a.jpg"),
    ({"data.yaml": YAML, "labels/a.txt": "7" + LINE[1:], "images/a.jpg": picture()}, "labels/a.txt:1: expected the number of a class"),
    ({"data.yaml": YAML, "labels/a.txt": "x 1\n", "images/a.jpg": picture()}, "labels/a.txt:1: expected the number of a class and"),
    ({"data.yaml": YAML, "labels/a.txt": "0 1 2 3\n", "images/a.jpg": picture()}, "with 3 numbers"),
    ({"data.yaml": "names: [a]", "labels/a.txt": "0" + " 0.5" * 8, "images/a.jpg": picture()}, "--task oriented or --task segmentation"),
    ({"data.yaml": ALIASES, "labels/a.txt": LINE}, "expected no aliases"),
    ({"data.yaml": "names: 5", "labels/a.txt": LINE}, "expected the names of classes"),
    ({"data.yaml": "!!python/object/apply:os.system [x]", "labels/a.txt": LINE}, "expected YAML"),
    ({"data.yaml": "[" * 100_000, "labels/a.txt": LINE}, "at most 16 levels of YAML"),
    ({"labelTxt/a.txt": "1 2 3 4 5 6 7 nan ship 0\n"}, "labelTxt/a.txt:1: expected 8 numbers"),
    ({"labelTxt/a.txt": b"\xff\xff"}, "expected text in UTF-8"),
    ({"tasks.json": task({**BOX, "x": "1"})}, "result 0: expected percents"),
    ({"tasks.json": task({**BOX, "x": 1e999})}, "expected a JSON array of tasks"),
    ({"tasks.json": task(BOX, original_width=0)}, "expected percents of an image of known size"),
    ({"tasks.json": task({"format": "rle", "rle": [1]}, type="brush")}, "expected rectangles, polygons and choices"),
    ({"tasks.json": "[" * 99_999}, "expected a JSON array of tasks"),
    ({"tasks.json": '[{"data": 1}]'}, "task 0: expected a task of Label Studio"),
    ({"quadriga-images.jsonl": "no\n", "data.yaml": YAML, "labels/a.txt": LINE}, "line 1 of quadriga-images.jsonl"),
    ({"readme.txt": "hello"}, "no dataset found"),
    ({"annotations.json": '{"images": [{"id": 1}, {"id": 1}]}'}, "expected each image once, got 1 2 times"),
    ({"annotations.json": '{"images": [{"id": 1, "file_name": "a"}, {"id": 2, "file_name": "a"}]}'}, "expected each image once, got 'a'"),
]  # fmt: skip


def write_zip(file: Path, members: dict[str, str | bytes]) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file


@pytest.mark.parametrize(("members", "message"), REFUSED)
def test_what_is_wrong_is_named(tmp_path, members: dict[str, str | bytes], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        list(read(write_zip(tmp_path / "set.zip", members)))


@pytest.mark.parametrize("name", ["../../secret.jpg", "/etc/passwd", "images/../../secret.jpg"])
@pytest.mark.parametrize("form", ["cvat", "label-studio"])
def test_names_that_lead_out_of_the_dataset_are_no_files(tmp_path, form: str, name: str) -> None:
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    folder = tmp_path / "a" / "set"
    folder.mkdir(parents=True)
    if form == "cvat":
        (folder / "annotations.xml").write_text(cvat('<tag label="a"/>', name=name))
    else:
        text = task({"choices": ["a"]}, type="choices").replace("a.jpg", name)
        (folder / "tasks.json").write_text(text)
    (item,) = read(folder)
    assert item.image() is None
    files = open_dataset_files(folder)
    with pytest.raises(FileNotFoundError):
        files.read(name)


def test_members_that_lead_out_of_a_zip_write_nothing(tmp_path) -> None:
    members = {"../../data.yaml": YAML, "../../labels/a.txt": LINE, "../../images/a.jpg": picture()}
    file = write_zip(tmp_path / "set.zip", members)
    before = {*tmp_path.rglob("*")}
    (item,) = read(file)
    assert item.truth == [{"label": "ship", "xmin": 50, "ymin": 25, "xmax": 150, "ymax": 75}]
    assert {*tmp_path.rglob("*")} == before


def test_links_are_not_followed_out_of_a_folder(tmp_path) -> None:
    (tmp_path / "secret.txt").write_text(LINE)
    (tmp_path / "set" / "labels").mkdir(parents=True)
    (tmp_path / "set" / "data.yaml").write_text(YAML)
    (tmp_path / "set" / "labels" / "a.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "set" / "loop").symlink_to(tmp_path / "set")
    files = open_dataset_files(tmp_path / "set")
    assert files.names == ["data.yaml"]
    (tmp_path / "set" / "data.yaml").unlink()  # the folder changes while it is read
    (tmp_path / "set" / "data.yaml").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(FileNotFoundError, match="or a link that leads out of it"):
        files.read("data.yaml")
    link = zipfile.ZipInfo("labels/a.txt")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("data.yaml", YAML)
        archive.writestr(link, "/etc/passwd")
    assert open_dataset_files(tmp_path / "set.zip").names == ["data.yaml"]


def test_ten_gigabytes_of_labels_are_refused_before_they_are_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(dataset_files, "MAX_LABEL_BYTES", 1 << 20)
    members = {"data.yaml": YAML, "labels/a.txt": LINE * 5_000_000, "images/a.jpg": picture()}
    file = tmp_path / "set.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    del members
    tracemalloc.start()
    with pytest.raises(OSError, match=r"expected labels/a\.txt to have at most"):
        list(read(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


def test_an_element_without_end_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("quadriga.store.exchange.formats.cvat_reader.MAX_LABEL_BYTES", 1 << 20)
    points = ";".join(["1,1"] * (1 << 20))
    (tmp_path / "a.xml").write_text(cvat(f'<polygon label="a" points="{points}"/>'))
    with pytest.raises(QueryError, match="expected elements of at most"):
        list(read(tmp_path / "a.xml"))


def test_coordinates_outside_the_image_are_read_as_they_are(tmp_path) -> None:
    """An object may end beyond the image; the evaluation cuts masks off."""
    line = "0 0.75 0.5 1 1\n"
    members = {"data.yaml": YAML, "labels/a.txt": line, "images/a.jpg": picture()}
    (item,) = read(write_zip(tmp_path / "set.zip", members))
    assert item.truth == [{"label": "ship", "xmin": 50, "ymin": 0, "xmax": 250, "ymax": 100}]


def test_an_image_of_yolo_without_labels_has_no_truth_to_import(tmp_path) -> None:
    """People may not have come to it yet, so nothing is stated of it."""
    images = {"images/a.jpg": picture(), "images/b.jpg": picture()}
    files = {"data.yaml": YAML, "labels/a.txt": LINE, **images}
    labelled, other = read(write_zip(tmp_path / "set.zip", files))
    assert (len(labelled.truth), other.truth) == (1, None)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("written", ["a b.jpg", "a%20b.jpg", r"images\\a b.jpg"])
def test_coco_of_other_tools_finds_its_images(tmp_path, encoding, written) -> None:
    document = f'{{"images": [{{"id": 1, "file_name": "{written}"}}]}}'
    files = {"annotations.json": document.encode(encoding), "images/a b.jpg": b"A"}
    (item,) = read(write_zip(tmp_path / "set.zip", files))
    assert item.image() == b"A"


@pytest.mark.parametrize("value", ["x", "-1", "9" * 30, "\u0661"])
def test_an_id_that_is_none_is_refused(file_store, tmp_path, record, value: str) -> None:
    file_store.add(record(1))
    text = task({"choices": ["a"]}, type="choices")
    tasks = json.loads(text)
    tasks[0]["data"]["inference_id"] = value
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    with pytest.raises(QueryError, match="expected an id of at most 19 digits"):
        file_store.import_file(tmp_path / "tasks.json", "ground-truth")


def test_a_name_that_only_looks_like_an_id_is_matched_by_the_image(
    file_store, tmp_path, record
) -> None:
    data = picture()
    image = InputReference("a", file_store.blobs.put(data), 200, 100, "image/jpeg", kept=True)
    file_store.add(record(5, input=image))
    name = "159876543210123456"  # microseconds of a camera
    members = {"data.yaml": YAML, f"labels/{name}.txt": LINE, f"images/{name}.jpg": data}
    imported = file_store.import_file(write_zip(tmp_path / "set.zip", members), "ground-truth")
    assert (imported.matched, imported.unmatched) == (1, 0)
    assert file_store.ground_truth(5)[0]["xmin"] == 50


@pytest.mark.parametrize(
    "label", [*LABELS, ".", "~", " a ", "a.", "%41", "x" * 500, "\u6c34" * 100, "\x00\n"]
)
def test_a_label_names_one_safe_folder(label: str) -> None:  # fmt: skip
    folder = folder_of_label(label)
    assert 0 < len(folder.encode()) <= 200
    assert not {"/", "\\", "\0"} & {*folder}
    assert folder[0] != "."
    if len(label) < 100:
        assert label_of_folder(folder) == label


def test_splits_depend_on_the_hash_alone(record) -> None:
    """The hashes are written down: another release, or machine, has to decide the same."""
    splits = Splits({"train": 0.7, "val": 0.2, "test": 0.1})
    digests = [f"blake3:{number:064x}" for number in range(1000)]
    decided = [splits.split_of(record(1, input=InputReference("a", key))) for key in digests]
    assert decided[:8] == FIRST_SPLITS
    shares = [decided.count(name) / 1000 for name in splits.names]
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.05)


FIRST_SPLITS = ["train", "train", "val", "train", "train", "train", "train", "val"]


def test_a_source_is_on_one_side_whatever_its_images(record) -> None:
    splits = Splits({"train": 0.5, "val": 0.5}, "meta.at.camera")
    sides: dict[Any, set[str]] = {}
    for number in range(300):
        camera = [7, 7.0, "7", None, f"c{number % 20}"][number % 5]
        metadata = {} if camera is None else {"at": {"camera": camera}}
        image = InputReference("a", f"blake3:{number:064x}")
        side = splits.split_of(record(1, input=image, metadata=encoded(metadata)))
        sides.setdefault(str(camera).removesuffix(".0"), set()).add(side)
    assert all(len(names) == 1 for names in sides.values())
    assert {name for names in sides.values() for name in names} == {"train", "val"}


def encoded(metadata: Any) -> Any:
    return json.dumps(metadata)


@pytest.mark.parametrize("text", ["train", "train=x", "train=0.5,train=0.5", "a=nan", "a=2"])
def test_a_text_that_is_no_split_is_refused(text: str) -> None:
    with pytest.raises(StoreError, match=r"expected splits such as train=0\.8,val=0\.2"):
        parse_splits(text)


def test_a_zip_of_many_members_takes_no_memory_for_each(tmp_path) -> None:
    count = 70_000  # beyond what the first form of the directory counts
    with (tmp_path / "a.zip").open("w+b") as file, (tmp_path / "dir").open("w+b") as directory:
        archive = ZipStream(file, directory)
        for number in range(count):
            if number == count - 30_000:  # measuring takes more time than writing
                tracemalloc.start()
            archive.write(f"\u00e9/{number}.txt", b"%d" % number, compress=number % 2 == 0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        archive.write_file("long.txt", io.BytesIO(b"long" * 1_000_000))
        archive.close()
    assert peak < 1 << 20
    with zipfile.ZipFile(tmp_path / "a.zip") as archive_read:
        assert archive_read.testzip() is None
        assert len(archive_read.namelist()) == count + 1
        assert archive_read.read("\u00e9/69999.txt") == b"69999"
        assert len(archive_read.read("long.txt")) == 4_000_000
