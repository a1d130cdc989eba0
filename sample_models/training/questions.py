"""Questions about a scene of shapes, with their true answers."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product

import cv2
import numpy as np

from sample_models.training.scenes import (
    COLOURS,
    SEVERAL_SHAPES,
    SHAPES,
    Recipe,
    Scene,
    SceneObject,
    draw_scene,
    draw_size_wh,
)

LONG_SIDE_PX = (96, 400)
RECIPE = replace(SEVERAL_SHAPES, count=(1, 4), diameter=(0.3, 0.6))
CLEARLY_LARGER = 1.3
"""The largest shape of a scene has at least this many times the area of any other."""


def _typed(*wordings: str) -> tuple[str, ...]:
    """Add each wording as a hurried person types it: lower case, no mark at the end."""
    return (*wordings, *(wording.lower().rstrip("?.") for wording in wordings))


QUESTIONS: dict[str, tuple[str, ...]] = {
    "count": _typed(
        "How many shapes are there?",
        "How many shapes are in the image?",
        "Count the shapes.",
    ),
    "colour of the largest": _typed(
        "What colour is the largest shape?",
        "What color is the largest shape?",
        "What is the colour of the largest shape?",
    ),
    "shape of the largest": _typed(
        "What shape is the largest one?",
        "Which shape is the largest?",
        "What is the largest shape?",
    ),
    "describe": _typed(
        "Describe the image.",
        "Describe the picture.",
        "What is in the image?",
    ),
}
"""Each kind of question, in the wordings that are trained and measured; the usual one first."""


def draw_clear_scene(
    rng: np.random.Generator, size_wh: tuple[int, int] | None = None, recipe: Recipe = RECIPE
) -> Scene:
    """Draw scenes, of any size or the given one, until it is clear which shape is the largest."""
    while True:
        scene = draw_scene(rng, size_wh or draw_size_wh(rng, LONG_SIDE_PX), recipe)
        areas = sorted((_area(item) for item in scene.objects), reverse=True)
        if len(areas) == 1 or areas[0] >= CLEARLY_LARGER * areas[1]:
            return scene


def answer(kind: str, scene: Scene) -> str:
    """Return the true answer to a kind of question."""
    return _ANSWERS[kind](scene)


def every_phrase() -> list[str]:
    """List the wordings of all questions, and what answers are made of."""
    things = [_name(colour, shape) for colour, shape in product(COLOURS, SHAPES)]
    together = [f"{first}, {second} and {first}" for first, second in pairwise(things)]
    numbers = [str(number) for number in range(1, RECIPE.count[1] + 1)]
    wordings_ = [wording for wordings in QUESTIONS.values() for wording in wordings]
    return [*wordings_, *numbers, *COLOURS, *SHAPES, *things, *together]


def _describe(scene: Scene) -> str:
    """List all shapes, those of one form together; their places make no difference."""
    order = tuple(COLOURS)
    objects = sorted(
        scene.objects, key=lambda item: (SHAPES.index(item.shape), order.index(item.colour))
    )
    names = [_name(item.colour, item.shape) for item in objects]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _name(colour: str, shape: str) -> str:
    return f"{'an' if colour[0] in 'aeiou' else 'a'} {colour} {shape}"


def _largest(scene: Scene) -> SceneObject:
    return max(scene.objects, key=_area)


def _area(item: SceneObject) -> float:
    return float(cv2.contourArea(item.polygon.astype(np.float32)))


_ANSWERS: dict[str, Callable[[Scene], str]] = {
    "count": lambda scene: str(len(scene.objects)),
    "colour of the largest": lambda scene: _largest(scene).colour,
    "shape of the largest": lambda scene: _largest(scene).shape,
    "describe": _describe,
}
