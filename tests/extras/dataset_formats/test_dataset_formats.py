"""Datasets of CVAT, DOTA and ImageFolder: what is written is read back as it was, and what is wrong in those of strangers is named."""

import zipfile
from xml.etree import ElementTree as ET

import pytest

from quadriga.engine.config.extras import dataset_formats
from quadriga.extras.dataset_formats.label_folders import folder_of_label, label_of_folder
from quadriga.store.exchange.dataset_files import open_dataset_files
from quadriga.store.exchange.import_files import read
from quadriga.store.records.errors import QueryError
from tests.unit.store.tool_datasets import (
    FORMS,
    IMAGE_GONE,
    LABELS,
    NO_LABEL,
    check_matching,
    check_predictions,
    check_round_trip,
    check_turned,
    fill,
    left_out,
    write_zip,
)

FORMS_HERE = [form for form in FORMS if form[0] in {"cvat", "dota", "imagefolder"}]


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


@pytest.mark.parametrize("form", ["cvat", "dota"])
def test_predictions_are_truth_only_if_somebody_says_so(file_store, tmp_path, record, form) -> None:
    check_predictions(file_store, tmp_path, record, form)


@pytest.mark.parametrize("form", ["cvat", "dota"])
def test_boxes_of_a_turned_image_are_those_that_a_person_sees(
    file_store, tmp_path, record, form
) -> None:
    check_turned(file_store, tmp_path, record, form)


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


def test_what_a_folder_cannot_hold_is_left_out_and_counted(file_store, tmp_path, record) -> None:
    none, several = "it has no label", "it has several labels"
    expected = {NO_LABEL: 1, none: 1, IMAGE_GONE: 1, several: 1}
    assert left_out(file_store, record, tmp_path, "imagefolder") == expected


IMAGE = '<image id="0" name="{name}" width="10" height="10">{shapes}</image>'


def cvat(*shapes: str, name: str = "a.jpg", before: str = "") -> str:
    """Return a file of CVAT with one image."""
    image = IMAGE.format(name=name, shapes="".join(shapes))
    return f'<?xml version="1.0"?>{before}<annotations>{image}</annotations>'


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
EXTERNAL = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
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
    ({"labelTxt/a.txt": "1 2 3 4 5 6 7 nan ship 0\n"}, "labelTxt/a.txt:1: expected 8 numbers"),
    ({"labelTxt/a.txt": b"\xff\xff"}, "expected text in UTF-8"),
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
    (folder / "annotations.xml").write_text(cvat('<tag label="a"/>', name=name))
    (item,) = read(folder, formats=dataset_formats())
    assert item.image() is None
    with pytest.raises(FileNotFoundError):
        open_dataset_files(folder).read(name)


def test_an_element_without_end_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("quadriga.extras.dataset_formats.cvat.MAX_LABEL_BYTES", 1 << 20)
    points = ";".join(["1,1"] * (1 << 20))
    (tmp_path / "a.xml").write_text(cvat(f'<polygon label="a" points="{points}"/>'))
    with pytest.raises(QueryError, match="expected elements of at most"):
        list(read(tmp_path / "a.xml", formats=dataset_formats()))


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
