"""Datasets of strangers: nothing is read or written beside them, nothing grows without bounds, and what is wrong is named."""

import io
import json
import tracemalloc
import zipfile
from typing import Any

import pytest

from quadriga.store.exchange import dataset_files
from quadriga.store.exchange.archives import ZipStream
from quadriga.store.exchange.dataset_files import open_dataset_files
from quadriga.store.exchange.dataset_options import Splits, parse_splits
from quadriga.store.exchange.import_files import read
from quadriga.store.records.errors import QueryError, StoreError
from quadriga.store.records.records import InputReference
from tests.unit.store.tool_datasets import (
    picture,
    write_zip,
)

YAML = "names: {0: ship}\ntask: detect\n"


LINE = "0 0.5 0.5 0.5 0.5\n"


ALIASES = "a: &a [x, x, x]\nb: &b [*a, *a, *a]\nnames: [*b, *b]\n"


REFUSED = [
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
    ({"quadriga-images.jsonl": "no\n", "data.yaml": YAML, "labels/a.txt": LINE}, "line 1 of quadriga-images.jsonl"),
    ({"readme.txt": "hello"}, "no dataset found"),
    ({"annotations.json": '{"images": [{"id": 1}, {"id": 1}]}'}, "expected each image once, got 1 2 times"),
    ({"annotations.json": '{"images": [{"id": 1, "file_name": "a"}, {"id": 2, "file_name": "a"}]}'}, "expected each image once, got 'a'"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "message"), REFUSED)
def test_what_is_wrong_is_named(tmp_path, members: dict[str, str | bytes], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        list(read(write_zip(tmp_path / "set.zip", members)))


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


def test_splits_depend_on_the_hash_alone(record) -> None:
    """The hashes are written down: another release, or machine, has to decide the same."""
    splits = Splits({"train": 0.7, "val": 0.2, "test": 0.1})
    digests = [f"blake3:{number:064x}" for number in range(1000)]
    decided = [splits.split_of(record(1, input=InputReference("a", key))) for key in digests]
    assert decided[:8] == FIRST_SPLITS
    shares = [decided.count(name) / 1000 for name in ("train", "val", "test")]
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
