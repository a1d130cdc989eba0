"""supervision's readers of YOLO, COCO and folders of labels."""

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import supervision as sv
from plain_checks import check, described, near, oriented_corners

FOLDER = Path(described["folder"])
BOX = ("xmin", "ymin", "xmax", "ymax")


def yolo(form: str, task: str, **options: Any) -> dict[str, Any]:
    """Read both splits; return the detections by id, and the names of the classes."""
    detections = {}
    for split in ("train", "val"):
        root = FOLDER / f"{form}-{task}"
        dataset = sv.DetectionDataset.from_yolo(
            images_directory_path=str(root / "images" / split),
            annotations_directory_path=str(root / "labels" / split),
            data_yaml_path=str(root / "data.yaml"),
            **options,
        )
        detections |= {Path(path).stem: (dataset.classes, found) for path, _, found in dataset}
    assert detections.keys() == described["truths"][task].keys()
    return detections


@check("boxes of YOLO")
def _() -> None:
    for id_, (classes, found) in yolo("yolo", "OBJECT_DETECTION").items():
        truth = described["truths"]["OBJECT_DETECTION"][id_]
        assert [classes[number] for number in found.class_id] == [item["label"] for item in truth]
        for box, item in zip(found.xyxy, truth, strict=True):
            assert near(box, [item[key] for key in BOX])


@check("oriented boxes of YOLO")
def _() -> None:
    for id_, (classes, found) in yolo("yolo-obb", "ORIENTED_OBJECT_DETECTION", is_obb=True).items():
        truth = described["truths"]["ORIENTED_OBJECT_DETECTION"][id_]
        assert [classes[number] for number in found.class_id] == [item["label"] for item in truth]
        for corners, item in zip(found.data.get("xyxyxyxy", ()), truth, strict=True):
            assert near(corners.ravel(), oriented_corners(item, *described["size_wh"]))


@check("polygons of YOLO, their holes by even-odd")
def _() -> None:
    areas = {}
    for id_, (_, found) in yolo("yolo-seg", "IMAGE_SEGMENTATION", force_masks=True).items():
        assert len(found) == len(described["truths"]["IMAGE_SEGMENTATION"][id_])
        if len(found) == 3:
            areas[id_] = found.mask.reshape(3, -1).sum(axis=1).tolist()
    assert {tuple(area) for area in areas.values()} == {(80, 66, 166)} or len(areas) > 5, areas


@check("boxes of COCO")
def _() -> None:
    root, task = FOLDER / "coco-OBJECT_DETECTION", "OBJECT_DETECTION"
    seen = set()
    for split in ("train", "val"):
        dataset = sv.DetectionDataset.from_coco(
            images_directory_path=str(root / "images" / split),
            annotations_path=str(root / f"annotations_{split}.json"),
        )
        for path, _, found in dataset:
            truth = described["truths"][task][Path(path).stem]
            seen.add(Path(path).stem)
            labels = [dataset.classes[number] for number in found.class_id]
            assert labels == [item["label"] for item in truth]
            for box, item in zip(found.xyxy, truth, strict=True):
                assert near(box, [item[key] for key in BOX])
    assert seen == described["truths"][task].keys()


@check("folders of labels")
def _() -> None:
    root, task = FOLDER / "imagefolder-IMAGE_CLASSIFICATION", "IMAGE_CLASSIFICATION"
    seen = set()
    for split in ("train", "val"):
        dataset = sv.ClassificationDataset.from_folder_structure(str(root / split))
        for path, _, found in dataset:
            (item,) = described["truths"][task][Path(path).stem]
            (number,) = found.class_id
            assert unquote(dataset.classes[number]) == item["label"]
            seen.add(Path(path).stem)
    assert seen == described["truths"][task].keys()
