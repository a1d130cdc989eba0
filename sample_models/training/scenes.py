"""Seeded scenes of coloured shapes on textured backgrounds, with exact ground truth.

Needs numpy and OpenCV only. Coordinates are continuous pixels: pixel column i covers i..i+1, the
origin is the top left corner of the image, y points down.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
Points = npt.NDArray[np.float64]

SHAPES = ("circle", "square", "triangle", "star", "cross")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (212, 44, 48),
    "green": (44, 160, 66),
    "blue": (38, 88, 210),
    "yellow": (242, 206, 40),
    "purple": (144, 58, 172),
    "orange": (238, 122, 28),
}
ASPECTS = (1.0, 4 / 3, 3 / 2, 16 / 9, 3 / 4, 2 / 3, 9 / 16)

_SUBPIXEL_BITS = 4
_OVERSAMPLING = 4
_PLACEMENT_ATTEMPTS = 60


class Stream(IntEnum):
    """Independent families of scenes under one seed: no scene is in two of them."""

    TRAINING = 0
    EVALUATION = 1
    IMAGES = 2


@dataclass(frozen=True)
class Recipe:
    """Content of a family of scenes.

    Attributes:
        shapes: names in `OUTLINES`, drawn with equal chance.
        count: fewest and most objects of a scene, both inclusive. A crowded scene may get
            fewer, but at least one unless the count is zero.
        diameter: range of the circumscribed circle's diameter, as a fraction of the short side.
        grain_sigma: range of the standard deviation of the grain, in grey levels.
    """

    shapes: tuple[str, ...]
    count: tuple[int, int]
    diameter: tuple[float, float]
    grain_sigma: tuple[float, float] = (0.0, 5.0)


SINGLE_SHAPE = Recipe(shapes=SHAPES, count=(1, 1), diameter=(0.35, 0.85))
SEVERAL_SHAPES = Recipe(shapes=SHAPES, count=(1, 6), diameter=(0.17, 0.45))


@dataclass(frozen=True)
class SceneObject:
    """One drawn object.

    Attributes:
        shape: key of `OUTLINES`.
        colour: key of `COLOURS`.
        polygon: float64 (K, 2), x and y in pixels: the outline as drawn.
        box: xmin, ymin, xmax, ymax in pixels, tight around `polygon`.
        rotation_rad: turn of the unit outline, clockwise as seen, 0 <= rotation < 2 pi.
    """

    shape: str
    colour: str
    polygon: Points
    box: tuple[float, float, float, float]
    rotation_rad: float


@dataclass(frozen=True)
class Scene:
    """An image with its ground truth.

    Attributes:
        image: uint8 (H, W, 3), RGB.
        objects: in the order drawn; they lie inside the frame and do not hide one another.
    """

    image: Image
    objects: tuple[SceneObject, ...]


def scene_rng(seed: int, stream: Stream, index: int) -> np.random.Generator:
    """Return the generator of one scene, independent of all other (seed, stream, index)."""
    return np.random.default_rng((seed, int(stream), index))


def draw_size_wh(rng: np.random.Generator, long_side_px: tuple[int, int]) -> tuple[int, int]:
    """Draw an image size of a usual aspect ratio.

    Args:
        rng: source of chance.
        long_side_px: range of the longer side, in pixels, both inclusive.

    Returns:
        Width and height in pixels.
    """
    aspect = ASPECTS[int(rng.integers(len(ASPECTS)))]
    long_side = int(rng.integers(long_side_px[0], long_side_px[1] + 1))
    if aspect >= 1:
        return long_side, max(1, round(long_side / aspect))
    return max(1, round(long_side * aspect)), long_side


def draw_scene(rng: np.random.Generator, size_wh: tuple[int, int], recipe: Recipe) -> Scene:
    """Draw one scene.

    Args:
        rng: source of chance; the same state gives the same scene.
        size_wh: width and height in pixels.
        recipe: what the scene contains.
    """
    canvas = render_background(rng, size_wh)
    objects = []
    for centre, radius in _place_circles(rng, size_wh, recipe):
        shape = recipe.shapes[int(rng.integers(len(recipe.shapes)))]
        colour = tuple(COLOURS)[int(rng.integers(len(COLOURS)))]
        drawn = _outline_object(
            shape, colour, centre, radius=radius, rotation_rad=float(rng.uniform(0, 2 * math.pi))
        )
        paint = np.clip(np.array(COLOURS[colour]) + rng.uniform(-14, 14, 3), 0, 255)
        fill_polygon(canvas, drawn.polygon, paint)
        objects.append(drawn)
    sigma = rng.uniform(*recipe.grain_sigma)
    grain = rng.standard_normal((*canvas.shape[:2], 1), dtype=np.float32) * np.float32(sigma)
    image = np.clip(np.rint(canvas + grain), 0, 255).astype(np.uint8)
    return Scene(image=image, objects=tuple(objects))


def draw_scenes(
    seed: int, stream: Stream, indices: Iterable[int], long_side_px: tuple[int, int], recipe: Recipe
) -> Iterator[Scene]:
    """Draw scenes of varied size by their numbers in a stream, as `draw_size_wh` and `draw_scene`."""
    for index in indices:
        rng = scene_rng(seed, stream, index)
        yield draw_scene(rng, draw_size_wh(rng, long_side_px), recipe)


def render_background(
    rng: np.random.Generator, size_wh: tuple[int, int]
) -> npt.NDArray[np.float32]:
    """Render two octaves of soft, desaturated noise and sometimes stripes.

    Returns:
        float32 (H, W, 3), RGB, 0..255.
    """
    canvas = np.full((size_wh[1], size_wh[0], 3), rng.uniform(55, 195), dtype=np.float32)
    for cells, amplitude in ((rng.integers(3, 7), 42.0), (rng.integers(10, 22), 13.0)):
        noise = rng.uniform(-1, 1, (int(cells), int(cells), 3)).astype(np.float32)
        grey = noise.mean(axis=2, keepdims=True)
        soft = cv2.resize(0.7 * grey + 0.3 * noise, size_wh, interpolation=cv2.INTER_CUBIC)
        canvas += soft * np.float32(rng.uniform(0.3, 1.0) * amplitude)
    if rng.random() < 0.4:
        canvas += _render_stripes(rng, size_wh)[:, :, None]
    return np.clip(canvas, 0, 255)


def _render_stripes(rng: np.random.Generator, size_wh: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Render a sine wave across the frame: float32 (H, W), grey levels around 0."""
    angle = rng.uniform(0, math.pi)
    wave = 2 * math.pi / (rng.uniform(0.03, 0.14) * max(size_wh))
    columns = np.arange(size_wh[0], dtype=np.float32) * np.float32(math.cos(angle) * wave)
    rows = np.arange(size_wh[1], dtype=np.float32) * np.float32(math.sin(angle) * wave)
    return np.sin(rows[:, None] + columns[None, :]) * np.float32(rng.uniform(3, 14))


def _place_circles(
    rng: np.random.Generator, size_wh: tuple[int, int], recipe: Recipe
) -> list[tuple[tuple[float, float], float]]:
    """Place disjoint circles inside the frame: centre (x, y) and radius, in pixels."""
    width, height = size_wh
    short = min(size_wh)
    target_count = int(rng.integers(recipe.count[0], recipe.count[1] + 1))
    placed: list[tuple[tuple[float, float], float]] = []
    for _ in range(_PLACEMENT_ATTEMPTS):
        if len(placed) == target_count:
            break
        radius = rng.uniform(*recipe.diameter) * short / 2
        x = rng.uniform(radius + 1, width - radius - 1)
        y = rng.uniform(radius + 1, height - radius - 1)
        if all(math.hypot(x - px, y - py) > radius + r + 1 for (px, py), r in placed):
            placed.append(((x, y), radius))
    return placed


def _outline_object(
    shape: str, colour: str, centre: tuple[float, float], radius: float, rotation_rad: float
) -> SceneObject:
    """Turn, scale and move a unit outline, rounded to the sub-pixels that are drawn."""
    cos, sin = math.cos(rotation_rad), math.sin(rotation_rad)
    turned = OUTLINES[shape]() @ np.array([[cos, sin], [-sin, cos]])
    steps = 1 << _SUBPIXEL_BITS
    polygon = np.rint((turned * radius + centre) * steps) / steps
    (xmin, ymin), (xmax, ymax) = polygon.min(axis=0), polygon.max(axis=0)
    box = (float(xmin), float(ymin), float(xmax), float(ymax))
    return SceneObject(shape, colour, polygon, box=box, rotation_rad=rotation_rad)


def fill_polygon(
    canvas: npt.NDArray[np.float32], polygon: Points, paint: npt.NDArray[np.float64]
) -> None:
    """Blend a filled polygon into float32 (H, W, 3) in place; edges are antialiased."""
    rows, columns, coverage = cover(polygon, (canvas.shape[1], canvas.shape[0]))
    alpha = coverage[:, :, None].astype(np.float32) / 255
    region = canvas[rows, columns]
    region += alpha * (paint.astype(np.float32) - region)


def draw_class_map(
    scene: Scene,
    labels: tuple[str, ...],
    size_wh: tuple[int, int],
    named: Literal["shape", "colour"] = "shape",
) -> npt.NDArray[np.uint8]:
    """Draw the class of every pixel, at any size: the scene is stretched to it.

    Args:
        scene: the ground truth.
        labels: names in the order of the indices; the first is the background.
        size_wh: width and height of the map in pixels.
        named: what of an object the labels name.

    Returns:
        uint8 (height, width), indices into `labels`: the object that covers half of a pixel or more.
    """
    classes = np.zeros((size_wh[1], size_wh[0]), dtype=np.uint8)
    scale = np.array(size_wh) / scene.image.shape[1::-1]
    for item in scene.objects:
        rows, columns, coverage = cover(item.polygon * scale, size_wh)
        classes[rows, columns][coverage >= 128] = labels.index(getattr(item, named))
    return classes


def cover(polygon: Points, size_wh: tuple[int, int]) -> tuple[slice, slice, npt.NDArray[np.uint8]]:
    """Return the rows and columns around a polygon, and how far it covers each pixel there, 0..255.

    OpenCV's own antialiased fill is wider than the polygon by 0.6 px, so the polygon is filled on
    a finer grid and averaged: its edge then lies within about 0.1 px of the ground truth.
    """
    first = np.maximum(np.floor(polygon.min(axis=0)).astype(int) - 1, 0)
    last = np.minimum(np.ceil(polygon.max(axis=0)).astype(int) + 1, size_wh)
    region_wh = (int(last[0] - first[0]), int(last[1] - first[1]))
    fine = np.zeros((region_wh[1] * _OVERSAMPLING, region_wh[0] * _OVERSAMPLING), dtype=np.uint8)
    # OpenCV counts from pixel centres, our frame from pixel corners.
    corners = (polygon - first) * _OVERSAMPLING - 0.5
    fixed = np.rint(corners * (1 << _SUBPIXEL_BITS)).astype(np.int32)
    cv2.fillPoly(fine, [fixed], 255, lineType=cv2.LINE_8, shift=_SUBPIXEL_BITS)
    coverage = cv2.resize(fine, region_wh, interpolation=cv2.INTER_AREA).astype(np.uint8)
    return slice(first[1], last[1]), slice(first[0], last[0]), coverage


def _ring(radii: tuple[float, ...], count: int) -> Points:
    """Return `count` points around the origin, the first on top; their radii repeat in order."""
    angles = np.arange(count) * (2 * math.pi / count) - math.pi / 2
    circle: Points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return circle * np.resize(np.array(radii), count)[:, None]


def _cross() -> Points:
    """Return a plus sign with arms of 0.3 half width, its corners on the unit circle."""
    arm, end = 0.3, math.sqrt(1 - 0.3**2)
    quarter = np.array([(arm, -end), (arm, -arm), (end, -arm)])
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    return np.concatenate([quarter @ np.linalg.matrix_power(turn, k) for k in range(4)])


OUTLINES: dict[str, Callable[[], Points]] = {
    "circle": lambda: _ring((1.0,), 72),
    "square": lambda: _ring((1.0,), 4),
    "triangle": lambda: _ring((1.0,), 3),
    "star": lambda: _ring((1.0, 0.42), 10),
    "cross": _cross,
}
"""Unit outlines: float64 (K, 2) inside the unit circle, centred on the origin, y down."""
