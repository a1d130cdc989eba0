"""COCO's files through the whole evaluation, beside pycocotools."""

import msgspec
import numpy as np
import pytest
from pycocotools import mask as coco

from quadriga.monitor.evaluation.evaluators import load_evaluator
from quadriga.monitor.evaluation.files.coco import coco_state
from quadriga.monitor.evaluation.objects.detection import box_overlap
from quadriga.monitor.evaluation.pixels.instances import InstanceEvaluator, pair_overlap
from quadriga.monitor.evaluation.state import EvaluationError, merge_states
from tests.coco_reference import arrays_of, reference

# pycocotools' own.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIDE = 160
LABELS = ("bird", "cat", "apple")
"""Labels in the order of their category ids, not of the alphabet."""


def dataset(annotations, images=8):
    return {
        "info": {},
        "images": [
            {"id": at, "width": SIDE, "height": SIDE, "file_name": f"{at}.png", "camera": {"id": at % 2}}
            for at in range(images, 0, -1)
        ],
        "categories": [{"id": 7 * at, "name": name} for at, name in enumerate(LABELS, 1)],
        "annotations": [{"id": at, **annotation} for at, annotation in enumerate(annotations, 1)],
    }  # fmt: skip


def annotation(image, label, **fields):
    return {"image_id": image, "category_id": 7 * label, "iscrowd": 0, **fields}


def written(mask, *, plain=False):
    """Write a mask as results have it, or as crowds have it."""
    encoded = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    if not plain:
        return {**encoded, "counts": encoded["counts"].decode()}
    flat = mask.ravel(order="F").astype(np.int8)
    bounds = np.flatnonzero(np.diff(flat, prepend=0)).tolist()
    return {"size": list(mask.shape), "counts": np.diff([0, *bounds, flat.size]).tolist()}


def disc(x, y, radius, hole=0.0):
    rows, columns = np.mgrid[:SIDE, :SIDE]
    distance = np.hypot(columns - x, rows - y)
    return (distance <= radius) & (distance >= hole)


def mask_case(seed):
    """Return annotations and results: discs with holes, polygons, crowds, ties, areas on the borders."""
    pick = np.random.default_rng(seed)
    annotations, results = [], []
    for image in range(1, 9):
        image_masks = []
        for _ in range(pick.integers(0, 7)):
            x, y, radius = pick.integers(0, (SIDE, SIDE, 55)).tolist()
            label, crowd = int(pick.integers(1, 4)), pick.random() < 0.15
            mask = disc(x, y, radius, radius * pick.choice([0, 0, 0.5]))
            segmentation = written(mask, plain=crowd)
            if not crowd and pick.random() < 0.4:
                turn = np.linspace(0, 2 * np.pi, pick.integers(3, 20))
                around = np.stack([x + radius * np.cos(turn), y + radius * np.sin(turn)], axis=1)
                segmentation = [around.ravel().tolist(), (around / 2).ravel().tolist()]
            area = float(pick.choice([mask.sum(), 32**2, 96**2, 32**2 - 0.5, 96**2 + 0.5]))
            image_masks.append((label, x, y, radius))
            annotations.append(
                annotation(image, label, segmentation=segmentation, area=area, iscrowd=int(crowd))
            )
        for _ in range(pick.integers(0, 12)):
            label, x, y, radius = (
                int(pick.integers(1, 4)),
                *pick.integers(0, (SIDE, SIDE, 55)).tolist(),
            )
            if image_masks and pick.random() < 0.8:
                label, x, y, radius = image_masks[pick.integers(len(image_masks))]
                x, y, radius = (np.array((x, y, radius)) + pick.choice([-4, 0, 0, 4], 3)).tolist()
            results.append(
                {
                    "image_id": image, "category_id": 7 * label,
                    "segmentation": written(disc(x, y, radius)),
                    "score": round(float(pick.random()), (1, 3, 15)[seed % 3]),
                }
            )  # fmt: skip
    return annotations, results


def box_case(seed):
    pick = np.random.default_rng(seed)
    annotations, results = [], []
    for image in range(1, 9):
        for at in range(pick.integers(0, 25)):
            x, y, *sides = pick.uniform(0, 100, 4).round(2).tolist()
            label, crowd = int(pick.integers(1, 4)), int(pick.random() < 0.1)
            area = float(pick.choice([sides[0] * sides[1], 32**2, 96**2]))
            if at % 3:
                annotations.append(
                    annotation(
                        image, label, bbox=[x, y, *sides], area=area, iscrowd=crowd, ignore=1
                    )
                )
            score = round(float(pick.random()), 2)
            moved = [x + float(pick.choice([0, 5, 20])), y, *sides]
            results.append(
                {"image_id": image, "category_id": 7 * label, "bbox": moved, "score": score}
            )
    return annotations, results


def files(folder, truth, results):
    places = folder / "truth.json", folder / "results.json"
    for place, content in zip(places, (truth, results), strict=True):
        place.write_bytes(msgspec.json.encode(content))
    return places


def assert_as_reference(folder, truth, results, kind):
    task = {"segm": "IMAGE_SEGMENTATION", "bbox": "OBJECT_DETECTION"}[kind]
    task_name, state = coco_state(*files(folder, truth, results), task=None if results else task)
    assert task_name == task
    state = merge_states([state])
    overlap = (pair_overlap if kind == "segm" else box_overlap)(state)
    # The order of our labels, which are sorted by name.
    order = np.argsort(LABELS)
    theirs = reference(truth, results, kind)
    for at, (ours, its) in enumerate(zip(arrays_of(state, overlap), theirs, strict=True)):
        if at < 3:
            its = its[..., order, :, :]  # noqa: PLW2901
        np.testing.assert_allclose(ours, its, rtol=0, atol=1e-12)
    evaluation = InstanceEvaluator() if kind == "segm" else load_evaluator(task)
    headlines = evaluation.evaluate(state).headlines(np.ones((1, len(state.ids))))[:12]
    np.testing.assert_allclose(
        [headline.values[0] for headline in headlines[:12]], theirs[3], rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("seed", range(12))
def test_masks_of_files_are_judged_as_the_reference_does(tmp_path, seed):
    annotations, results = mask_case(seed)
    assert_as_reference(tmp_path, dataset(annotations), results, "segm")


@pytest.mark.parametrize("seed", range(12))
def test_boxes_of_files_are_judged_as_the_reference_does(tmp_path, seed):
    annotations, results = box_case(seed)
    assert_as_reference(tmp_path, dataset(annotations), results, "bbox")


def there(image, label, mask, **fields):
    return annotation(
        image, label, segmentation=written(mask), **{"area": float(mask.sum()), **fields}
    )


def found(image, label, mask, score):
    return {
        "image_id": image, "category_id": 7 * label, "segmentation": written(mask), "score": score,
    }  # fmt: skip


def box(x, y, width, height):
    mask = np.zeros((SIDE, SIDE), bool)
    mask[y : y + height, x : x + width] = True
    return mask


SQUARE = box(0, 0, 40, 40)
NOTHING = box(0, 0, 0, 0)
CASES = {
    "perfect": ([there(1, 1, SQUARE)], [found(1, 1, SQUARE, 0.9)]),
    "nothing was found": ([there(1, 1, SQUARE)], []),
    "nothing is there": ([], [found(1, 1, SQUARE, 0.9)]),
    "an empty answer": ([there(1, 1, SQUARE)], [found(1, 1, NOTHING, 0.9), found(1, 1, SQUARE, 0.8)]),
    "an empty truth": ([there(1, 1, NOTHING), there(1, 1, SQUARE)], [found(1, 1, SQUARE, 0.8)]),
    "only an empty crowd": ([there(1, 1, NOTHING, iscrowd=1)], [found(1, 1, NOTHING, 0.9)]),
    "one pixel": ([there(1, 1, box(159, 159, 1, 1))], [found(1, 1, box(159, 159, 1, 1), 0.9)]),
    "the whole image": ([there(1, 1, box(0, 0, 160, 160))], [found(1, 1, box(0, 0, 160, 160), 0.9)]),
    "whole columns": ([there(1, 1, box(3, 0, 60, 160))], [found(1, 1, box(5, 0, 60, 160), 0.9)]),
    "frames meet but not pixels": (
        [there(1, 1, disc(80, 80, 50, 30))],
        [found(1, 1, disc(80, 80, 29), 0.9), found(1, 1, disc(80, 80, 50), 0.5)],
    ),
    "tied scores in two images": (
        [there(1, 1, SQUARE), there(2, 1, SQUARE)],
        [found(2, 1, SQUARE, 0.5), found(1, 1, box(90, 90, 5, 5), 0.5), found(1, 1, SQUARE, 0.5)],
    ),
    "a crowd is taken last": (
        [there(1, 1, SQUARE, iscrowd=1), there(1, 1, box(0, 0, 30, 40))],
        [found(1, 1, SQUARE, 0.9), found(1, 1, SQUARE, 0.8), found(1, 1, box(30, 30, 20, 20), 0.7)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_edge_cases_are_those_of_the_reference(tmp_path, name):
    annotations, results = CASES[name]
    assert_as_reference(tmp_path, dataset(annotations, images=2), results, "segm")


def test_images_of_many_parts_are_one_state(tmp_path, monkeypatch):
    places = files(tmp_path, dataset((case := mask_case(1))[0]), case[1])
    _, at_once = coco_state(*places)
    monkeypatch.setattr("quadriga.monitor.evaluation.files.coco._PIXELS", SIDE * SIDE * 7)
    _, in_chunks = coco_state(*places)
    assert msgspec.json.encode(plain(at_once)) == msgspec.json.encode(plain(in_chunks))


def plain(state):
    tables = {
        name: {key: column.tolist() for key, column in table.items()}
        for name, table in state.tables.items()
    }
    return [*state[:2], state.sizes.tolist(), *state[3:5], tables, state.excluded]


@pytest.mark.parametrize("case", [mask_case, box_case])
@pytest.mark.parametrize("seed", range(4))
def test_any_dealing_of_the_images_gives_the_same_whole(tmp_path, seed, case):
    annotations, results = case(seed)
    truth = dataset(annotations)
    merged = merge_states([coco_state(*files(tmp_path, truth, results), ["meta.camera.id"])[1]])
    pick = np.random.default_rng(seed)
    shard = pick.integers(0, 3, 9)
    task = None
    states = []
    for number in pick.permutation(3):
        instances = {
            **truth,
            "images": [result for result in truth["images"] if shard[result["id"]] == number],
            "annotations": [
                result for result in annotations if shard[result["image_id"]] == number
            ],
        }
        mine = [result for result in results if shard[result["image_id"]] == number]
        task = "segmentation" if case is mask_case else "detection"
        states.append(coco_state(*files(tmp_path, instances, mine), ["meta.camera.id"], task)[1])
    assert msgspec.json.encode(plain(merge_states(states))) == msgspec.json.encode(plain(merged))


def test_images_are_named_and_sliced_and_labels_without_truth_stay(tmp_path):
    truth = dataset([there(2, 1, SQUARE), there(9, 1, SQUARE), annotation(1, 5)], images=2)
    _, state = coco_state(*files(tmp_path, truth, []), ["meta.camera.id", "meta.x"], "segmentation")
    state = merge_states([state])
    assert state.ids == ["1", "2"]
    assert state.images == ["1.png", "2.png"]
    assert state.sizes.tolist() == [[SIDE, SIDE]] * 2
    assert state.slices == {"meta.camera.id": ["1", "0"], "meta.x": [None, None]}
    assert state.labels == ["apple", "bird", "cat"]
    assert state.excluded == {"unlisted_annotation": 2}
    truth["images"][0]["file_name"] = "1.png"
    assert coco_state(*files(tmp_path, truth, []), task="segmentation")[1].images == ["2", "1"]


def test_results_with_boxes_and_masks_are_masks_unless_boxes_are_asked_for(tmp_path):
    """The area of a mask is its pixels; that of pycocotools is its box's if the result has one."""
    result = {**found(1, 1, disc(50, 50, 20), 0.5), "bbox": [30, 30, 41, 41]}
    truth = dataset([there(1, 1, SQUARE, bbox=[0, 0, 40, 40])])
    places = files(tmp_path, truth, [result])
    task, state = coco_state(*places)
    assert task == "IMAGE_SEGMENTATION"
    assert state.tables["predictions"]["area"].tolist() == [disc(50, 50, 20).sum()]
    task, state = coco_state(*places, task="detection")
    assert task == "OBJECT_DETECTION"
    assert state.tables["predictions"]["box"].tolist() == [[30, 30, 41, 41]]


def without(rows, key):
    return {name: value for name, value in rows.items() if name != key}


GOOD = dataset([there(1, 1, SQUARE, bbox=[0, 0, 40, 40])], images=1)
ANSWER = found(1, 1, SQUARE, 0.9)
WRONG = {
    r"results.json\[1\]: expected image_id to be one of the images, got 2": (
        GOOD, [ANSWER, {**ANSWER, "image_id": 2}],
    ),
    r"results.json\[1\]: expected category_id to be one of the categories, got 8": (
        GOOD, [ANSWER, {**ANSWER, "category_id": 8}],
    ),
    r"results.json\[1\]: expected a field `score`": (
        GOOD, [ANSWER, without(ANSWER, "score")],
    ),
    "truth.json: expected a field `annotations`": (without(GOOD, "annotations"), []),
    r"truth.json: images\[0\]: expected a field `id`": ({**GOOD, "images": [{}]}, []),
    r"truth.json: images\[0\]\.width: expected `int` >= 0": (
        {**GOOD, "images": [{"id": 1, "width": -1}]}, [],
    ),
    "truth.json: images: id: expected each once, got 1 twice": (
        {**GOOD, "images": GOOD["images"] * 2}, [],
    ),
    "truth.json: categories: name: expected each once, got 'cat' twice": (
        {**GOOD, "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "cat"}]}, [],
    ),
    "image 1: expected width and height of 1 to 524288, got 0 and 0": (
        {**GOOD, "images": [{"id": 1}]}, [ANSWER],
    ),
    r"truth.json: annotations\[0\]: expected a segmentation of 160 x 160, .* got none": (
        {**GOOD, "annotations": [annotation(1, 1, bbox=[0, 0, 4, 4])]}, [ANSWER],
    ),
    r"results.json\[0\]: expected a segmentation of 160 x 160, .* got one of 100 x 160": (
        GOOD, [{**ANSWER, "segmentation": {"size": [100, 160], "counts": [16000]}}],
    ),
    r"results.json\[0\]\.segmentation\.counts\[0\]: expected `int` <= 4294967295": (
        GOOD, [{**ANSWER, "segmentation": {"size": [160, 160], "counts": [2**62]}}],
    ),
    r"results.json\[0\]: expected bbox to be x, y, width and height, got \(0.0, 0.0, -1.0, 4.0\)": (
        GOOD, [{**without(ANSWER, "segmentation"), "bbox": [0, 0, -1, 4]}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_with_a_file_is_named(tmp_path, message):
    with pytest.raises(EvaluationError, match=message):
        coco_state(*files(tmp_path, *WRONG[message]))


def test_only_boxes_and_masks_come_in_these_files(tmp_path):
    with pytest.raises(EvaluationError, match="expected OBJECT_DETECTION or IMAGE_SEGMENTATION"):
        coco_state(*files(tmp_path, GOOD, []), task="classification")
