"""Image statistics for drift: how bright, sharp and colourful an image is, as numbers.

They are measured on a downscaled image, which is cheap and makes images of one scene by two cameras comparable.
"""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from quadriga.tasks.arrays import Float32Array

_SIDE_PX = 512
"""Longer side of the image that edges are measured on; colours are measured on half of it. Images are never enlarged."""

_DARK, _BURNT = 5.0, 98.0
"""Lightness, 0 to 100, below which a pixel is dark, and above which it is burnt out."""


def measure_image(
    pixels: npt.NDArray[np.uint8 | np.uint16], bit_depth: int | None = None
) -> Float32Array:
    """Measure an image.

    Lightness L, 0 to 100, and the colours a (green to red) and b (blue to yellow), about -128 to 127, are
    CIELAB's of sRGB. `brightness` is the mean of L, `contrast` its standard deviation; `colour_a` and
    `colour_b` are means. `saturation`, 0 to 1, is the mean of HSV's. `dark` and `burnt`, 0 to 1, are the
    shares of pixels with L below 5 and above 98. `blur` is -ln(1 + variance of the Laplacian of gray, 0 to
    255): 0 where the image is flat, the lower the sharper.

    Args:
        pixels: (H, W) or (H, W, bands), RGB; of more than three bands the first three are used, of fewer the
            first alone, as gray.
        bit_depth: Bits of a value, which goes up to 2**bit_depth - 1; None: those of the data type.

    Returns:
        float32 (8,), in the order of `quadriga.store.records.records.IMAGE_STATISTICS`; all finite.
    """
    bits = bit_depth or 8 * pixels.dtype.itemsize
    small = _shrink(_shrink(pixels, 2 * _SIDE_PX), _SIDE_PX)
    small = small if small.ndim == 3 else small[..., None]
    shown = small[..., :3] if small.shape[2] >= 3 else small[..., [0, 0, 0]]
    rgb: npt.NDArray[Any] = np.multiply(shown, np.float32(1 / (2**bits - 1)), dtype=np.float32)
    gray = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    edges = cv2.Laplacian(gray, cv2.CV_32F, scale=255)
    # A quarter of the time of `cv2.meanStdDev`.
    variance = cv2.norm(edges, cv2.NORM_L2SQR) / edges.size - cv2.mean(edges)[0] ** 2
    rgb = _shrink(rgb, _SIDE_PX // 2)
    lab = cv2.cvtColor(rgb, cv2.COLOR_RGB2Lab)
    (brightness, a, b), (contrast, _, _) = (columns.ravel() for columns in cv2.meanStdDev(lab))
    light = cv2.extractChannel(lab, 0)
    saturation = cv2.mean(cv2.extractChannel(cv2.cvtColor(rgb, cv2.COLOR_RGB2HSV), 1))[0]
    blur = -np.log1p(max(variance, 0.0))
    dark, burnt = (np.count_nonzero(mask) / light.size for mask in (light < _DARK, light > _BURNT))
    statistics = (brightness, contrast, blur, saturation, a, b, dark, burnt)
    return np.array(statistics, np.float32)


def _shrink(pixels: npt.NDArray[Any], side_px: int) -> npt.NDArray[Any]:
    """Shrink an image whose longer side exceeds `side_px`.

    Called in steps of at most one half: linear interpolation would skip pixels otherwise.
    """
    height, width = pixels.shape[:2]
    scale = side_px / max(height, width)
    if scale >= 1:
        return pixels
    size_wh = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(pixels, size_wh, interpolation=cv2.INTER_LINEAR)
