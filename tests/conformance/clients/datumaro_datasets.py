"""Datumaro's readers of CVAT, DOTA and folders of labels; what they read, Datumaro writes again, for an import."""

import json
import math
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from datumaro import Dataset, Environment
from plain_checks import check, described, near

FOLDER = Path(described["folder"])
HUNDREDTHS = 0.0051  # Datumaro rounds pixels and degrees to these
FORMS = {"cvat": "cvat", "dota": "dota", "imagefolder": "imagenet_with_subset_dirs"}
DIFFICULT = {"cvat": "difficult", "dota": "difficulty"}


def load(root: Path, form: str) -> Any:
    """Load all splits of a dataset as `Dataset.import_from` does, which refuses splits that lack some of the labels."""
    environment = Environment()
    parts = [
        environment.make_extractor(source["format"], source["url"], **source["options"])
        for source in environment.importers[FORMS[form]]()(str(root))
    ]
    return Dataset.from_extractors(*parts, merge_policy="union")


def read(form: str, task: str, kind: str = "truths") -> list[tuple[dict[str, Any], Any]]:
    """Return each expected annotation with the one that was read, after all that forms have in common is compared."""
    expected = described[kind][task]
    root = FOLDER / f"{form}-{task}{'' if kind == 'truths' else f'-{kind}'}"
    lines = map(json.loads, (root / "quadriga-images.jsonl").read_text().splitlines())
    splits = {about["inference_id"]: about["split"] for about in lines}
    assert {*splits.values()} == {"train", "val"}
    dataset = load(root, form)
    (categories,) = dataset.categories().values()
    pairs, seen = [], []
    for item in dataset:
        id_ = item.id.rpartition(":")[2]  # the label stands in front in folders of labels
        assert item.subset == splits[id_]
        width, height = described["size_wh"]
        assert item.media.size == (height, width)
        assert item.media.data.shape == (height, width, 3)
        names = [categories[annotation.label].name for annotation in item.annotations]
        labels = names if form == "cvat" else [*map(unquote, names)]
        assert labels == [annotation["label"] for annotation in expected[id_]], labels
        flags = {annotation.attributes.get(DIFFICULT.get(form)) for annotation in item.annotations}
        is_difficult = kind == "truths" and id_ == described["difficult_id"] and form in DIFFICULT
        assert {bool(flag) for flag in flags} <= {is_difficult}, flags
        pairs += zip(expected[id_], item.annotations, strict=True)
        seen.append(id_)
    assert sorted(seen) == sorted(expected)
    if kind == "truths":
        written = str(Path(described["written"]) / f"{form}-{task}")
        dataset.export(written, FORMS[form], save_media=True)
    return pairs


def edges(box: dict[str, Any]) -> list[float]:
    return [box[key] for key in ("xmin", "ymin", "xmax", "ymax")]


def has_oriented_box(annotation: Any, expected: dict[str, Any]) -> bool:
    """Compare a rotated box: centre, width and height in pixels, degrees within a turn."""
    width, height = described["size_wh"]
    sizes = zip(("cx", "cy", "w", "h"), (width, height) * 2, strict=True)
    values = [expected[key] * size for key, size in sizes]
    turned = math.remainder(annotation.r - math.degrees(expected["r"]), 360)
    return (
        annotation.type.name == "rotated_bbox"
        and near(annotation.points[:4], values, HUNDREDTHS)
        and abs(turned) < HUNDREDTHS
    )


@check("boxes of CVAT")
def _() -> None:
    for expected, annotation in read("cvat", "OBJECT_DETECTION"):
        assert annotation.type.name == "bbox"
        assert near(annotation.points, edges(expected), HUNDREDTHS)


@check("rotated boxes of CVAT")
def _() -> None:
    for expected, annotation in read("cvat", "ORIENTED_OBJECT_DETECTION"):
        assert has_oriented_box(annotation, expected), (annotation.points, expected)


@check("polygons of CVAT, whose rings are one line")
def _() -> None:
    for expected, annotation in read("cvat", "IMAGE_SEGMENTATION"):
        assert annotation.type.name == "polygon"
        rings = [[(point["x"], point["y"]) for point in ring] for ring in expected["contour"]]
        line = [*zip(annotation.points[::2], annotation.points[1::2], strict=True)]
        ways = [[*ring, ring[0], rings[0][0]] for ring in rings]  # along each and back
        assert line == (rings[0] if len(rings) == 1 else [point for way in ways for point in way])


@check("tags of CVAT")
def _() -> None:
    for _, annotation in read("cvat", "IMAGE_CLASSIFICATION"):
        assert annotation.type.name == "label"


@check("predictions of CVAT have their score")
def _() -> None:
    for expected, annotation in read("cvat", "OBJECT_DETECTION", "predictions"):
        assert near(annotation.points, edges(expected), HUNDREDTHS)
        assert annotation.attributes["score"] == expected["score"]


@check("CVAT without splits")
def _() -> None:
    dataset = Dataset.import_from(str(FOLDER / "cvat-whole"), "cvat")
    counts = {item.id: len(item.annotations) for item in dataset}
    truths = described["truths"]["OBJECT_DETECTION"]
    assert counts == {id_: len(annotations) for id_, annotations in truths.items()}


@check("oriented boxes of DOTA")
def _() -> None:
    for kind in ("truths", "predictions"):
        for expected, annotation in read("dota", "ORIENTED_OBJECT_DETECTION", kind):
            assert has_oriented_box(annotation, expected), (annotation.points, expected)


@check("boxes of DOTA")
def _() -> None:
    for expected, annotation in read("dota", "OBJECT_DETECTION"):
        left, top, right, bottom = edges(expected)
        box = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top, 0]
        assert near(annotation.points, box, HUNDREDTHS)


@check("folders of labels")
def _() -> None:
    for kind in ("truths", "predictions"):
        for _, annotation in read("imagefolder", "IMAGE_CLASSIFICATION", kind):
            assert annotation.type.name == "label"
