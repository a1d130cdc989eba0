"""A detector in two versions, of which the first finds what is sure alone, and images of the day and the night with their truth."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess

MODEL = "shapes-detector"
LIGHTS = {"day": (1.0, 0.9), "night": (0.35, 0.3)}
"""Factors of the brightness."""


def write_two_versions(folder: Path) -> Path:
    """Write the folder of models; return it."""
    for version, threshold in (("1", 0.9), ("2", 0.25)):
        target = folder / MODEL / version
        target.mkdir(parents=True)
        for name in ("model.onnx", "labels.txt"):
            shutil.copy(SAMPLE_MODELS / MODEL / name, target / name)
        settings = (SAMPLE_MODELS / MODEL / "model.toml").read_text()
        changed = settings.replace("score_threshold = 0.25", f"score_threshold = {threshold}")
        (target / "model.toml").write_text(changed)
    return folder


def images() -> Iterator[tuple[str, str, bytes]]:
    """Yield a name, the light, and the file of each image."""
    for path in sorted((IMAGES / "detection").glob("*.jpg")):
        pixels = cv2.imread(str(path))
        assert pixels is not None
        for light, factors in LIGHTS.items():
            for number, factor in enumerate(factors):
                darkened = np.clip(pixels * factor, 0, 255).astype(np.uint8)
                encoded = cv2.imencode(".jpg", darkened)[1].tobytes()
                yield f"{light}-{number}-{path.name}", light, encoded


def truths() -> bytes:
    """Return the truth of all images, by the path in their metadata, as `POST /api/ground-truth` takes it."""
    text = (IMAGES / "detection" / "annotations.jsonl").read_text()
    lines = [
        {**line, "path": f"{light}-{number}-{line['path']}"}
        for line in map(json.loads, text.splitlines())
        for light, factors in LIGHTS.items()
        for number in range(len(factors))
    ]
    return "\n".join(map(json.dumps, lines)).encode()


def answer_all(server: ServerProcess) -> None:
    """Send each image to both versions, and state the truth."""
    for version in ("1", "2"):
        for name, light, image in images():
            metadata = json.dumps({"path": name, "light": light, "camera": "north"})
            server.store(f"{MODEL}/versions/{version}", image, metadata=metadata)
    status, _, answer = server.request("POST", "/api/ground-truth", truths())
    assert status == 200, answer
    server.query({"model": MODEL}, limit=1, consistency="journal")
