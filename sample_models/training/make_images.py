"""Write the sample images: unseen scenes as files, with ground truth and metadata.

Run from the repository root: `python -m sample_models.training.make_images`. The scenes come from
a stream of their own, which neither training nor evaluation touches. `annotations.jsonl` and
`metadata.jsonl` have the form of Chariot's dataset archives.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import ExifTags
from PIL import Image as PillowImage

from sample_models.training.aerial_scenes import (
    CRAFT,
    AerialRecipe,
    aerial_boxes,
    draw_aerial_scene,
)
from sample_models.training.questions import QUESTIONS, answer, draw_clear_scene
from sample_models.training.questions import RECIPE as QUESTIONED
from sample_models.training.scenes import (
    SEVERAL_SHAPES,
    SHAPES,
    SINGLE_SHAPE,
    Image,
    Recipe,
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


Annotations = list[dict[str, Any]]
Draw = Callable[[np.random.Generator, tuple[int, int]], tuple[Image, Annotations]]
"""Draws an image of the given width and height in pixels, and gives its annotations."""


@dataclass(frozen=True)
class Picture:
    """One file to write.

    Attributes:
        name: file name; the suffix decides the format.
        size_wh: width and height in pixels, as a viewer shows it.
        draw: what the scene contains, and what is said of it.
        turned: store the pixels lying on their side, with an EXIF orientation to undo it.
    """

    name: str
    size_wh: tuple[int, int]
    draw: Draw
    turned: bool = False


_JPEG_SIZES = ((640, 480), (800, 450), (480, 640), (512, 512), (720, 405), (450, 600))
_SPECIAL: dict[tuple[str, int], tuple[str, tuple[int, int]]] = {
    ("classification", 4): ("png", (240, 180)),
    ("classification", 9): ("webp", (512, 384)),
    ("detection", 5): ("png", (320, 240)),
    ("detection", 13): ("webp", (640, 360)),
    ("detection", 19): ("png", (256, 256)),
    ("oriented", 5): ("png", (320, 240)),
    ("oriented", 8): ("webp", (480, 640)),
    ("segmentation", 4): ("png", (320, 180)),
    ("segmentation", 6): ("webp", (512, 384)),
    **{
        ("image-text", index): (suffix, size_wh)
        for index, (suffix, size_wh) in enumerate(
            (
                *(("jpg", (400, 300)), ("jpg", (384, 384)), ("jpg", (300, 400))),
                *(("png", (240, 180)), ("jpg", (400, 225)), ("webp", (360, 360))),
                *(("jpg", (225, 400)), ("jpg", (400, 267))),
            )
        )
    },
}
_TURNED = {
    *(("classification", 7), ("detection", 3), ("detection", 16)),
    *(("oriented", 0), ("segmentation", 2)),
}
_DIAGONAL = 1
"""The one of the oriented scenes, 16:9, whose first ship heads to the lower right."""


def main() -> None:
    """Draw and write all folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("sample_models/images"))
    options = parser.parse_args()
    cv2.setNumThreads(1)
    diagonal = AerialRecipe(count=(3, 5), grain_sigma=GRAIN_SIGMA, first_heading_rad=math.pi / 4)
    aerial = AerialRecipe(count=(2, 6), grain_sigma=GRAIN_SIGMA)
    folders: dict[str, list[Draw]] = {
        "classification": [
            partial(draw_labelled, replace(SINGLE_SHAPE, shapes=(SHAPES[k % 5],)))
            for k in range(12)
        ],
        "detection": [draw_boxed] * 24,
        "oriented": [
            partial(draw_oriented, diagonal if k == _DIAGONAL else aerial) for k in range(12)
        ],
        "segmentation": [draw_contoured] * 8,
        "image-text": [draw_asked] * 8,
    }
    first = 0
    for folder, draws in folders.items():
        write_folder(options.output / folder, list(plan(folder, draws)), options.seed, first)
        first += len(draws)


def plan(folder: str, draws: list[Draw]) -> Iterator[Picture]:
    """Choose name, format and size of each file of a folder."""
    for index, draw in enumerate(draws):
        usual = ("jpg", _JPEG_SIZES[index % len(_JPEG_SIZES)])
        suffix, size_wh = _SPECIAL.get((folder, index), usual)
        name = f"scene_{index + 1:02d}.{suffix}"
        yield Picture(name, size_wh, draw, turned=(folder, index) in _TURNED)


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
        image, annotation = picture.draw(rng, picture.size_wh)
        save(image, folder / picture.name, turned=picture.turned)
        annotations.append({"path": picture.name, "annotations": annotation})
        metadata.append({"path": picture.name, "metadata": invent_metadata(rng, index)})
    write_lines(folder / "annotations.jsonl", annotations)
    write_lines(folder / "metadata.jsonl", metadata)


def draw_labelled(
    recipe: Recipe, rng: np.random.Generator, size_wh: tuple[int, int]
) -> tuple[Image, Annotations]:
    """Draw shapes, and name their classes."""
    scene = draw_scene(rng, size_wh, replace(recipe, grain_sigma=GRAIN_SIGMA))
    return scene.image, [{"class_label": item.shape} for item in scene.objects]


def draw_boxed(rng: np.random.Generator, size_wh: tuple[int, int]) -> tuple[Image, Annotations]:
    """Draw several shapes, with boxes in pixels."""
    scene = draw_scene(rng, size_wh, replace(SEVERAL_SHAPES, grain_sigma=GRAIN_SIGMA))
    annotations: Annotations = []
    for item in scene.objects:
        xmin, ymin, xmax, ymax = (round(side, 2) for side in item.box)
        box = {"xmin": xmin, "xmax": xmax, "ymin": ymin, "ymax": ymax}
        annotations.append({"class_label": item.shape, "bbox": box})
    return scene.image, annotations


def draw_oriented(
    recipe: AerialRecipe, rng: np.random.Generator, size_wh: tuple[int, int]
) -> tuple[Image, Annotations]:
    """Draw craft from above; boxes turned in pixels, then divided by width and height."""
    scene = draw_aerial_scene(rng, size_wh, recipe)
    truth = aerial_boxes(scene)
    scale = np.array([*size_wh, *size_wh, 1.0])
    annotations: Annotations = []
    for label, box in zip(truth.labels, truth.boxes / scale, strict=True):
        sides = dict(
            zip(("cx", "cy", "w", "h", "r"), (round(x, 5) for x in box.tolist()), strict=True)
        )
        annotations.append({"class_label": CRAFT[label], "oriented_bbox": sides})
    return scene.image, annotations


def draw_contoured(rng: np.random.Generator, size_wh: tuple[int, int]) -> tuple[Image, Annotations]:
    """Draw several shapes, with their outlines in pixels."""
    scene = draw_scene(rng, size_wh, replace(SEVERAL_SHAPES, grain_sigma=GRAIN_SIGMA))
    annotations: Annotations = []
    for item in scene.objects:
        outline = [{"x": round(x, 2), "y": round(y, 2)} for x, y in item.polygon.tolist()]
        annotations.append({"class_label": item.shape, "contour": [outline]})
    return scene.image, annotations


def draw_asked(rng: np.random.Generator, size_wh: tuple[int, int]) -> tuple[Image, Annotations]:
    """Draw shapes, and answer one question of each kind."""
    scene = draw_clear_scene(rng, size_wh, replace(QUESTIONED, grain_sigma=GRAIN_SIGMA))
    return scene.image, [
        {"context": wordings[0], "generated_text": answer(kind, scene)}
        for kind, wordings in QUESTIONS.items()
    ]


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
