"""Multiband images, for models of other than 8-bit gray or RGB: any number of bands, values of 8 to 16 bits.

Pillow reads gray images and those of 8 bits. OpenCV reads colour of 16 bits, which Pillow cuts to 8, and a
fourth band that is no alpha, which Pillow drops; it returns wrong pixels of the other kinds.
"""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import TiffImagePlugin as Tiff
from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from quadriga.tasks.image_formats import ImageError

Samples = npt.NDArray[np.unsignedinteger[Any]]
"""uint8 or uint16 (H, W, bands): the samples of a file, or the values that a model takes."""

MODES_16_BIT = frozenset({"I;16", "I;16L", "I;16B"})
AS_STORED = {mode: mode for mode in ("L", "LA", "RGB", "RGBA")} | {
    "1": "L",
    "P": "RGB",
    "PA": "RGBA",
    "RGBX": "RGB",
    "CMYK": "RGB",
    "YCbCr": "RGB",
}
"""Pillow's modes of 8 bits, each with the mode that holds all of its bands."""

_ORIENTATION = 0x0112


def read_bands(file: ImageFile, data: bytes, bands: int) -> tuple[Samples, int]:
    """Read all bands of a file, in its own bits.

    The pages of a TIFF are one gray band each, in their order, if `bands` is other than 1 or 3.

    Returns:
        Samples (H, W, bands of the file), RGB first, upright if from a TIFF; and their bits, 8 to 16.

    Raises:
        ImageError: The file has another number of pages, or pixels of a kind that is not read.

    Source: pages as bands: Ultralytics 8.4, `utils/patches.py` imread.
    """
    if isinstance(file, TiffImageFile):
        if bands not in (1, 3) and (pages := _count_pages(file, bands)) > 1:
            if pages != bands:
                got = "more" if pages > bands else pages
                raise ImageError(
                    f"expected a TIFF of {bands} pages of one band each, got {got} pages"
                )
            return _read_pages(file, bands)
        if file.tag_v2.get(Tiff.SAMPLESPERPIXEL, 1) > 4:
            raise ImageError(
                f"expected a TIFF of 1 to 4 samples a pixel, or a page for each of {bands} bands, "
                f"got {file.tag_v2[Tiff.SAMPLESPERPIXEL]} samples"
            )
    return _read_page(file, data)


def to_bands(samples: Samples, bands: int) -> Samples:
    """Turn samples into the bands that a model takes.

    For 1 or 3 bands alpha is dropped, gray repeated, and RGB becomes its luma. Any other number must match.
    """
    stored = samples.shape[2]
    if bands not in (1, 3):
        if stored != bands:
            raise ImageError(f"expected an image of {bands} bands, got one of {stored}")
        return samples
    if stored in (2, 4):
        samples = np.ascontiguousarray(samples[..., : stored - 1])
    if samples.shape[2] == bands:
        return samples
    if bands == 3:
        return np.repeat(samples, 3, axis=2)
    gray = cv2.cvtColor(samples, cv2.COLOR_RGB2GRAY)[..., None]
    return gray.astype(samples.dtype, copy=False)


def to_depth(samples: Samples, bits: int, bit_depth: int) -> Samples:
    """Turn samples of `bits` into a model's values, 0 to 2**bit_depth - 1; uint8 for 8 bits.

    8 bits are spread over the whole range; more than 8 are cut to the highest 8 for a model of 8 bits. Other
    samples are taken as values, such as 12 bits stored in 16.

    Raises:
        ImageError: A value is larger than the model's.
    """
    if bit_depth == 8:
        return samples if bits == 8 else (samples >> (bits - 8)).astype(np.uint8)
    largest = 2**bit_depth - 1
    if bits == 8:
        return np.take(np.round(np.arange(256) * (largest / 255)).astype(np.uint16), samples)
    if (highest := int(samples.max())) > largest:
        raise ImageError(
            f"expected values of at most {largest}, as the model's bit_depth is {bit_depth}, got {highest}"
        )
    return samples


def gray_of_16_bits(file: ImageFile) -> tuple[npt.NDArray[np.uint16], int]:
    """Read gray of 9 to 16 bits: uint16 (H, W), larger is brighter, and the bits; Pillow's own clips."""
    bits, inverted = 16, False
    if isinstance(file, TiffImageFile):
        bits = file.tag_v2.get(Tiff.BITSPERSAMPLE, (16,))[0]
        inverted = file.tag_v2.get(Tiff.PHOTOMETRIC_INTERPRETATION) == 0
    gray = np.asarray(file).astype(np.uint16, copy=False)
    return ((1 << bits) - 1 - gray if inverted else gray), bits


def _kind(file: TiffImageFile) -> tuple[Any, ...]:
    tags = file.tag_v2
    return file.size, file.mode, tags.get(Tiff.BITSPERSAMPLE), tags.get(_ORIENTATION)


def _count_pages(file: TiffImageFile, max_pages: int) -> int:
    first = _kind(file)
    for page in range(1, max_pages + 1):
        try:
            file.seek(page)
        except EOFError:
            file.seek(0)
            return page
        if _kind(file) != first:
            raise ImageError(
                f"expected pages of one size, kind and orientation, {first[0]} {first[1]}, "
                f"got {file.size} {file.mode} in page {page + 1}"
            )
    return max_pages + 1


def _read_pages(file: TiffImageFile, count: int) -> tuple[Samples, int]:
    if file.mode not in {"1", "L", *MODES_16_BIT}:
        raise ImageError(f"expected {count} pages of one band each, got mode {file.mode}")
    samples, bits = _read_page(file, b"")
    pages = np.empty((*samples.shape[:2], count), samples.dtype)
    pages[..., 0] = samples[..., 0]
    for page in range(1, count):
        file.seek(page)
        pages[..., page] = _read_page(file, b"")[0][..., 0]
    return pages, bits


def _read_page(file: ImageFile, data: bytes) -> tuple[Samples, int]:
    if file.mode in MODES_16_BIT:
        gray, bits = gray_of_16_bits(file)
        return gray[..., None], bits
    bits = _bits(file, data)
    fourth = isinstance(file, TiffImageFile) and file.tag_v2.get(Tiff.SAMPLESPERPIXEL) == 4
    if file.mode not in AS_STORED or (bits > 8 and file.mode not in ("RGB", "RGBA")):
        raise ImageError(
            f"expected 1 to 16 bits per channel, gray, RGB or RGBA, got {bits} bits of mode {file.mode}"
        )
    file.load()  # detects damage that OpenCV ignores
    if bits > 8 or (fourth and file.mode == "RGB"):
        return _read_by_opencv(file, data)
    mode = AS_STORED[file.mode]
    if mode == "RGB" and "transparency" in file.info:
        mode = "RGBA"
    elif mode == "L":
        file.info.pop("transparency", None)  # Pillow would warn that it drops it
    return np.atleast_3d(np.asarray(file.convert(mode))), 8


def _bits(file: ImageFile, data: bytes) -> int:
    """Return the bits of a sample, at least 8. Source: PNG, Third Edition, "IHDR Image header"."""
    if isinstance(file, TiffImageFile):
        return int(max(8, *file.tag_v2.get(Tiff.BITSPERSAMPLE, (1,))))
    return 16 if isinstance(file, PngImageFile) and data[24] == 16 else 8


def _read_by_opencv(file: ImageFile, data: bytes) -> tuple[Samples, int]:
    if isinstance(file, TiffImageFile) and file.tag_v2.get(Tiff.PLANAR_CONFIGURATION, 1) != 1:
        raise ImageError("expected a TIFF with the samples of a pixel together, got planes")
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.ndim != 3 or pixels.shape[1::-1] != file.size:
        raise ImageError("expected a complete image file, got one that cannot be decoded")
    order = cv2.COLOR_BGR2RGB if pixels.shape[2] == 3 else cv2.COLOR_BGRA2RGBA
    size = pixels.itemsize
    return cv2.cvtColor(pixels, order).astype(f"u{size}", copy=False), 8 * size
