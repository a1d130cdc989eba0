"""What the families of instance masks share: logits of one mask to a region of the image."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.predictions import OutputError, Outputs, check_finite
from tasks.resize import Affine
from tasks.sampling import Floats, Window, above_zero, bilinear
from tasks.segmenters import Region


def region_of(
    logits: Floats, grid: Affine, within: Window, class_id: int, score: float, *, upsample: int = 1
) -> Iterator[Region]:
    """Enlarge the logits of one instance, float32 (h, w), to the image; above zero is inside.

    `grid` maps the image to their cells; what lies outside of `within` is cut off, and none comes
    of an empty mask. `upsample` is that of `tasks.sampling.bilinear`.
    """
    window = above_zero(logits, grid).meet(within)
    if window.empty:
        return
    mask = (bilinear(logits[None], grid, window, upsample)[0] > 0).view(np.uint8)
    if mask.any():
        yield Region(
            class_id=class_id,
            mask=mask,
            left=window.left,
            top=window.top,
            score=score,
            instance=True,
        )


def pixels_of_box(affine: Affine, box: Floats | list[float]) -> Window:
    """Give the pixels whose left and top edges lie in a box, xyxy, pixels of the image.

    Source: Ultralytics 8.4, `utils/ops.py` crop_mask.
    """
    left, top, right, bottom = (math.ceil(value) for value in box)
    return Window(max(left, 0), max(top, 0), min(right, affine.width), min(bottom, affine.height))


def named(outputs: Outputs, name: str, position: int, rank: int) -> npt.NDArray[Any]:
    """Give an output of finite numbers and so many axes by its name, else by its position."""
    found = outputs.get(name)
    if found is None and position < len(outputs):
        found = list(outputs.values())[position]
    if found is None or found.ndim != rank:
        got = "none" if found is None else f"the shape {found.shape}"
        raise OutputError(f"expected output {name!r} to have {rank} axes, got {got}")
    if found.dtype.kind == "f":
        check_finite(found, what=f"output {name!r}")
    return found
