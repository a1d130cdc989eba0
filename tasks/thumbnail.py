"""Small copies of images for people to look at."""

import cv2

from quadriga.tasks.image import MAX_PIXELS, decode

_QUALITY = 82


def make_thumbnail(data: bytes, side_px: int, max_pixels: int = MAX_PIXELS) -> bytes:
    """Return an image as a JPEG of at most so many pixels on its longer side, upright; it is never enlarged.

    Raises:
        quadriga.tasks.image_formats.ImageError: It is no image that can be shown, or one of too many pixels.
    """
    pixels = decode(data, max_pixels=max_pixels).rgb()
    height, width = pixels.shape[:2]
    scale = side_px / max(height, width)
    if scale < 1:
        size_wh = max(round(width * scale), 1), max(round(height * scale), 1)
        pixels = cv2.resize(pixels, size_wh, interpolation=cv2.INTER_AREA).astype(pixels.dtype)
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    is_encoded, encoded = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    assert is_encoded, "OpenCV encodes any array of three channels"
    return encoded.tobytes()
