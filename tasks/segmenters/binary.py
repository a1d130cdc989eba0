"""One thing and its background: BiRefNet, IS-Net, U2Net and other networks of one mask."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.activations import sigmoid
from tasks.predictions import OutputError, Outputs, check_finite
from tasks.resize import Affine
from tasks.sampling import Floats, bilinear, grid_of, visible
from tasks.segmenters import Asked, Region, are_probabilities
from tasks.segmenters.semantic import trimmed

_TILE_PX = 512


def single(outputs: Outputs, affine: Affine, asked: Asked) -> Iterator[Region]:
    """Read the first output, float (1, h, w) or (h, w): probabilities, or logits if any is none.

    A pixel belongs to the thing whose probability, enlarged to the image, is above one half. The
    thing has the last of at most two labels.
    """
    return _thing(_probabilities(next(iter(outputs.values())), asked), affine, asked)


def last(outputs: Outputs, affine: Affine, asked: Asked) -> Iterator[Region]:
    """Read the last of several outputs as `single` does: the finest of BiRefNet."""
    return _thing(_probabilities(list(outputs.values())[-1], asked), affine, asked)


def stretched(outputs: Outputs, affine: Affine, asked: Asked) -> Iterator[Region]:
    """Read the first of several outputs, its lowest value as 0 and its highest as 1.

    U2Net and IS-Net are used so; they expect that there is a thing in every image.

    Source: U2Net, `u2net_test.py`, normPRED.
    """
    cells = _cells(next(iter(outputs.values())))
    low, high = float(cells.min()), float(cells.max())
    return _thing((cells - low) / max(high - low, 1e-12), affine, asked)


def _cells(output: npt.NDArray[Any]) -> Floats:
    if output.ndim == 3 and output.shape[0] == 1:
        output = output[0]
    if output.ndim != 2 or not output.size:
        raise OutputError(
            f"expected an output to have the shape (1, height, width), got {output.shape}"
        )
    cells = output.astype(np.float32, copy=False)
    check_finite(cells, what="the output")
    return cells


def _probabilities(output: npt.NDArray[Any], asked: Asked) -> Floats:
    cells = _cells(output)
    if asked.activation == "sigmoid" or not are_probabilities(cells):
        return sigmoid(cells)
    return np.clip(cells, 0, 1)


def _thing(cells: Floats, affine: Affine, asked: Asked) -> Iterator[Region]:
    if asked.label_count not in {1, 2}:
        raise OutputError(
            f"expected one label, or two with the background first, got {asked.label_count}"
        )
    grid = grid_of(affine, cells.shape)
    window = visible(grid)
    if window.empty:
        return
    probabilities = np.empty(window.size_hw, np.float32)
    for tile in window.tiles(_TILE_PX, _TILE_PX):
        probabilities[tile.slices_of(window)] = bilinear(cells[None], grid, tile)[0]
    mask = (probabilities > 0.5).view(np.uint8)
    yield from trimmed(mask, asked.label_count - 1, window, probabilities)
