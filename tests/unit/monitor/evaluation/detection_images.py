"""Images with boxes, made with all that evaluators differ on, and in COCO's form."""

import msgspec
import numpy as np

from tests.unit.monitor.evaluation.evaluation_images import wire_image

LABELS = ("bus", "car", "dog")


def box(label, *corners, **fields):
    return {
        "label": label,
        **dict(zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)),
    } | fields


def made(seed, *, images=12, ties=True, crowds=True, labels=LABELS):
    """Make images with all that evaluators differ on; without ties, all scores differ."""
    pick = np.random.default_rng(seed)
    step = 8.0 if seed % 2 == 0 and ties else 0.37
    result = []
    for number in range(images):
        truths, predictions = [], []
        for _ in range(pick.integers(0, 7)):
            low, sides = pick.integers(0, 20, 2) * step, (pick.integers(1, 15, 2)) * step
            annotation = box(str(pick.choice(labels)), *low.tolist(), *(low + sides).tolist())
            if pick.random() < 0.2:
                annotation["area"] = float(pick.choice([32**2, 96**2, 32**2 - 0.5, 3.5]))
            if crowds and pick.random() < 0.1:
                annotation["crowd"] = True
            truths.append(annotation)
        most = 350 if seed % 5 == 0 and number == 0 else 10
        for _ in range(pick.integers(0, most + 1)):
            low, sides = pick.integers(0, 20, 2) * step, (pick.integers(1, 15, 2)) * step
            label = str(pick.choice([*labels, "unseen"] if seed % 3 == 0 else labels))
            if truths and pick.random() < 0.7:
                target = truths[pick.integers(len(truths))]
                low = np.array([target["xmin"], target["ymin"]]) + pick.integers(-1, 2, 2) * step
                sides = (
                    np.array([target["xmax"], target["ymax"]]) - low + pick.integers(0, 2, 2) * step
                )
                label = label if pick.random() < 0.2 else target["label"]
            score = round(float(pick.random()), 1) if ties else float(pick.random())
            predictions.append(box(label, *low.tolist(), *(low + sides).tolist(), score=score))
        result.append(wire_image(1000 + number, predictions, truths))
    return result


def coco_of(images):
    """Return images as COCO has them: dataset and results."""
    annotations, results = [], []
    names = sorted(
        {
            item["label"]
            for image in images
            for side in (image.predictions, image.ground_truth)
            for item in msgspec.json.decode(side)
        }
    )
    for image in images:
        for item in msgspec.json.decode(image.ground_truth):
            sides = [item["xmax"] - item["xmin"], item["ymax"] - item["ymin"]]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": int(image.id),
                    "category_id": names.index(item["label"]) + 1,
                    "bbox": [item["xmin"], item["ymin"], *sides],
                    "area": item.get("area", sides[0] * sides[1]),
                    "iscrowd": int(item.get("crowd", False)),
                }
            )
        for item in msgspec.json.decode(image.predictions):
            sides = [item["xmax"] - item["xmin"], item["ymax"] - item["ymin"]]
            results.append(
                {
                    "image_id": int(image.id),
                    "category_id": names.index(item["label"]) + 1,
                    "bbox": [item["xmin"], item["ymin"], *sides],
                    "score": item["score"],
                }
            )
    dataset = {
        "info": {},
        "images": [{"id": int(image.id), "width": 500, "height": 500} for image in images],
        "categories": [{"id": number, "name": name} for number, name in enumerate(names, 1)],
        "annotations": annotations,
    }
    return dataset, results
