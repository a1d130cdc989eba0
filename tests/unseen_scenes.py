"""The scenes that the sample models were measured on, as datasets in Chariot's layout.

No model has seen them: they are of a stream of their own under each model's seed.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from quadriga.tasks.geometry import rings
from sample_models.training.aerial_scenes import (
    CRAFT,
    AerialRecipe,
    aerial_boxes,
    draw_aerial_scene,
)
from sample_models.training.questions import QUESTIONS, answer, draw_clear_scene
from sample_models.training.scenes import (
    SEVERAL_SHAPES,
    SINGLE_SHAPE,
    Image,
    Stream,
    cover,
    draw_scene,
    draw_size_wh,
    scene_rng,
)
from tests.server_process import SAMPLE_MODELS

Annotations = list[dict[str, Any]]
Drawn = tuple[Image, Annotations]
EDGES = ("xmin", "ymin", "xmax", "ymax")


def figures(model: str) -> dict[str, Any]:
    """Read what was measured when a model was trained."""
    measured: dict[str, Any] = json.loads((SAMPLE_MODELS / model / "figures.json").read_text())
    return measured


def write_unseen(model: str, folder: Path, count: int | None = None) -> int:
    """Write the scenes of a model, or the first so many; returns how many."""
    measured = figures(model)
    count = measured["samples"] if count is None else count
    folder.mkdir(parents=True)
    with (folder / "annotations.jsonl").open("w") as file:
        for index, (image, annotations) in zip(
            range(count), DRAWN[model](measured["seed"]), strict=False
        ):
            path = f"{index:04d}.png"
            pixels = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
            cv2.imwrite(str(folder / path), pixels, [cv2.IMWRITE_PNG_COMPRESSION, 1])
            file.write(json.dumps({"path": path, "annotations": annotations}) + "\n")
    return count


def _streams(seed: int) -> Iterator[tuple[int, np.random.Generator]]:
    index = 0
    while True:
        yield index, scene_rng(seed, Stream.EVALUATION, index)
        index += 1


def _labelled(seed: int) -> Iterator[Drawn]:
    for _, rng in _streams(seed):
        scene = draw_scene(rng, draw_size_wh(rng, (96, 800)), SINGLE_SHAPE)
        yield scene.image, [{"class_label": scene.objects[0].shape}]


def _boxed(seed: int) -> Iterator[Drawn]:
    for _, rng in _streams(seed):
        scene = draw_scene(rng, draw_size_wh(rng, (160, 800)), SEVERAL_SHAPES)
        boxes = [dict(zip(EDGES, scene_object.box, strict=True)) for scene_object in scene.objects]
        yield (
            scene.image,
            [
                {"class_label": scene_object.shape, "bbox": box}
                for scene_object, box in zip(scene.objects, boxes, strict=True)
            ],
        )


def _oriented(seed: int) -> Iterator[Drawn]:
    for _, rng in _streams(seed):
        scene = draw_aerial_scene(rng, draw_size_wh(rng, (160, 800)), AerialRecipe())
        height, width = scene.image.shape[:2]
        truth = aerial_boxes(scene)
        boxes = truth.boxes / np.array([width, height, width, height, 1.0])
        yield (
            scene.image,
            [
                {
                    "class_label": CRAFT[label],
                    "oriented_bbox": dict(zip(("cx", "cy", "w", "h", "r"), box, strict=True)),
                }
                for label, box in zip(truth.labels, boxes.tolist(), strict=True)
            ],
        )


def _outlined(seed: int) -> Iterator[Drawn]:
    for _, rng in _streams(seed):
        scene = draw_scene(rng, draw_size_wh(rng, (96, 640)), SEVERAL_SHAPES)
        annotations = []
        for scene_object in scene.objects:
            mask = np.zeros(scene.image.shape[:2], np.uint8)
            rows, columns, coverage = cover(scene_object.polygon, scene.image.shape[1::-1])
            mask[rows, columns] = coverage >= 128
            contour = [[{"x": x, "y": y} for x, y in ring.tolist()] for ring in rings(mask)]
            annotations.append({"class_label": scene_object.shape, "contour": contour})
        yield scene.image, annotations


def _asked(seed: int) -> Iterator[Drawn]:
    for index, rng in _streams(seed):
        scene = draw_clear_scene(rng)
        yield (
            scene.image,
            [
                {"context": wordings[index % len(wordings)], "generated_text": answer(kind, scene)}
                for kind, wordings in QUESTIONS.items()
            ],
        )


DRAWN: dict[str, Callable[[int], Iterator[Drawn]]] = {
    "shapes-classifier": _labelled,
    "shapes-detector": _boxed,
    "ships-oriented-detector": _oriented,
    "shapes-segmenter": _outlined,
    "shapes-image-text": _asked,
}
