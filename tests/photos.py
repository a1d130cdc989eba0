"""Photos as cameras take them: a sample image, many pixels, noise."""

import math
from pathlib import Path

import cv2
import numpy as np

MIN_BYTES = 5_000_000


def write_photo(sample: Path, target: Path) -> Path:
    """Write a sample image as a JPEG of 5 MB or more: enlarged to 8 million pixels, with the noise of a sensor."""
    pixels = cv2.imread(str(sample))
    scale = math.sqrt(8e6 / (pixels.shape[0] * pixels.shape[1]))
    enlarged = cv2.resize(pixels, None, fx=scale, fy=scale).astype(np.float32)
    noise = np.random.default_rng(0).normal(scale=25, size=enlarged.shape)
    noisy = np.clip(enlarged + noise, 0, 255).astype(np.uint8)
    assert cv2.imwrite(str(target), noisy, [cv2.IMWRITE_JPEG_QUALITY, 95])
    assert target.stat().st_size >= MIN_BYTES
    return target
