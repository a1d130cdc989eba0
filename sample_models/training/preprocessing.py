"""From an RGB image to network input, and boxes back to the image.

The letterbox is that of Ultralytics >= 8.4: centred, pad value 114, one gain per axis when boxes
are mapped back.
"""

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image as PillowImage

from sample_models.training.boxes import Boxes
from sample_models.training.scenes import Image

PAD_VALUE = 114


@dataclass(frozen=True)
class Letterbox:
    """Position of an image inside the network input.

    Attributes:
        gain_xy: network pixels per image pixel, along x and y.
        offset_xy: network pixels left of and above the image.
    """

    gain_xy: tuple[float, float]
    offset_xy: tuple[int, int]


def letterbox(image: Image, size_wh: tuple[int, int]) -> tuple[Image, Letterbox]:
    """Fit an image into the network's size, centred on grey.

    Args:
        image: uint8 (H, W, 3).
        size_wh: network width and height in pixels.

    Returns:
        uint8 (height, width, 3), and how to map boxes.
    """
    height, width = image.shape[:2]
    ratio = min(size_wh[0] / width, size_wh[1] / height)
    new_w, new_h = max(round(width * ratio), 1), max(round(height * ratio), 1)
    if (new_w, new_h) != (width, height):
        image = cv2.resize(image, (new_w, new_h), interpolation=cv2.INTER_LINEAR).astype(np.uint8)
    pad_w, pad_h = size_wh[0] - new_w, size_wh[1] - new_h
    left, top = round(pad_w / 2 - 0.1), round(pad_h / 2 - 0.1)
    padded = np.full((size_wh[1], size_wh[0], 3), PAD_VALUE, dtype=np.uint8)
    padded[top : top + new_h, left : left + new_w] = image
    return padded, Letterbox((new_w / width, new_h / height), (left, top))


def image_to_network(boxes: Boxes, frame: Letterbox) -> Boxes:
    """Map boxes: float64 (N, 4), xyxy, from pixels of the image to pixels of the network."""
    mapped: Boxes = boxes * np.tile(frame.gain_xy, 2) + np.tile(frame.offset_xy, 2)
    return mapped


def network_to_image(boxes: Boxes, frame: Letterbox, image_wh: tuple[int, int]) -> Boxes:
    """Map boxes: float64 (N, 4), xyxy, from pixels of the network to the image, and clip them."""
    mapped = (boxes - np.tile(frame.offset_xy, 2)) / np.tile(frame.gain_xy, 2)
    clipped: Boxes = np.clip(mapped, 0, np.tile(image_wh, 2))
    return clipped


def stretch(image: Image, size_wh: tuple[int, int]) -> Image:
    """Resize uint8 (H, W, 3) to the given width and height, whatever its aspect ratio."""
    return cv2.resize(image, size_wh, interpolation=cv2.INTER_LINEAR).astype(np.uint8)


def shrink_smoothly(image: Image, size_wh: tuple[int, int]) -> Image:
    """Stretch as `stretch` does, with the antialias of Pillow that Hugging Face processors use."""
    resized = PillowImage.fromarray(image).resize(size_wh, PillowImage.Resampling.BILINEAR)
    return np.asarray(resized, dtype=np.uint8)


def to_tensor(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Turn uint8 (B, H, W, 3), 0..255, into float32 (B, 3, H, W), 0..1."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32) / np.float32(255)
