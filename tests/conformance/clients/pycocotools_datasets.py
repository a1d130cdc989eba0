"""pycocotools reads instances and results, and draws masks with their holes."""

import contextlib
import io
from pathlib import Path
from typing import Any

from plain_checks import check, described, near
from pycocotools.coco import COCO

FOLDER = Path(described["folder"])


def coco(task: str, split: str) -> Any:
    """Read a file of instances with its results."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(FOLDER / f"coco-{task}" / f"annotations_{split}.json"))
        results = truth.loadRes(str(FOLDER / f"coco-{task}" / f"results_{split}.json"))
    return truth, results


@check("instances and results")
def _() -> None:
    task, seen = "OBJECT_DETECTION", 0
    for split in ("train", "val"):
        truth, results = coco(task, split)
        for image in truth.loadImgs(truth.getImgIds()):
            expected = described["truths"][task][Path(image["file_name"]).stem]
            found = truth.loadAnns(truth.getAnnIds(imgIds=image["id"]))
            names = [truth.cats[item["category_id"]]["name"] for item in found]
            assert names == [item["label"] for item in expected]
            for annotation, item in zip(found, expected, strict=True):
                left, top, width, height = annotation["bbox"]
                box = (left, top, left + width, top + height)
                assert near(box, [item[key] for key in ("xmin", "ymin", "xmax", "ymax")], 1e-9)
            (result,) = results.loadAnns(results.getAnnIds(imgIds=image["id"]))
            assert result["score"] == 0.25
            assert near(result["bbox"], (1.5, 2, 31.623456, 48), 1e-9)
            seen += 1
    assert seen == len(described["truths"][task])


@check("masks have their holes")
def _() -> None:
    truth, _ = coco("IMAGE_SEGMENTATION", "train")
    for image in truth.loadImgs(truth.getImgIds()):
        masks = [
            truth.annToMask(item) for item in truth.loadAnns(truth.getAnnIds(imgIds=image["id"]))
        ]
        if len(masks) == 3:
            assert masks[0][4, 4] == 0
            assert masks[0][2, 2] == 1
            assert masks[2].sum() == masks[0].sum() + masks[1].sum()
