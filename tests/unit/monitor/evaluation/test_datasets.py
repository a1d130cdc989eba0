"""Datasets in the layouts of Chariot, COCO and ImageFolder, as folders and as zips."""

import json
from zipfile import ZipFile

import pytest

from quadriga.engine.commands.monitoring.reports import image_from_folder
from quadriga.engine.config.extras import dataset_formats
from quadriga.monitor.evaluation.files.datasets import read_dataset
from quadriga.monitor.evaluation.state import EvaluationError

BOX = {"xmin": 1, "ymin": 2, "xmax": 4, "ymax": 6}


def jsonl(*rows):
    return "\n".join(json.dumps(row) for row in rows)


@pytest.fixture(params=["folder", "zip"])
def dataset(request, tmp_path):
    """Write files as a folder or as a zip, and read them as a dataset."""

    def make(files, task="OBJECT_DETECTION"):
        place = tmp_path / ("set.zip" if request.param == "zip" else "set")
        if request.param == "zip":
            with ZipFile(place, "w") as archive:
                for name, text in files.items():
                    archive.writestr(name, text)
        for name, text in files.items() if request.param == "folder" else ():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return read_dataset(place, task, dataset_formats())

    return make


def test_chariots_layout_with_metadata(dataset) -> None:
    images = dataset(
        {
            "top/annotations.jsonl": jsonl(
                {"path": "images/a.jpg", "split": "val",
                 "annotations": [{"class_label": "ship", "bbox": BOX}]},
                {"datum_id": "b", "annotations": []},
                {"path": "images/c.jpg", "annotations": [{"class_label": "ship"}]},
            ) + "\n\n",
            "top/metadata.jsonl": jsonl(
                {"path": "images/a.jpg",
                 "metadata": {"camera": "north", "inference_id": "1", "GPSLatitude": 5.5}},
                {"path": "images/c.jpg", "metadata": {"annotations_from": "predictions"}},
            ),
            "top/images/a.jpg": "A",
            "top/b.png": "B",
        }
    )  # fmt: skip
    first, second, third = images
    assert first.annotations == [{"label": "ship", **BOX}]
    assert first.metadata == {"camera": "north", "latitude": 5.5}
    assert (first.path, first.split, first.read()) == ("images/a.jpg", "val", b"A")
    assert (second.path, second.annotations, second.read()) == ("b", [], b"B")
    assert third.annotations is None, "what a model said is not true"
    with pytest.raises(OSError, match=r"c\.jpg"):
        third.read()


COCO = {
    "images": [{"id": 1, "file_name": "a.jpg", "width": 8, "height": 8}],
    "categories": [{"id": 3, "name": "ship"}],
    "annotations": [
        {"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 9, "iscrowd": 1,
         "segmentation": {"size": [8, 8], "counts": [9, 2, 6, 2, 45]}},
        {"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4],
         "segmentation": [[1, 1, 3, 1, 3, 3, 1, 3]]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("json_name", "image_name", "split"),
    [
        ("annotations.json", "images/a.jpg", None),
        ("annotations/instances_val2017.json", "val2017/a.jpg", "val2017"),
        ("annotations/instances_test.json", "images/test/a.jpg", "test"),
        ("instances.json", "deep/down/a.jpg", None),
        ("train/annotations.json", "train/a.jpg", None),
    ],
)
def test_coco_in_the_places_where_its_images_lie(dataset, json_name, image_name, split) -> None:
    (image,) = dataset({json_name: json.dumps(COCO), image_name: "A", "results.json": "[]"})
    assert (image.path, image.split, image.read()) == (image_name, split, b"A")
    assert image.annotations == [
        {"label": "ship", **BOX, "crowd": True, "area": 9},
        {"label": "ship", **BOX},
    ]


def test_coco_for_each_task(dataset) -> None:
    files = {"annotations.json": json.dumps(COCO), "a.jpg": ""}
    (masks,) = dataset(files, "IMAGE_SEGMENTATION")
    corners = [{"x": 1, "y": 1}, {"x": 1, "y": 2}, {"x": 2, "y": 2}, {"x": 2, "y": 1}]
    assert [annotation["contour"] for annotation in masks.annotations] == [[corners], [corners]]
    (labels,) = dataset(files, "IMAGE_CLASSIFICATION")
    assert labels.annotations == [{"label": "ship"}]
    with pytest.raises(EvaluationError, match=r"annotations\[0\]: oriented_bbox is required"):
        dataset(files, "ORIENTED_OBJECT_DETECTION")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cat/1.jpg", "dog/deep/2.PNG"], [("cat", None), ("dog", None)]),
        (["val/cat/1.jpg", "train/dog/2.jpg"], [("dog", "train"), ("cat", "val")]),
        (["val/1.jpg"], [("val", None)]),
    ],
)
def test_a_folder_for_each_label(dataset, names, expected) -> None:
    images = dataset({name: name for name in (*names, "cat/readme.txt", "4.jpg")})
    images = [image for image in images if image.path in names]
    assert [(image.annotations[0]["label"], image.split) for image in images] == expected


@pytest.mark.parametrize(
    ("file_name", "image_name"),
    [
        (r"sub\\a.jpg", "images/sub/a.jpg"),
        ("a%20b.jpg", "images/a b.jpg"),
        ("a%20b.jpg", "images/a%20b.jpg"),
        (r"C:\\set\\a%20b.jpg", "deep/down/a b.jpg"),
    ],
)
def test_names_of_coco_may_be_of_windows_or_of_a_url(dataset, file_name, image_name) -> None:
    coco = {**COCO, "images": [{**COCO["images"][0], "file_name": file_name}]}
    (image,) = dataset({"annotations.json": json.dumps(coco), image_name: "A"})
    assert (image.path, image.read()) == (image_name, b"A")


def twice(**second):
    return json.dumps({**COCO, "images": [COCO["images"][0], {**COCO["images"][0], **second}]})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"instances.json": twice(), "a.jpg": ""}, r"expected each image once, got 'a\.jpg' 2 times"),
        ({"instances.json": twice(id=2), "a.jpg": ""}, "expected each image once"),
        ({"instances.json": twice(id=2, file_name="./a.jpg"), "a.jpg": ""}, "expected each image once"),
        ({"instances.json": json.dumps(COCO), "annotations.json": json.dumps(COCO), "a.jpg": ""}, "expected each image once"),
        ({"annotations.jsonl": jsonl({"path": "a"}, {"path": "a"})}, "expected each image once"),
        ({"a.txt": ""}, "no dataset found in set.*: expected annotations.jsonl"),
        ({"annotations.jsonl": "{"}, "annotations.jsonl:1: expected JSON"),
        ({"annotations.jsonl": "{}"}, "annotations.jsonl:1: path or datum_id is required"),
        ({"annotations.jsonl": '{"path": "a", "annotations": 1}'}, "annotations.jsonl:1: annotations: expected a list"),
        ({"instances.json": '{"images": [{"id": 1}], "categories": [], "annotations": []}'}, "file_name is required for image 1"),
        ({"instances.json": '{"images": [], "categories": [], "annotations": [{"image_id": 1, "category_id": 1}]}'},
         r"annotations\[0\]: expected category_id to be one of the categories"),
    ],
)  # fmt: skip
def test_what_is_no_dataset_is_said(dataset, files, message) -> None:
    with pytest.raises(EvaluationError, match=message):
        dataset(files)


def test_a_file_that_is_no_zip_is_said(tmp_path) -> None:
    (tmp_path / "a.zip").write_text("no")
    with pytest.raises(
        EvaluationError, match=r"cannot open a\.zip, which is neither a folder nor a zip"
    ):
        read_dataset(tmp_path / "a.zip", "OBJECT_DETECTION")


YOLO = {
    "data.yaml": "names: [ship]",
    "quadriga-images.jsonl": '{"path": "a.jpg", "image_width": 100, "image_height": 100}',
}
TOOLS = [
    ({**YOLO, "labels/val/a.txt": "0 0.5 0.5 0.2 0.2", "images/val/a.jpg": "A"}, "val"),
    ({**YOLO, "val/labels/a.txt": "0 0.5 0.5 0.2 0.2", "val/images/a.jpg": "A"}, "val"),
    ({"val/labelTxt/a.txt": "imagesource:x\ngsd:1\n40 40 60 40 60 60 40 60 ship 0", "val/images/a.jpg": "A"}, "val"),
    ({"annotations.xml": '<annotations><image name="a.jpg" subset="val" width="100" height="100">'
      '<box label="ship" xtl="40" ytl="40" xbr="60" ybr="60"/></image></annotations>', "images/val/a.jpg": "A"}, "val"),
    ({"val.xml": '<?xml version="1.0"?><annotations><meta/><image name="a.jpg" width="100" height="100">'
      '<box label="ship" xtl="40" ytl="40" xbr="60" ybr="60"/></image></annotations>', "images/a.jpg": "A", "other/train.xml": "<svg/>"}, "val"),
    ({"project.json": json.dumps([{"data": {"image": "/data/upload/1/5f3c-a.jpg", "split": "val"}, "annotations": [
      {"result": [], "was_cancelled": False}, {"result": [{"type": "rectanglelabels", "original_width": 100, "original_height": 100,
       "value": {"x": 40, "y": 40, "width": 20, "height": 20, "rotation": 0, "rectanglelabels": ["ship"]}}]}]}]), "images/a.jpg": "A"}, "val"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "split"), TOOLS, ids=["yolo", "roboflow", "dota", "cvat", "datumaro", "label-studio"]
)
def test_forms_of_other_tools_are_datasets(dataset, files, split) -> None:
    (image,) = dataset(files)
    box = {"label": "ship", "xmin": 40, "ymin": 40, "xmax": 60, "ymax": 60}
    assert image.annotations == [box]
    assert (image.split, image.read()) == (split, b"A")


CVAT_IMAGE = ('<annotations><image name="a.jpg"{} width="100" height="100">'
              '<box label="ship" xtl="40" ytl="40" xbr="60" ybr="60"/></image></annotations>')  # fmt: skip
INSTANCES = jsonl({"images": [{"id": 1, "file_name": "a.jpg", "width": 100, "height": 100}], "categories": [{"id": 1, "name": "ship"}],
              "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [40, 40, 20, 20]}]})  # fmt: skip
WITHOUT_SPLIT = {
    "cvat of datumaro": {"default.xml": CVAT_IMAGE.format(""), "images/a.jpg": "A"},
    "cvat": {
        "annotations.xml": CVAT_IMAGE.format(' subset="default"'),
        "images/default/a.jpg": "A",
    },
    "coco": {"annotations/instances_default.json": INSTANCES, "images/default/a.jpg": "A"},
    "dota": {
        "default/labelTxt/a.txt": "40 40 60 40 60 60 40 60 ship 0",
        "default/images/a.jpg": "A",
    },
    "imagefolder": {"default/ship/a.jpg": "A"},
}


@pytest.mark.parametrize("files", WITHOUT_SPLIT.values(), ids=WITHOUT_SPLIT)
def test_the_default_subset_of_other_tools_is_no_split(dataset, files) -> None:
    is_folders = "default/ship/a.jpg" in files
    (image,) = dataset(files, "IMAGE_CLASSIFICATION" if is_folders else "OBJECT_DETECTION")
    assert [item["label"] for item in image.annotations] == ["ship"]
    assert (image.split, image.read()) == (None, b"A")


def test_images_beside_a_default_subset_have_their_split(dataset) -> None:
    files = {"default/ship/a.jpg": "A", "val/buoy/b.jpg": "B", "train/default/c.jpg": "C"}
    found = [(i.path, i.split, i.annotations) for i in dataset(files, "IMAGE_CLASSIFICATION")]
    assert found == [
        ("default/ship/a.jpg", None, [{"label": "ship"}]),
        ("train/default/c.jpg", "train", [{"label": "default"}]),
        ("val/buoy/b.jpg", "val", [{"label": "buoy"}]),
    ]


@pytest.mark.parametrize(
    "files", [{"default/a.jpg": "A"}, {"default/a.jpg": "A", "ship/b.jpg": "B"}]
)
def test_default_may_be_a_label(dataset, files) -> None:
    images = dataset(files, "IMAGE_CLASSIFICATION")
    labels = [(image.split, image.annotations) for image in images]
    assert labels == [(None, [{"label": name.partition("/")[0]}]) for name in files]


@pytest.mark.parametrize(
    ("labels", "images"), [("labels/val/{}", "images/val/{}"), ("val/labels/{}", "val/images/{}")]
)
def test_an_image_of_yolo_without_labels_is_background(dataset, labels, images) -> None:
    names = {images.format(f"{name}.jpg"): "A" for name in "abc"}
    others = {"cover.jpg": "A", "images/unlabelled/d.jpg": "A", "runs/e.jpg": "A"}
    found = dataset({
        **YOLO, **names, **others,
        labels.format("a.txt"): "0.0 0.5 0.5 0.2 0.2\n0 0.5 0.5 0.2 0.20\n", labels.format("b.txt"): "",
    })  # fmt: skip
    assert [(len(image.annotations), image.split, image.is_background) for image in found] == [
        (1, "val", False),
        (0, "val", False),
        (0, "val", True),
    ]


def test_polygons_of_yolo_are_boxes_for_a_detector(dataset) -> None:
    polygon = "0 0.4 0.4 0.6 0.4 0.6 0.6 0.5 0.6 0.4 0.5"
    (image,) = dataset({**YOLO, "labels/a.txt": polygon})
    assert image.annotations == [{"label": "ship", "xmin": 40, "ymin": 40, "xmax": 60, "ymax": 60}]


NAMES = [
    ("names: [no, yes, on, 1.10, null, ~]", ["no", "yes", "on", "1.10", "null", "~"]),
    ("names: {0: off, 1: 2026-01-31, 2: 0x10, 3: 'x', 4: 1_000, 5: 1e3}", ["off", "2026-01-31", "0x10", "x", "1_000", "1e3"]),
    ("\ufeffnames:\n- TRUE\n- .inf\n", ["TRUE", ".inf"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "names"), NAMES, ids=["list", "numbers", "byte order mark"])
def test_names_of_yaml_are_texts_as_they_are_written(dataset, text, names) -> None:
    lines = "".join(f"{at} 0.5 0.5 0.2 0.2\n" for at in range(len(names)))
    (image,) = dataset({**YOLO, "data.yaml": text, "labels/a.txt": "\ufeff" + lines})
    assert [item["label"] for item in image.annotations] == names


LINES = {
    "ship 1": "expected the number of a class and fractions",
    "0.5 0.5 0.5 0.2 0.2": "expected the number of a class in `names`, got 0.5",
    "1 0.5 0.5 0.2 0.2": "expected the number of a class in `names`, got 1",
    "-1 0.5 0.5 0.2 0.2": "expected the number of a class in `names`, got -1",
    "0 0.5 0.5 0.2": "expected a class and 4 numbers of a box, .*with 3 numbers",
    "0 0.5 0.5 0.2 0.2 0.9": "expected a class and a shape without a score",
    "0 0.1 0.1 0.2 0.1 0.2 0.2 0.1 0.2 0.9": "expected a class and a shape without a score",
    "0 0.5 0.5 0 0.2": "expected a width and a height above 0",
    "0 0.5 0.5 0.2 -0.005": "expected a width and a height above 0",
    "0 0.5 0.5 -0.2 0.2": "expected fractions of the image, from 0 to 1",
    "0 320 240 100 80": "expected fractions of the image, from 0 to 1",
    "0 nan 0.5 0.2 0.2": "expected finite numbers",
}


@pytest.mark.parametrize(("line", "message"), LINES.items(), ids=LINES)
def test_a_line_that_ultralytics_refuses_is_named(dataset, line, message) -> None:
    with pytest.raises(EvaluationError, match=rf"labels/a\.txt:3: {message}"):
        dataset({**YOLO, "labels/a.txt": f"0 0.5 0.5 0.2 0.2\n\n{line}\n"})


@pytest.mark.parametrize("names", ["[a, ]", "[[a]]", "{a: b}", "", "[a, '']"])
def test_names_that_are_none_are_named(dataset, names) -> None:
    files = {**YOLO, "data.yaml": f"names: {names}", "labels/a.txt": "7 0.5 0.5 0.2 0.2"}
    with pytest.raises(EvaluationError, match=r"data\.yaml: expected|labels/a\.txt:1: expected"):
        dataset(files)


def test_a_link_that_leads_out_of_a_dataset_is_no_image(tmp_path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    folder = tmp_path / "set"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "near.png").write_bytes(b"near")
    (folder / "images" / "link.png").symlink_to(folder / "images" / "near.png")
    (folder / "images" / "out.png").symlink_to(tmp_path / "secret.png")
    names = ("images/near.png", "images/link.png", "images/out.png", "../secret.png")
    rows = [{"path": name, "annotations": [{"class_label": "a"}]} for name in names]
    (folder / "annotations.jsonl").write_text("\n".join(map(json.dumps, rows)))
    near, link, *others = read_dataset(folder, "IMAGE_CLASSIFICATION", dataset_formats())
    assert near.read() == link.read() == b"near"
    for other in others:
        with pytest.raises(FileNotFoundError, match="or a link that leads out of it"):
            other.read()
    image = image_from_folder(folder / "images")
    assert (image("near"), image("link.png"), image("out.png")) == (b"near", b"near", None)
