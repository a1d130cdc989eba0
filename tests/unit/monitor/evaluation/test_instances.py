"""Segments of the wire as instances, beside pycocotools on the masks that their contours mean."""

from pathlib import Path

import cv2
import msgspec
import numpy as np
import pytest
from pycocotools import mask as coco

from quadriga.monitor.evaluation.evaluators import build_state
from quadriga.monitor.evaluation.objects.detection import DetectionEvaluator
from quadriga.monitor.evaluation.pixels.instances import InstanceEvaluator, pair_overlap
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    LabelNumbers,
    merge_states,
)
from quadriga.tasks.geometry import fill, rings
from tests.coco_reference import arrays_of, reference
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards, wire_image

WIDTH, HEIGHT = 150, 130
LABELS = ("apple", "bird", "cat")


def image_of(number, predictions, truths, **fields):
    size = {"width": WIDTH, "height": HEIGHT}
    return wire_image(number, predictions, truths, **size | fields)


def contour(*outlines):
    return [[{"x": x, "y": y} for x, y in ring] for ring in outlines]


def square(x, y, side):
    """Return the contour of a square of so many pixels."""
    last = side - 1
    return contour([(x, y), (x + last, y), (x + last, y + last), (x, y + last)])


def blob(pick):
    """Return the contour of an ellipse, sometimes with a hole, sometimes outside, of points between pixels."""
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    centre = pick.integers(0, (WIDTH, HEIGHT)).tolist()
    axes = pick.integers(0, 50, 2)
    cv2.ellipse(mask, centre, axes.tolist(), int(pick.integers(180)), 0, 360, 1, -1)
    if pick.random() < 0.3:
        cv2.ellipse(mask, centre, (axes // 2).tolist(), 0, 0, 360, 0, -1)
    outlines = [ring.tolist() for ring in rings(mask)]
    if pick.random() < 0.2:
        outlines = [[(x - 20, y + 10) for x, y in ring] for ring in outlines]
    if pick.random() < 0.2:
        outlines = [[(x + 0.3, y - 0.4) for x, y in ring] for ring in outlines]
    return contour(*outlines)


def case(seed):
    """Return images with crowds, ties, repeated contours and given areas."""
    pick = np.random.default_rng(seed)
    images = []
    for _ in range(9):
        truths = [
            {"label": str(pick.choice(LABELS)), "contour": blob(pick), "crowd": bool(pick.random() < 0.1)}
            for _ in range(pick.integers(0, 8))
        ]  # fmt: skip
        for annotation in truths:
            if pick.random() < 0.3:
                annotation["area"] = float(pick.choice([32**2, 96**2, 32**2 - 0.5, 96**2 + 0.5]))
        predictions = [
            {
                "label": str(pick.choice(LABELS)), "score": round(float(pick.random()), 1 + seed % 2),
                "contour": blob(pick),
            }
            for _ in range(pick.integers(0, 4))
        ] + [
            {**annotation, "score": round(float(pick.random()), 1)}
            for annotation in truths for _ in range(pick.integers(0, 3))
        ]  # fmt: skip
        images.append((predictions, truths))
    return images


def encoded(segment):
    outlines = [np.rint([(p["x"], p["y"]) for p in ring]).astype(np.int32) for ring in segment]
    return coco.encode(np.asfortranarray(fill(outlines, WIDTH, HEIGHT)))


def as_coco(images):
    annotations, results = [], []
    for number, (predictions, truths) in enumerate(images, 1):
        for item in truths:
            segmentation = encoded(item["contour"])
            annotations.append(
                {
                    "id": len(annotations) + 1, "image_id": number, "segmentation": segmentation,
                    "category_id": LABELS.index(item["label"]), "iscrowd": int(item["crowd"]),
                    "area": item.get("area", float(coco.area(segmentation))),
                }
            )  # fmt: skip
        results += [
            {
                "image_id": number, "category_id": LABELS.index(item["label"]), "score": item["score"],
                "segmentation": encoded(item["contour"]),
            }
            for item in predictions
        ]  # fmt: skip
    dataset = {
        "info": {},
        "images": [
            {"id": at, "width": WIDTH, "height": HEIGHT} for at in range(1, len(images) + 1)
        ],
        "categories": [{"id": at} for at in range(len(LABELS))],
        "annotations": annotations,
    }
    return dataset, results


@pytest.mark.parametrize("seed", range(12))
def test_contours_are_judged_as_the_reference_judges_their_masks(seed):
    images = case(seed)
    shards = np.random.default_rng(seed).integers(0, 3, len(images))
    evaluated = [image_of(at, *item) for at, item in enumerate(images, 1)]
    states = [
        build_state(
            InstanceEvaluator(),
            [
                item
                for item, image_shard in zip(evaluated, shards, strict=True)
                if image_shard == shard
            ],
            [],
        )
        for shard in range(3)
    ]
    state = merge_states(states)
    assert state.labels == list(LABELS)
    theirs = reference(*as_coco(images), "segm")
    for ours, its in zip(arrays_of(state, pair_overlap(state)), theirs, strict=True):
        np.testing.assert_allclose(ours, its, rtol=0, atol=1e-12)
    headlines = InstanceEvaluator().evaluate(state).headlines(np.ones((1, len(state.ids))))[:12]
    np.testing.assert_allclose(
        [item.values[0] for item in headlines[:12]], theirs[3], rtol=0, atol=1e-12
    )
    merged_state = state_of_shards(InstanceEvaluator(), evaluated)
    for name, table in merged_state.tables.items():
        for key, column in table.items():
            assert column.dtype == state.tables[name][key].dtype
            np.testing.assert_array_equal(column, state.tables[name][key])


def tables(predictions, truths, **fields):
    return InstanceEvaluator().tables([image_of(1, predictions, truths, **fields)], LabelNumbers())


def test_tables_hold_pixels_and_pairs_of_any_labels():
    actual = tables(
        [
            {"label": "a", "score": 0.5, "contour": square(0, 0, 20)},
            {"label": "b", "score": 0.75, "contour": []},
            {"label": "b", "score": 0.25, "contour": square(10, 0, 20)},
        ],
        [
            {"label": "b", "contour": square(0, 0, 10), "area": 7},
            {"label": "b", "contour": square(0, 0, 40), "crowd": True, "difficult": True},
            {"label": "c", "contour": square(90, 90, 4)},
        ],
    )
    predictions, truths, pairs = actual["predictions"], actual["truths"], actual["pairs"]
    assert predictions["area"].tolist() == [400, 0, 400]
    assert predictions["score"].tolist() == [0.5, 0.75, 0.25]
    assert predictions["number"].tolist() == [0, 1, 2]
    assert predictions["label"].tolist() == [0, 1, 1]
    assert truths["area"].tolist() == [7, 1600, 16]
    assert truths["label"].tolist() == [1, 1, 2]
    assert truths["crowd"].tolist() == truths["difficult"].tolist() == [False, True, False]
    assert {name: column.tolist() for name, column in pairs.items()} == {
        "image": [0, 0, 0],
        "prediction": [0, 0, 2],
        "truth": [0, 1, 1],
        "overlap": [0.25, 1.0, 1.0],
    }


def rectangle(left, top, right, bottom):
    return contour([(left, top), (right - 1, top), (right - 1, bottom - 1), (left, bottom - 1)])


@pytest.mark.parametrize("seed", range(4))
def test_masks_that_are_boxes_are_judged_as_boxes(seed):
    """Headlines, curves, confusion and kinds of errors: only what the overlap is called differs."""
    pick = np.random.default_rng(seed)
    masks, boxes = [], []
    for number in range(12):
        both = [], []
        for _ in range(pick.integers(0, 14)):
            left, top = pick.integers(0, 10, 2) * 4
            right, bottom = (left, top) + pick.integers(1, 12, 2) * 4
            corners = [int(side) for side in (left, top, right, bottom)]
            shared = {"label": str(pick.choice(LABELS))}
            which = int(pick.random() < 0.5)
            if which:
                shared |= {
                    "crowd": bool(pick.random() < 0.1),
                    "difficult": bool(pick.random() < 0.1),
                }
            else:
                shared["score"] = round(float(pick.random()), 1)
            box = dict(zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True))
            both[which].append(({**shared, "contour": rectangle(*corners)}, {**shared, **box}))
        for at, images in enumerate((masks, boxes)):
            images.append(image_of(number, *([item[at] for item in side] for side in both)))
    reports = []
    for evaluation, images in ((InstanceEvaluator(), masks), (DetectionEvaluator(), boxes)):
        report = evaluate_state(
            evaluation,
            state_of_shards(evaluation, images),
            task="",
            options=EvaluationOptions(resamples=5),
        )
        encoded = msgspec.to_builtins(report, enc_hook=lambda raw: bytes(raw).decode())
        assert encoded["parameters"].pop("overlap") in ("mask", "box")
        reports.append(
            {
                key: encoded[key]
                for key in encoded.keys() - {"id", "created", "provenance", "warnings"}
            }
        )
    assert reports[0] == reports[1]
    assert reports[0]["metrics"]
    assert reports[0]["confusion"]["examples"]


def test_the_documented_squares_overlap_by_a_third():
    text = Path("docs/evaluation-reference.md").read_text(encoding="utf-8")
    line = text.partition("## Masks")[2].partition("```json")[2].partition("```")[0]
    actual = InstanceEvaluator().tables(
        [msgspec.json.decode(line, type=EvaluatedImage)], LabelNumbers()
    )
    assert actual["predictions"]["area"].tolist() == actual["truths"]["area"].tolist() == [400]
    assert actual["pairs"]["overlap"].tolist() == [1 / 3]


def test_nothing_makes_the_same_columns():
    none = InstanceEvaluator().tables([], LabelNumbers())
    nonempty = tables([{"label": "a", "score": 0.5, "contour": square(0, 0, 2)}], [])
    for name, table in nonempty.items():
        assert {key: column.dtype for key, column in table.items()} == {
            key: column.dtype for key, column in none[name].items()
        }
    assert tables([], [], width=None)["truths"]["image"].tolist() == []


SEGMENT = {"label": "a", "score": 0.5, "contour": square(0, 0, 2)}
FAR = {**SEGMENT, "contour": contour([(0, 0), (1e300, 0)])}


@pytest.mark.parametrize(
    ("predictions", "truths", "fields", "message"),
    [
        ([SEGMENT], [], {"width": None}, "image '1': width and height are required"),
        ([], [SEGMENT], {"height": 0}, "image '1': width and height are required"),
        ([{"label": "a"}], [], {}, "image '1': predictions\\[0\\]: expected a field `score`"),
        ([], [{"label": "a"}], {}, "image '1': ground_truth\\[0\\]: expected a field `contour`"),
        ([SEGMENT, FAR], [], {}, "image '1': predictions\\[1\\]: expected points near the image, got one beyond"),
        ([{**SEGMENT, "score": 1e51}], [], {}, "image '1': predictions\\[0\\].score: expected `float` <= 1e\\+50"),
        ([], [{**SEGMENT, "area": -1}], {}, "image '1': ground_truth\\[0\\].area: expected `float` >= 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_image_is_named(predictions, truths, fields, message):
    with pytest.raises(EvaluationError, match=message):
        tables(predictions, truths, **fields)


def test_regions_that_are_no_objects_are_passed_over():
    first = {"contour": square(10, 10, 20)}
    second = {"contour": square(12, 10, 20)}
    image = image_of(
        1,
        [{"label": "background", "score": 1, **first}, {"label": "cat", "score": 0.5, **first}],
        [{"label": "void", **second}, {"label": "cat", **second}, {"label": "ignore", **first}],
    )
    state = state_of_shards(InstanceEvaluator(), [image])
    assert state.labels == ["cat"]
    assert state.tables["predictions"]["number"].tolist() == [1]
    assert state.tables["truths"]["number"].tolist() == [1]
    assert state.tables["pairs"]["truth"].tolist() == [1]
    assert pair_overlap(state)(np.array([0]), np.array([0])).tolist() == [360 / 440]
