"""What the families of instance masks share: logits of one mask to a region of the image."""

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tasks.predictions import OutputError, Outputs
from tasks.resize import Affine
from tasks.sampling import Floats, Window, above_zero, bilinear
from tasks.segmenters import Region


class Candidate(msgspec.Struct, frozen=True):
    """What is known of an instance before its mask is."""

    class_id: int
    score: float


def region_of(
    logits: Floats, grid: Affine, found: Candidate, within: Window, upsample: int = 1
) -> Region | None:
    """Enlarge the logits of one mask to the image; above zero is inside.

    Args:
        logits: float32 (h, w).
        grid: Map from the image to the cells of the logits.
        found: What the mask belongs to.
        within: What lies outside of it is cut off.
        upsample: See `tasks.sampling.bilinear`.

    Returns:
        The region, or None where it is empty.
    """
    window = above_zero(logits, grid).meet(within)
    if window.empty:
        return None
    mask = (bilinear(logits[None], grid, window, upsample)[0] > 0).view(np.uint8)
    if not mask.any():
        return None
    return Region(
        class_id=found.class_id,
        mask=mask,
        left=window.left,
        top=window.top,
        score=found.score,
        instance=True,
    )


def pixels_of_box(affine: Affine, box: Floats | list[float]) -> Window:
    """Give the pixels of the image that a box holds: those whose left and top edges lie in it.

    Args:
        affine: Of the image, for its size.
        box: xyxy, pixels of the image.

    Source: Ultralytics 8.4, `utils/ops.py` crop_mask.
    """
    left, top, right, bottom = (math.ceil(value) for value in box)
    return Window(max(left, 0), max(top, 0), min(right, affine.width), min(bottom, affine.height))


def named(outputs: Outputs, name: str, position: int, rank: int) -> npt.NDArray[Any]:
    """Give an output by its name, else by its position.

    Raises:
        OutputError: There is none, or it has another number of axes, or values that are not finite.
    """
    found = outputs.get(name)
    if found is None and position < len(outputs):
        found = list(outputs.values())[position]
    if found is None or found.ndim != rank:
        got = "none" if found is None else f"the shape {found.shape}"
        raise OutputError(f"expected output {name!r} to have {rank} axes, got {got}")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise OutputError(f"expected output {name!r} to hold finite numbers, got NaN or infinity")
    return found
