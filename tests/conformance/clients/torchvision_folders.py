"""torchvision's ImageFolder reads the folders of labels of each split."""

import json
from pathlib import Path
from urllib.parse import unquote

from plain_checks import check, described
from torchvision.datasets import ImageFolder

FOLDER = Path(described["folder"])
TASK = "IMAGE_CLASSIFICATION"


def compare(kind: str, name: str) -> None:
    """Compare label, size and split of each image of a dataset."""
    root, expected = FOLDER / name, described[kind][TASK]
    lines = map(json.loads, (root / "quadriga-images.jsonl").read_text().splitlines())
    splits = {about["inference_id"]: about["split"] for about in lines}
    seen = []
    for split in ("train", "val"):
        dataset = ImageFolder(str(root / split))
        for (path, number), (image, target) in zip(dataset.samples, dataset, strict=True):
            id_ = Path(path).stem
            (annotation,) = expected[id_]
            assert unquote(dataset.classes[number]) == annotation["label"]
            assert target == number
            assert image.size == tuple(described["size_wh"])
            assert splits[id_] == split
            seen.append(id_)
    assert sorted(seen) == sorted(expected)


@check("truths")
def _() -> None:
    compare("truths", f"imagefolder-{TASK}")


@check("predictions")
def _() -> None:
    compare("predictions", f"imagefolder-{TASK}-predictions")
