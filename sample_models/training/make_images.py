"""Write the sample images: unseen scenes as files, with ground truth and metadata.

Run from the repository root: `python -m sample_models.training.make_images`. The scenes come from
a stream of their own, which neither training nor evaluation touches. `annotations.jsonl` and
`metadata.jsonl` have the form of Chariot's dataset archives.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import ExifTags
from PIL import Image as PillowImage

from sample_models.training.scenes import (
    SEVERAL_SHAPES,
    SHAPES,
    SINGLE_SHAPE,
    Image,
    Recipe,
    Scene,
    Stream,
    draw_scene,
    scene_rng,
)

# A fine grain is costly in a JPEG file and would only hide the shapes' edges.
GRAIN_SIGMA = (0.0, 1.2)
JPEG_QUALITY = 88
WEBP_QUALITY = 85
ROTATE_TO_SHOW = 6
"""EXIF orientation: the stored pixels must be turned by 90 degrees clockwise to be upright."""


@dataclass(frozen=True)
class Picture:
    """One file to write.

    Attributes:
        name: file name; the suffix decides the format.
        size_wh: width and height in pixels, as a viewer shows it.
        recipe: what the scene contains.
        turned: store the pixels lying on their side, with an EXIF orientation to undo it.
    """

    name: str
    size_wh: tuple[int, int]
    recipe: Recipe
    turned: bool = False


_JPEG_SIZES = ((640, 480), (800, 450), (480, 640), (512, 512), (720, 405), (450, 600))
_SPECIAL: dict[tuple[str, int], tuple[str, tuple[int, int]]] = {
    ("classification", 4): ("png", (240, 180)),
    ("classification", 9): ("webp", (512, 384)),
    ("detection", 5): ("png", (320, 240)),
    ("detection", 13): ("webp", (640, 360)),
    ("detection", 19): ("png", (256, 256)),
}
_TURNED = {("classification", 7), ("detection", 3), ("detection", 16)}


def main() -> None:
    """Draw and write both folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("sample_models/images"))
    options = parser.parse_args()
    cv2.setNumThreads(1)
    first = 0
    for folder, recipes in (
        ("classification", [replace(SINGLE_SHAPE, shapes=(SHAPES[k % 5],)) for k in range(12)]),
        ("detection", [SEVERAL_SHAPES] * 24),
    ):
        write_folder(options.output / folder, list(plan(folder, recipes)), options.seed, first)
        first += len(recipes)


def plan(folder: str, recipes: list[Recipe]) -> Iterator[Picture]:
    """Choose name, format and size of each file of a folder."""
    for index, recipe in enumerate(recipes):
        usual = ("jpg", _JPEG_SIZES[index % len(_JPEG_SIZES)])
        suffix, size_wh = _SPECIAL.get((folder, index), usual)
        yield Picture(
            name=f"scene_{index + 1:02d}.{suffix}",
            size_wh=size_wh,
            recipe=replace(recipe, grain_sigma=GRAIN_SIGMA),
            turned=(folder, index) in _TURNED,
        )


def write_folder(folder: Path, pictures: list[Picture], seed: int, first: int) -> None:
    """Write the files of one folder with their ground truth and metadata.

    Args:
        folder: created where missing; files of the same name are replaced.
        pictures: what to write.
        seed: seed of all scenes.
        first: number of the first scene in the stream.
    """
    folder.mkdir(parents=True, exist_ok=True)
    annotations, metadata = [], []
    for index, picture in enumerate(pictures):
        rng = scene_rng(seed, Stream.IMAGES, first + index)
        scene = draw_scene(rng, picture.size_wh, picture.recipe)
        save(scene.image, folder / picture.name, turned=picture.turned)
        boxes = picture.recipe.count[1] > 1
        annotations.append({"path": picture.name, "annotations": annotate(scene, boxes=boxes)})
        metadata.append({"path": picture.name, "metadata": invent_metadata(rng, index)})
    write_lines(folder / "annotations.jsonl", annotations)
    write_lines(folder / "metadata.jsonl", metadata)


def annotate(scene: Scene, *, boxes: bool) -> list[dict[str, Any]]:
    """Give the annotations of a scene: class labels, with boxes in pixels where asked for."""
    given: list[dict[str, Any]] = []
    for one in scene.objects:
        annotation: dict[str, Any] = {"class_label": one.shape}
        if boxes:
            xmin, ymin, xmax, ymax = (round(side, 2) for side in one.box)
            annotation["bbox"] = {"xmin": xmin, "xmax": xmax, "ymin": ymin, "ymax": ymax}
        given.append(annotation)
    return given


def invent_metadata(rng: np.random.Generator, index: int) -> dict[str, Any]:
    """Invent what a camera might have noted: nothing of it depends on the scene."""
    return {
        "camera_id": str(rng.choice(["north", "south", "east", "harbour"])),
        "altitude": round(float(rng.uniform(40, 220)), 1),
        "location": {"building": str(rng.choice(["A", "B", "C"])), "floor": int(rng.integers(6))},
        "weather": str(rng.choice(["clear", "fog", "rain"], p=[0.6, 0.2, 0.2])),
        "frame_number": 1000 + 40 * index + int(rng.integers(40)),
    }


def save(image: Image, path: Path, *, turned: bool) -> None:
    """Write uint8 (H, W, 3) RGB as JPEG, PNG or WEBP, by the suffix of the path."""
    picture = PillowImage.fromarray(image)
    exif = PillowImage.Exif()
    if turned:
        picture = picture.transpose(PillowImage.Transpose.ROTATE_90)
        exif[ExifTags.Base.Orientation] = ROTATE_TO_SHOW
    quality = WEBP_QUALITY if path.suffix == ".webp" else JPEG_QUALITY
    picture.save(path, quality=quality, optimize=True, exif=exif)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
