"""Images from input tensors: the picture that a network saw, as a PNG file."""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from quadriga.tasks.specification import InputSpec

_BANDS = (1, 3, 4)


def pixels_of_tensor(
    tensor: npt.NDArray[Any], spec: InputSpec | None = None
) -> npt.NDArray[np.uint8] | None:
    """Return the picture in the input tensor of one image.

    Args:
        tensor: (H, W, C) or (C, H, W), without the batch axis; uint8, or floating-point numbers if the specification
            says how they were made.
        spec: Specification of the input; None where nothing is known of it.

    Returns:
        uint8 (H, W, C) with 1, 3 or 4 bands, RGB; None where the tensor holds no picture.
    """
    if tensor.ndim != 3 or 0 in tensor.shape:
        return None
    is_first = tensor.shape[0] in _BANDS and tensor.shape[2] not in _BANDS
    if spec is not None:
        is_first = spec.layout == "nchw"
    planes = tensor if is_first else np.moveaxis(tensor, 2, 0)
    if planes.shape[0] not in _BANDS:
        return None
    if spec is not None and tensor.dtype.kind == "f":
        bands = len(planes)
        mean, std = (
            np.asarray(values[:bands], np.float32).reshape(-1, 1, 1)
            for values in (spec.mean, spec.std)
        )
        with np.errstate(all="ignore"):
            values = (planes.astype(np.float32) * std + mean) / np.float32(spec.scale)
        planes = np.clip(np.nan_to_num(np.round(values)), 0, 255).astype(np.uint8)
    if planes.dtype != np.uint8:
        return None
    if spec is not None and spec.color == "bgr" and len(planes) >= 3:
        planes = planes[[2, 1, 0, *range(3, len(planes))]]
    return np.ascontiguousarray(np.moveaxis(planes, 0, 2))


def pixels_of_lists(value: Any) -> npt.NDArray[np.uint8] | None:
    """Return the picture in nested lists of whole numbers, rows of pixels of bands; None where they hold none."""
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    if array.ndim != 3 or array.dtype.kind not in "iu" or array.shape[2] not in _BANDS:
        return None
    if array.size == 0 or array.min() < 0 or array.max() > 255:
        return None
    return array.astype(np.uint8)


def encode_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Write pixels (H, W, C), RGB, as a PNG file."""
    bands = pixels.shape[2]
    order = {1: pixels[..., 0], 3: pixels[..., ::-1]}.get(bands)
    shown = np.ascontiguousarray(pixels[..., [2, 1, 0, 3]] if order is None else order)
    return cv2.imencode(".png", shown, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes()
