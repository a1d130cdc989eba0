"""Answers of a served model beside those of the library that exported it."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np

from quadriga.engine.models.inspection import open_model
from quadriga.engine.models.runners.session import LoadError
from quadriga.engine.serving.image_inference import ImageModel, infer_images
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.geometry import fill, to_rings
from quadriga.tasks.image import MAX_PIXELS, decode
from quadriga.tasks.predictions import Prediction


class Difference(msgspec.Struct, frozen=True):
    """How far the answers of one export are from the library's."""

    scores: float = 0.0
    """Largest difference of a score."""
    pixels: float = 0.0
    """Largest share of pixels of another class."""
    boxes_px: float = 0.0
    """Largest difference of a side of a box, pixels of the image."""
    compared: int = 0
    """Labels, pixels or boxes that were compared."""


def expected_of(folder: Path) -> dict[str, Any]:
    """Answers of the library."""
    return json.loads((folder / "expected.json").read_text())


def ask_and_answer(folder: Path) -> str:
    """Open a model as it was exported, and once more with the lines that its error, or its inspection, asks for.

    Returns:
        What was written, with a star at keys of which the question says nothing.
    """
    toml = (folder / "answer.toml").read_text()
    (folder / "model.toml").unlink(missing_ok=True)
    try:
        model = open_model(folder)
    except LoadError as error:
        question = str(error)
    else:
        if not toml:
            return "nothing"
        question = next(d.reason for d in model.recognition.decisions if d.field == "task")
        assert "write task in model.toml" in question
    assert toml, question
    shutil.copy(folder / "answer.toml", folder / "model.toml")
    open_model(folder)
    written = tomllib.loads(toml)
    labels = written.pop("labels", None)
    keys = [key for key, value in written.items() if not isinstance(value, dict)]
    keys += [key for value in written.values() if isinstance(value, dict) for key in value]
    keys += ["labels"] if labels and not keys else []
    assert (
        question.count(f'family = "{written.get("family")}"') == ("family" in keys)
        or "task" in question
    )
    return ", ".join(key if re.search(rf"\b{key}\b", question) else f"{key}*" for key in keys)


def answers(folder: Path, name: str, **parameters: Any) -> list[Prediction]:
    """Answer one image as a request to the server would."""
    model = open_model(folder)
    assert model.image_predictor is not None
    images = ImageModel(model.image_predictor, MAX_PIXELS, max_images=1)
    tensor = Tensor(name, "BYTES", (1,), [(folder / name).read_bytes()], parameters=parameters)
    _, (answered,) = infer_images(images, InferRequest(model.name, None, "", [tensor]))
    return list(answered.predictions)


def check(folder: Path, scores: float = 5e-5, pixels: float = 5e-4, boxes_px: float = 0.05) -> None:
    """Check that one question suffices, and that answers differ from the library's by no more than its arithmetic.

    Two runtimes add the products of a layer in another order: that moves scores by some 1e-5, and the class of a
    pixel in ten thousand. An image brighter by one level of 255 moves scores by much more, so a wrong resize, order
    of channels or mean would show.
    """
    asked = ask_and_answer(folder)
    difference = compare(folder)
    exporter = expected_of(folder)["exporter"]
    print(f"| {exporter} | {folder.name} | {asked} | {difference} |")  # noqa: T201 - shown by -s
    assert difference.compared > 0
    assert difference.scores < scores
    assert difference.pixels < pixels
    assert difference.boxes_px < boxes_px


def moved_by_a_level(folder: Path) -> float:
    """Return by how much the scores move if each image is brighter by one level, at least."""
    moved = []
    for name, expected in expected_of(folder)["images"].items():
        pixels = decode((folder / name).read_bytes()).pixels
        brighter = folder / f"brighter-{name}"
        cv2.imwrite(str(brighter), np.where(pixels < 255, pixels + 1, 255)[..., ::-1])
        answered = {
            p.label: p.score for p in answers(folder, brighter.name, action="predict_proba")
        }
        moved.append(
            max(abs(answered[label] - score) for label, score in expected["scores"].items())
        )
    return max(moved)


def compare(folder: Path) -> Difference:
    """Compare all images of one export."""
    readers = {"scores": _compare_scores, "classes": _compare_classes, "boxes": _compare_boxes}
    differences = []
    for name, expected in expected_of(folder)["images"].items():
        reader = next(readers[key] for key in readers if key in expected)
        differences.append(reader(folder, name, expected))
    return Difference(
        scores=max(difference.scores for difference in differences),
        pixels=max(difference.pixels for difference in differences),
        boxes_px=max(difference.boxes_px for difference in differences),
        compared=sum(difference.compared for difference in differences),
    )


def _compare_scores(folder: Path, name: str, expected: dict[str, Any]) -> Difference:
    answered = {p.label: p.score for p in answers(folder, name, action="predict_proba")}
    assert answered.keys() == expected["scores"].keys()
    apart = [abs(score - answered[label]) for label, score in expected["scores"].items()]
    return Difference(scores=max(apart), compared=len(apart))


def _compare_classes(folder: Path, name: str, expected: dict[str, Any]) -> Difference:
    """Draw every region, and count the pixels of another class; pixels of no region have the class 0."""
    classes = decode((folder / expected["classes"]).read_bytes()).pixels[..., 0]
    labels = open_model(folder).spec.labels
    assert len(np.unique(classes)) > 1
    height, width = classes.shape
    drawn = np.zeros(classes.shape, np.uint8)
    for segment in answers(folder, name, regions="class"):
        mask = fill(to_rings(segment.contour), width, height) > 0
        drawn[mask] = 1 if len(labels) == 1 else labels.index(segment.label)
    return Difference(pixels=float((drawn != classes).mean()), compared=classes.size)


def _compare_boxes(folder: Path, name: str, expected: dict[str, Any]) -> Difference:
    """Compare each box of the library with the answer of its label that lies nearest."""
    image = decode((folder / name).read_bytes())
    limits = [image.width, image.height] * 2
    rows = [(label, score, np.clip(box, 0, limits)) for label, score, box in expected["boxes"]]
    rows = [row for row in rows if (row[2][2:] > row[2][:2]).all()]
    remaining = answers(folder, name, score_threshold=expected["threshold"])
    assert len(rows) == len(remaining), (len(rows), len(remaining))
    px = scores = 0.0
    for label, score, box in rows:

        def distance(p: Any, box: Any = box, score: float = score) -> float:
            corners = np.array([p.xmin, p.ymin, p.xmax, p.ymax])
            return float(np.abs(corners - box).max()) + abs(p.score - score)

        nearest = min((p for p in remaining if p.label == label), key=distance)
        remaining.remove(nearest)
        px = max(px, distance(nearest) - abs(nearest.score - score))
        scores = max(scores, abs(nearest.score - score))
    return Difference(scores=scores, boxes_px=px, compared=len(rows))
