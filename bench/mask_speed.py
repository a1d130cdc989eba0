"""Evaluation of instance masks compared with pycocotools: from run-length files, and from contours.

CPU seconds of one process, the least of rounds that take turns; read the ratios. Both sides read the same
files, and their twelve numbers are compared.
"""

import argparse
import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from quadriga.monitor.evaluation.evaluators import build_state
from quadriga.monitor.evaluation.files.coco import coco_state
from quadriga.monitor.evaluation.pixels.instances import InstanceEvaluator
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationState, merge_states
from quadriga.tasks.geometry import Mask, fill, rings

WIDTH, HEIGHT, LABELS = 640, 480, 80
TRUTHS, PREDICTIONS, CORNERS = 20, 25, 40

Doubles = npt.NDArray[np.float64]
Files = tuple[Path, Path, Path]
"""Instances, results, and lines of images as the wire has them."""


def outline(pick: np.random.Generator, place: Doubles) -> Doubles:
    """Draw a ragged outline (N, 2) from position, size, aspect and rotation: x, y, size, aspect, turn."""
    x, y, size, aspect, turn = place
    angle = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    radius = size / 2 * pick.uniform(0.85, 1.15, CORNERS)
    points = np.stack([radius * np.cos(angle), aspect * radius * np.sin(angle)], axis=1)
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    rotated: Doubles = points @ rotation + (x, y)
    return rotated


def anywhere(pick: np.random.Generator) -> Doubles:
    """Choose position and shape of an outline, of 5 to 200 pixels."""
    size = 10 ** pick.uniform(0.7, 2.3)
    return np.array([*pick.uniform(0, (WIDTH, HEIGHT)), size, pick.uniform(0.4, 1), pick.random()])


def objects(pick: np.random.Generator) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Make predictions and truths of an image: three of four predictions are near a truth."""
    places = [anywhere(pick) for _ in range(TRUTHS)]
    labels = pick.integers(0, LABELS, TRUTHS)
    truths = [
        {"label": int(label), "outline": outline(pick, place), "crowd": bool(pick.random() < 0.01)}
        for label, place in zip(labels, places, strict=True)
    ]
    predictions = []
    for _ in range(PREDICTIONS):
        place, label = anywhere(pick), int(pick.integers(LABELS))
        if pick.random() < 0.75:
            near = int(pick.integers(TRUTHS))
            place = places[near] + pick.normal(0, (3, 3, 2, 0.02, 0.05))
            place[2] = max(place[2], 2)
            label = int(labels[near]) if pick.random() < 0.8 else label
        item = {"label": label, "outline": outline(pick, place), "score": float(pick.random())}
        predictions.append(item)
    return predictions, truths


def mask_of(item: dict[str, Any]) -> Mask:
    """Fill an outline."""
    return fill([np.rint(item["outline"]).astype(np.int32)], WIDTH, HEIGHT)


def written(mask: Mask) -> dict[str, Any]:
    """Encode a mask as in a results file."""
    runs = coco_mask.encode(np.asfortranarray(mask))
    return {"size": runs["size"], "counts": runs["counts"].decode()}


def segment(item: dict[str, Any], mask: Mask) -> dict[str, Any]:
    """Return an object in wire form."""
    contour = [[{"x": x, "y": y} for x, y in ring.tolist()] for ring in rings(mask)]
    more = {key: item[key] for key in ("score", "crowd") if key in item}
    return {"label": f"label {item['label']:02}", **more, "contour": contour}


def write(folder: Path, images: int, *, polygons: bool) -> Files:
    """Write the files.

    Args:
        folder: Of the files.
        images: How many.
        polygons: Whether truths in COCO's file are polygons, but for crowds, instead of run lengths.
    """
    pick = np.random.default_rng(1)
    annotations: list[dict[str, Any]] = []
    results = []
    lines = []
    for image in range(1, images + 1):
        predictions, truths = objects(pick)
        segments: dict[str, list[Any]] = {"predictions": [], "ground_truth": []}
        for annotation in truths:
            mask = mask_of(annotation)
            shape = (
                [annotation["outline"].ravel().tolist()]
                if polygons and not annotation["crowd"]
                else None
            )
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": annotation["label"],
                    "segmentation": shape or written(mask),
                    "area": int(mask.sum()),
                    "iscrowd": int(annotation["crowd"]),
                }
            )
            segments["ground_truth"].append(segment(annotation, mask))
        for annotation in predictions:
            mask = mask_of(annotation)
            results.append(
                {
                    "image_id": image,
                    "category_id": annotation["label"],
                    "segmentation": written(mask),
                    "score": annotation["score"],
                }
            )
            segments["predictions"].append(segment(annotation, mask))
        lines.append({"id": str(image), "width": WIDTH, "height": HEIGHT, **segments})
    numbers = range(1, images + 1)
    truth = {
        "images": [{"id": number, "width": WIDTH, "height": HEIGHT} for number in numbers],
        "categories": [{"id": number, "name": f"label {number:02}"} for number in range(LABELS)],
        "annotations": annotations,
    }
    files = folder / "truth.json", folder / "results.json", folder / "lines.jsonl"
    for path, content in zip(files[:2], (truth, results), strict=True):
        path.write_bytes(msgspec.json.encode(content))
    files[2].write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines))
    return files


def theirs(files: Files) -> tuple[float, Doubles]:
    """Run pycocotools; return the time when it had loaded, and its numbers."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(files[0]))
        evaluation = COCOeval(truth, truth.loadRes(str(files[1])), "segm")
        loaded = time.process_time()
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return loaded, np.where(evaluation.stats < 0, np.nan, evaluation.stats)


def judged(state: EvaluationState) -> tuple[float, Doubles]:
    """Evaluate a whole state; return the time when that began, and its numbers."""
    loaded = time.process_time()
    headlines = InstanceEvaluator().evaluate(state).headlines(np.ones((1, len(state.ids))))
    return loaded, np.array([metric.values[0] for metric in headlines[:12]])


def from_coco(files: Files) -> tuple[float, Doubles]:
    """Evaluate COCO's files."""
    return judged(merge_states([coco_state(*files[:2])[1]]))


def from_wire(files: Files) -> tuple[float, Doubles]:
    """Evaluate lines of contours."""
    lines = files[2].read_bytes().splitlines()
    images = [msgspec.json.decode(line, type=EvaluatedImage) for line in lines]
    return judged(merge_states([build_state(InstanceEvaluator(), images, [])]))


def main() -> None:
    """Print times and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    sides: dict[str, Callable[[Files], tuple[float, Doubles]]] = {
        "pycocotools": theirs,
        "ours, COCO's files": from_coco,
        "ours, contours": from_wire,
    }
    print(
        f"{arguments.images} images x {TRUTHS} truths + {PREDICTIONS} predictions x {LABELS} labels"
    )
    for polygons in (False, True):
        with TemporaryDirectory() as folder:
            files = write(Path(folder), arguments.images, polygons=polygons)
            if polygons:  # contours mean other pixels
                del sides["ours, contours"]
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
            numbers = {}
            for _ in range(arguments.rounds):
                for name, side in sides.items():
                    started = time.process_time()
                    loaded, numbers[name] = side(files)
                    times[name].append((loaded - started, time.process_time() - loaded))
        print(f"\ntruths as {'polygons' if polygons else 'run lengths'}:")
        least = {name: np.min(rounds, axis=0) for name, rounds in times.items()}
        its_load, its_run = least["pycocotools"]
        for name, (load, run) in least.items():
            total = (its_load + its_run) / (load + run)
            apart = np.nanmax(np.abs(numbers[name] - numbers["pycocotools"]))
            print(
                f"  {name:<20} load {load:7.3f} s, evaluation {run:7.3f} s: {total:5.1f} x;"
                f" numbers apart {apart:.1e}"
            )


if __name__ == "__main__":
    main()
