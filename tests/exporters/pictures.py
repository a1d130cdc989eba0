"""Pictures of three sizes with shapes on noise, for every script that exports models of images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

SIZES = {"landscape": (321, 200), "portrait": (150, 263), "small": (37, 29)}


def picture(name: str, size: tuple[int, int] | None = None) -> Image.Image:
    """Draw shapes on noise, fine and coarse; `size` takes the place of the picture's own."""
    width, height = size or SIZES[name]
    rng = np.random.default_rng(sorted(SIZES).index(name))
    fine = rng.integers(0, 256, (height, width, 3), np.uint8)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8)).resize((width, height))
    image = Image.blend(coarse, Image.fromarray(fine), 0.3)
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        left, right = np.sort(rng.integers(0, width, 2)).tolist()
        top, bottom = np.sort(rng.integers(0, height, 2)).tolist()
        shape = rng.choice([draw.rectangle, draw.ellipse])
        shape((left, top, right, bottom), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


def save_map(classes: Any, path: Path) -> dict[str, str]:
    """Write the class of each pixel (H, W) as a PNG, and return what names it in `expected.json`."""
    Image.fromarray(np.asarray(classes).astype(np.uint8)).save(path)
    return {"classes": path.name}


def write_expected(folder: Path, exporter: str, toml: str, images: dict[str, Any]) -> None:
    """Write what a library answers, and the lines that a person writes once `inspect` asks for them.

    Args:
        folder: Model folder with the graph.
        exporter: Name and version of the library.
        toml: Lines of model.toml; empty where nothing is asked.
        images: Answers by the name of the image's file.
    """
    (folder / "answer.toml").write_text(toml)
    expected = {"exporter": exporter, "images": images}
    (folder / "expected.json").write_text(json.dumps(expected))
