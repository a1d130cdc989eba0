"""Measure the models beyond their training: empty scenes, smaller and larger objects.

Run from the repository root: `python -m sample_models.training.measure_limits`. Torch is not
needed.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from sample_models.training.aerial_scenes import (
    CRAFT,
    AerialRecipe,
    AerialScene,
    aerial_boxes,
    draw_aerial_scene,
)
from sample_models.training.measurement import (
    SCORE_THRESHOLD,
    Figures,
    classify,
    detect,
    detect_oriented,
    measure_detector,
    measure_oriented,
    measure_segmenter,
    open_session,
    scene_boxes,
    segment,
)
from sample_models.training.preprocessing import stretch, to_tensor
from sample_models.training.questions import QUESTIONS, answer, draw_clear_scene
from sample_models.training.questions import RECIPE as QUESTIONED
from sample_models.training.scenes import (
    SEVERAL_SHAPES,
    SHAPES,
    SINGLE_SHAPE,
    Recipe,
    Scene,
    Stream,
    draw_class_map,
    draw_scenes,
    draw_size_wh,
    scene_rng,
)
from sample_models.training.text_generation import Answerer, measure_answers

LONG_SIDE_PX = (160, 800)
SCENES = 200
EMPTY = replace(SINGLE_SHAPE, count=(0, 0))
SINGLE_DIAMETERS = ((0.15, 0.2), (0.2, 0.25), (0.25, 0.3), (0.3, 0.35), (0.35, 0.85))
SEVERAL_DIAMETERS = ((0.1, 0.13), (0.13, 0.17), (0.17, 0.2), (0.2, 0.45), (0.45, 0.6))
CLOSE_UP_DIAMETERS = ((0.45, 0.6), (0.6, 0.9))
QUESTIONED_DIAMETERS = ((0.17, 0.3), (0.3, 0.6))
CRAFT_LENGTHS = ((0.12, 0.16), (0.16, 0.2), (0.2, 0.28), (0.28, 0.6), (0.6, 0.85))


def main() -> None:
    """Print the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=50)
    parser.add_argument("--models", type=Path, default=Path("sample_models"))
    options = parser.parse_args()
    cv2.setNumThreads(1)
    figures = {
        "classifier": classifier_limits(
            options.models / "shapes-classifier" / "model.onnx", options.seed
        ),
        "detector": detector_limits(
            options.models / "shapes-detector" / "model.onnx", options.seed
        ),
        "segmenter": segmenter_limits(
            options.models / "shapes-segmenter" / "model.onnx", options.seed
        ),
        "oriented": oriented_limits(
            options.models / "ships-oriented-detector" / "model.onnx", options.seed
        ),
    }
    figures["image-text"] = image_text_limits(options.models / "shapes-image-text", options.seed)
    print(json.dumps(figures, indent=2))


def classifier_limits(path: Path, seed: int) -> Figures:
    """Measure accuracy by diameter, and how sure the classifier is where nothing is to be seen."""
    session = open_session(path)
    accuracy = {}
    for diameter in SINGLE_DIAMETERS:
        scenes = unseen(seed, replace(SINGLE_SHAPE, diameter=diameter))
        right = [
            classify(session, labelled_scene.image) == truth(labelled_scene)
            for labelled_scene in scenes
        ]
        accuracy[f"{diameter[0]}..{diameter[1]}"] = round(float(np.mean(right)), 4)
    graph_input = session.get_inputs()[0]
    size_wh = (graph_input.shape[3], graph_input.shape[2])
    surest = []
    for scene in unseen(seed, EMPTY):
        tensor = to_tensor(stretch(scene.image, size_wh)[None])
        logits = np.asarray(session.run(None, {graph_input.name: tensor})[0], dtype=np.float64)[0]
        surest.append(1 / np.exp(logits - logits.max()).sum())
    return {
        "accuracy_by_diameter": accuracy,
        "top_probability_on_empty": {
            "median": round(float(np.median(surest)), 3),
            "max": round(float(np.max(surest)), 3),
        },
    }


def detector_limits(path: Path, seed: int) -> Figures:
    """Measure by diameter, for several shapes and for one, and count boxes in empty scenes."""
    session = open_session(path)
    empty = unseen(seed, EMPTY)
    detection_count = sum(
        len(detect(session, scene.image, SCORE_THRESHOLD).boxes) for scene in empty
    )
    return {
        "several_shapes_by_diameter": by_diameter(path, seed, SEVERAL_SHAPES, SEVERAL_DIAMETERS),
        "single_shape_by_diameter": by_diameter(path, seed, SINGLE_SHAPE, CLOSE_UP_DIAMETERS),
        "boxes_on_empty": detection_count,
    }


def segmenter_limits(path: Path, seed: int) -> Figures:
    """Measure mean IoU by diameter, and count the empty scenes in which it sees a shape."""
    labels = ("background", *SHAPES)
    miou = {}
    for recipe, diameters in (
        (SEVERAL_SHAPES, SEVERAL_DIAMETERS),
        (SINGLE_SHAPE, CLOSE_UP_DIAMETERS),
    ):
        number = "one" if recipe is SINGLE_SHAPE else "several"
        for diameter in diameters:
            scenes = unseen(seed, replace(recipe, diameter=diameter))
            samples = (
                (scene.image, draw_class_map(scene, labels, scene.image.shape[1::-1]))
                for scene in scenes
            )
            name = f"{number} of {diameter[0]}..{diameter[1]}"
            miou[name] = measure_segmenter(path, samples, labels)["miou"]
    session = open_session(path)
    seen = [bool(segment(session, scene.image).any()) for scene in unseen(seed, EMPTY)]
    return {"miou_by_diameter": miou, "empty_scenes_with_a_shape": sum(seen)}


def oriented_limits(path: Path, seed: int) -> Figures:
    """Measure mAP50, precision and recall by length, and count boxes in empty scenes."""
    figures = {}
    for length in CRAFT_LENGTHS:
        scenes = draw_aerial_scenes(seed, AerialRecipe(length=length))
        measured = measure_oriented(
            path, ((scene.image, aerial_boxes(scene)) for scene in scenes), CRAFT
        )
        figures[f"{length[0]}..{length[1]}"] = {
            "map50": measured["map50"],
            **measured["at_default_thresholds"],
        }
    session = open_session(path)
    empty = draw_aerial_scenes(seed, AerialRecipe(count=(0, 0)))
    detection_count = sum(
        len(detect_oriented(session, scene.image, SCORE_THRESHOLD).boxes) for scene in empty
    )
    return {"by_length": figures, "boxes_on_empty": detection_count}


def image_text_limits(folder: Path, seed: int) -> Figures:
    """Measure the answers by diameter and for more shapes, and what is said of empty scenes."""
    recipes = {
        f"{low}..{high}": replace(QUESTIONED, diameter=(low, high))
        for low, high in QUESTIONED_DIAMETERS
    }
    recipes["five or six of 0.17..0.45"] = replace(SEVERAL_SHAPES, count=(5, 6))
    figures = {}
    for name, recipe in recipes.items():
        samples = (
            (scene.image, {kind: answer(kind, scene) for kind in QUESTIONS})
            for scene in draw_clear_scenes(seed, recipe)
        )
        figures[name] = measure_answers(folder, samples, QUESTIONS)["exact_match"]
    answerer = Answerer(folder)
    question = QUESTIONS["count"][0]
    empty = Counter(
        answerer.answer(answerer.look(empty_scene.image), question)
        for empty_scene in unseen(seed, EMPTY)
    )
    return {"exact_match": figures, "counts_on_empty": dict(empty)}


def by_diameter(
    path: Path, seed: int, recipe: Recipe, diameters: tuple[tuple[float, float], ...]
) -> Figures:
    """Measure mAP50, precision and recall for each range of diameters."""
    figures = {}
    for diameter in diameters:
        scenes = unseen(seed, replace(recipe, diameter=diameter))
        samples = ((scene.image, scene_boxes(scene, SHAPES)) for scene in scenes)
        measured = measure_detector(path, samples, SHAPES)
        figures[f"{diameter[0]}..{diameter[1]}"] = {
            "map50": measured["map50"],
            **measured["at_default_thresholds"],
        }
    return figures


def unseen(seed: int, recipe: Recipe) -> Iterator[Scene]:
    """Draw unseen scenes of varied size."""
    return draw_scenes(
        seed, Stream.EVALUATION, range(SCENES), long_side_px=LONG_SIDE_PX, recipe=recipe
    )


def draw_clear_scenes(seed: int, recipe: Recipe) -> Iterator[Scene]:
    """Draw unseen scenes of varied size, each with one shape that is clearly the largest."""
    for index in range(SCENES):
        yield draw_clear_scene(scene_rng(seed, Stream.EVALUATION, index), recipe=recipe)


def draw_aerial_scenes(seed: int, recipe: AerialRecipe) -> Iterator[AerialScene]:
    """Draw unseen scenes of varied size."""
    for index in range(SCENES):
        rng = scene_rng(seed, Stream.EVALUATION, index)
        yield draw_aerial_scene(rng, draw_size_wh(rng, LONG_SIDE_PX), recipe)


def truth(scene: Scene) -> int:
    """Return the class index of a scene's one shape."""
    return SHAPES.index(scene.objects[0].shape)


if __name__ == "__main__":
    main()
