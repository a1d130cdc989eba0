"""Seeded scenes of ships, barges and planes seen from above, with oriented ground truth.

Needs numpy and OpenCV only. Coordinates as in `scenes.py`; angles in radians, y down, clockwise
positive as seen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from sample_models.training.boxes import BoxSet
from sample_models.training.oriented_boxes import oriented_to_corners
from sample_models.training.scenes import Image, Points, fill_polygon, render_background

CRAFT = ("ship", "barge", "plane")
_WIDTHS = {"ship": (0.26, 0.36), "barge": (0.38, 0.55), "plane": (0.8, 1.05)}
_CHANCES = {"ship": 0.38, "barge": 0.3, "plane": 0.32}
_PLACEMENT_ATTEMPTS = 60
_GAP_PX = 2.0


@dataclass(frozen=True)
class AerialRecipe:
    """Content of a family of scenes.

    Attributes:
        count: fewest and most objects of a scene, both inclusive; a crowded scene may get fewer.
        length: range of the length, as a fraction of the short side.
        grain_sigma: range of the standard deviation of the grain, in grey levels.
        first_heading_rad: heading of a first object, a ship, where it is not left to chance.
    """

    count: tuple[int, int] = (1, 6)
    length: tuple[float, float] = (0.28, 0.6)
    grain_sigma: tuple[float, float] = (0.0, 5.0)
    first_heading_rad: float | None = None


@dataclass(frozen=True)
class Craft:
    """One drawn object.

    Attributes:
        label: one of `CRAFT`.
        box: cx, cy, w, h, heading: pixels and radians, w along the heading; tight around the hull
            or wings. The heading points to the bow, 0 <= heading < 2 pi.
    """

    label: str
    box: tuple[float, float, float, float, float]


@dataclass(frozen=True)
class AerialScene:
    """An image with its ground truth.

    Attributes:
        image: uint8 (H, W, 3), RGB.
        objects: in the order drawn; they lie inside the frame and do not touch one another.
    """

    image: Image
    objects: tuple[Craft, ...]


def draw_aerial_scene(
    rng: np.random.Generator, size_wh: tuple[int, int], recipe: AerialRecipe
) -> AerialScene:
    """Draw one scene; the same state of `rng` gives the same scene."""
    ground = _Ground(rng, size_wh)
    canvas = ground.render()
    objects = _place(rng, size_wh, recipe, ground)
    for item in objects:
        _DRAWINGS[item.label](rng, canvas, item.box)
    sigma = rng.uniform(*recipe.grain_sigma)
    grain = rng.standard_normal((*canvas.shape[:2], 1), dtype=np.float32) * np.float32(sigma)
    image = np.clip(np.rint(canvas + grain), 0, 255).astype(np.uint8)
    return AerialScene(image, tuple(objects))


def aerial_boxes(scene: AerialScene) -> BoxSet:
    """Return the ground truth of a scene: boxes (N, 5), angles in -pi/2..pi/2."""
    boxes = np.array([item.box for item in scene.objects], dtype=np.float64).reshape(-1, 5)
    boxes[:, 4] = (boxes[:, 4] + np.pi / 2) % np.pi - np.pi / 2
    indices = np.array([CRAFT.index(item.label) for item in scene.objects], dtype=np.int64)
    return BoxSet(boxes, indices, np.ones(len(boxes)))


class _Ground:
    """Water, land, or a coast between them.

    Args:
        rng: source of chance.
        size_wh: width and height in pixels.
    """

    def __init__(self, rng: np.random.Generator, size_wh: tuple[int, int]) -> None:
        self._rng = rng
        self._size_wh = size_wh
        kind = rng.choice(["water", "coast", "land"], p=[0.45, 0.4, 0.15])
        slope_rad = rng.uniform(0, 2 * math.pi)
        x = np.linspace(-1, 1, size_wh[0], dtype=np.float32)[None, :]
        y = np.linspace(-1, 1, size_wh[1], dtype=np.float32)[:, None]
        noise = rng.uniform(-0.5, 0.5, (6, 6)).astype(np.float32)
        rough = cv2.resize(noise, size_wh, interpolation=cv2.INTER_CUBIC)
        shift = {"water": -9.0, "coast": rng.uniform(-0.5, 0.1), "land": 9.0}[str(kind)]
        self._height = x * math.cos(slope_rad) + y * math.sin(slope_rad) + rough + shift
        """Above 0 is land; float32 (H, W)."""

    def is_water(self, points: Points) -> bool:
        """Check whether all of float64 (K, 2), x and y in pixels inside the frame, lie in water."""
        columns, rows = points.astype(int).T
        return bool((self._height[rows, columns] < 0).all())

    def render(self) -> npt.NDArray[np.float32]:
        """Render float32 (H, W, 3), RGB, 0..255."""
        water = self._tint((36, 85, 115), 25, 0.25)
        land = self._tint((125, 120, 85), 35, 0.6)
        shore_px = np.float32(0.02 * min(self._size_wh))
        steepness = 2 / min(self._size_wh)
        share = np.clip(self._height / (steepness * shore_px) + 0.5, 0, 1)[:, :, None]
        canvas: npt.NDArray[np.float32] = water * (1 - share) + land * share
        return canvas

    def _tint(
        self, colour: tuple[int, int, int], spread: float, contrast: float
    ) -> npt.NDArray[np.float32]:
        """Render a texture of about this colour, its brightness varied by up to `spread`."""
        chosen = np.array(colour) + self._rng.uniform(-spread, spread)
        chosen += self._rng.uniform(-spread / 2, spread / 2, 3)
        texture = render_background(self._rng, self._size_wh)
        texture -= texture.mean()
        tinted = chosen.astype(np.float32) + texture * np.float32(contrast)
        return np.clip(tinted, 0, 255).astype(np.float32)


def _place(
    rng: np.random.Generator, size_wh: tuple[int, int], recipe: AerialRecipe, ground: _Ground
) -> list[Craft]:
    """Place objects inside the frame, apart from one another; ships and barges in water."""
    short = min(size_wh)
    target_count = int(rng.integers(recipe.count[0], recipe.count[1] + 1))
    placed: list[Craft] = []
    for _ in range(_PLACEMENT_ATTEMPTS):
        if len(placed) == target_count:
            break
        label = str(rng.choice(CRAFT, p=[_CHANCES[name] for name in CRAFT]))
        heading = float(rng.uniform(0, 2 * math.pi))
        if not placed and recipe.first_heading_rad is not None:
            label, heading = "ship", recipe.first_heading_rad
        length = float(rng.uniform(*recipe.length)) * short
        width = float(rng.uniform(*_WIDTHS[label])) * length
        x, y = (float(rng.uniform(0, side)) for side in size_wh)
        craft = Craft(label, (x, y, length, width, heading))
        corners = _corners(craft)
        inside = bool((corners > 1).all() and (corners < np.array(size_wh) - 1).all())
        if inside and _is_free(craft, placed):
            waterline = np.concatenate([corners, (corners + corners[[1, 2, 3, 0]]) / 2])
            if label == "plane" or ground.is_water(waterline):
                placed.append(craft)
    return placed


def _is_free(craft: Craft, placed: Sequence[Craft]) -> bool:
    x, y, w, h, angle = craft.box
    wider = _corners(Craft(craft.label, (x, y, w + 2 * _GAP_PX, h + 2 * _GAP_PX, angle)))
    return all(
        cv2.intersectConvexConvex(
            wider.astype(np.float32), _corners(other_object).astype(np.float32)
        )[0]
        <= 0
        for other_object in placed
    )


def _corners(craft: Craft) -> Points:
    corners: Points = oriented_to_corners(np.array([craft.box]))[0]
    return corners


def _onto(box: tuple[float, ...], outline: Points) -> Points:
    """Move a unit outline, x along the heading, both -0.5..0.5, onto a box: pixels."""
    x, y, w, h, heading = box
    cos, sin = math.cos(heading), math.sin(heading)
    turned: Points = outline * (w, h) @ np.array([[cos, sin], [-sin, cos]]) + (x, y)
    return turned


def _mirrored(half: Sequence[tuple[float, float]]) -> Points:
    """Complete an outline given from bow to stern on one side."""
    side = np.array(half, dtype=np.float64)
    return np.concatenate([side, side[::-1] * (1, -1)])


def _rectangle(start: float, end: float, half_width: float) -> Points:
    return _mirrored([(end, half_width), (start, half_width)])


def _draw_ship(
    rng: np.random.Generator, canvas: npt.NDArray[np.float32], box: tuple[float, ...]
) -> None:
    hulls = ((60, 62, 70), (150, 48, 42), (208, 210, 212), (38, 60, 98), (32, 34, 38))
    hull = np.array(hulls[int(rng.integers(len(hulls)))]) + rng.uniform(-14, 14, 3)
    deck = rng.uniform((140, 90, 60), (205, 180, 150))
    fill_polygon(canvas, _onto(box, _HULL), np.clip(hull, 0, 255))
    fill_polygon(canvas, _onto(box, _HULL * (0.86, 0.66)), deck)
    fill_polygon(canvas, _onto(box, _rectangle(-0.38, -0.2, 0.3)), rng.uniform([225] * 3, 250))


def _draw_barge(
    rng: np.random.Generator, canvas: npt.NDArray[np.float32], box: tuple[float, ...]
) -> None:
    hull = rng.uniform((95, 65, 45), (165, 130, 100))
    hold = hull * rng.uniform(0.35, 0.6)
    fill_polygon(canvas, _onto(box, _rectangle(-0.5, 0.5, 0.5)), hull)
    holds = int(rng.integers(2, 5))
    for index in range(holds):
        start = -0.44 + 0.88 * index / holds
        end = start + 0.88 / holds - 0.05
        fill_polygon(canvas, _onto(box, _rectangle(start, end, 0.34)), hold)


def _draw_plane(
    rng: np.random.Generator, canvas: npt.NDArray[np.float32], box: tuple[float, ...]
) -> None:
    paint = rng.uniform((205, 205, 205), (250, 250, 250))
    shade = paint * rng.uniform(0.45, 0.7)
    fill_polygon(canvas, _onto(box, _PLANE), paint)
    for side in (1, -1):
        engine = _rectangle(-0.1, 0.1, 0.03) + np.array([0, 0.22 * side])
        fill_polygon(canvas, _onto(box, engine), shade)
    fill_polygon(canvas, _onto(box, _rectangle(0.36, 0.43, 0.04)), shade * 0.5)


_HULL = _mirrored([(0.5, 0.0), (0.4, 0.24), (0.26, 0.42), (0.08, 0.5), (-0.42, 0.5), (-0.5, 0.38)])
_PLANE = _mirrored(
    [
        *((0.5, 0.0), (0.46, 0.05), (0.36, 0.075), (0.16, 0.075), (-0.1, 0.5), (-0.2, 0.5)),
        *((-0.06, 0.075), (-0.34, 0.055), (-0.44, 0.2), (-0.5, 0.2), (-0.46, 0.03)),
    ]
)
_DRAWINGS = {"ship": _draw_ship, "barge": _draw_barge, "plane": _draw_plane}
