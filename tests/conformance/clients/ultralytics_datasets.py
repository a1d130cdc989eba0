"""Ultralytics' own loader checks and reads the labels of each of its tasks."""

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"YOLO_OFFLINE": "1", "YOLO_CONFIG_DIR": tempfile.mkdtemp(), "YOLO_VERBOSE": "False"}

from plain_checks import check, described, near, oriented_corners
from ultralytics.data.dataset import YOLODataset
from ultralytics.data.utils import check_det_dataset

FOLDER = Path(described["folder"])


def labels(form: str, task: str, kind: str) -> dict[str, Any]:
    """Load both splits; return the labels by id, and check that none was refused."""
    data = check_det_dataset(str(FOLDER / f"{form}-{task}" / "data.yaml"), autodownload=False)
    loaded = {}
    for split in ("train", "val"):
        dataset = YOLODataset(img_path=data[split], data=data, task=kind, augment=False)
        loaded |= {Path(label["im_file"]).stem: label for label in dataset.labels}
    expected = described["truths"][task]
    assert loaded.keys() == expected.keys()  # what is refused is left out
    for id_, label in loaded.items():
        names = [data["names"][int(number)] for number in label["cls"].ravel()]
        assert names == [item["label"] for item in expected[id_]]
    return loaded


@check("detect")
def _() -> None:
    width, height = described["size_wh"]
    for id_, label in labels("yolo", "OBJECT_DETECTION", "detect").items():
        for (cx, cy, w, h), item in zip(
            label["bboxes"], described["truths"]["OBJECT_DETECTION"][id_], strict=True
        ):
            box = (
                (cx - w / 2) * width,
                (cy - h / 2) * height,
                (cx + w / 2) * width,
                (cy + h / 2) * height,
            )
            assert near(box, [item[key] for key in ("xmin", "ymin", "xmax", "ymax")])


@check("obb")
def _() -> None:
    width, height = described["size_wh"]
    for id_, label in labels("yolo-obb", "ORIENTED_OBJECT_DETECTION", "obb").items():
        for corners, item in zip(
            label["segments"], described["truths"]["ORIENTED_OBJECT_DETECTION"][id_], strict=True
        ):
            assert corners.shape == (4, 2)
            assert near((corners * (width, height)).ravel(), oriented_corners(item, width, height))


@check("segment")
def _() -> None:
    for id_, label in labels("yolo-seg", "IMAGE_SEGMENTATION", "segment").items():
        counts = [
            sum(len(ring) + 2 * (len(item["contour"]) > 1) for ring in item["contour"])
            for item in described["truths"]["IMAGE_SEGMENTATION"][id_]
        ]
        assert [len(points) for points in label["segments"]] == counts
