"""Oriented boxes by DOTA's rule, beside a plain loop, and by COCO's, beside pycocotools."""

import contextlib
import io
from itertools import product

import msgspec
import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from quadriga.monitor.evaluation.evaluators import build_state
from quadriga.monitor.evaluation.metric_settings import MetricSettings
from quadriga.monitor.evaluation.objects.oriented import (
    IOU_THRESHOLDS,
    RULES,
    OrientedDetectionEvaluator,
    oriented_overlap,
)
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import merge_states, select_images
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards, wire_image

LABELS = "abc"


def wire(label, box, **fields):
    named = zip(("cx", "cy", "w", "h", "r"), box, strict=True)
    return {"label": label, **{name: float(value) for name, value in named}, **fields}


def images_of(cases):
    return [
        wire_image(number, predictions, annotations, 1, 1)
        for number, (predictions, annotations) in enumerate(cases)
    ]


def random_cases(seed, *, crowds=True, images=12):
    """Ties in score and in overlap, difficult objects and crowds, images with nothing."""
    pick = np.random.default_rng(seed)
    digits = (1, 6)[seed % 2]

    def box():
        if seed % 3 == 0:  # on a grid, with equal overlaps
            return [*pick.integers(0, 5, 2) * 10.0, 20, 20, pick.integers(0, 2) * np.pi / 2]
        return [*pick.uniform(0, 90, 2), *pick.uniform(5, 60, 2), pick.uniform(-3, 3)]

    cases = []
    for _ in range(images):
        there = [
            wire(
                LABELS[pick.integers(3)],
                box(),
                difficult=bool(pick.random() < 0.2),
                crowd=bool(crowds and pick.random() < 0.1),
            )
            for _ in range(pick.integers(0, 7))
        ]
        predictions = []
        for _ in range(pick.integers(0, 14)):
            label, around = LABELS[pick.integers(3)], box()
            if there and pick.random() < 0.7:
                target = there[pick.integers(len(there))]
                label = target["label"]
                shift = pick.choice([0, 10], 5) if seed % 3 == 0 else pick.normal(0, 3, 5)
                around = np.array([target[name] for name in ("cx", "cy", "w", "h", "r")])
                around = around + shift * (1, 1, 0.5, 0.5, 0.02)
                around[2:4] = np.maximum(around[2:4], 1)
            predictions.append(wire(label, around, score=round(float(pick.random()), digits)))
        cases.append((predictions, there))
    return cases


def voc_ap(rec, prec, eleven):
    """Average precision as in DOTA's development kit."""
    if eleven:
        ap = 0.0
        for t in np.arange(0.0, 1.1, 0.1):
            p = 0 if np.sum(rec >= t) == 0 else np.max(prec[rec >= t])
            ap = ap + p / 11.0
        return ap
    mrec = np.concatenate(([0.0], rec, [1.0]))
    mpre = np.concatenate(([0.0], prec, [0.0]))
    for i in range(mpre.size - 1, 0, -1):
        mpre[i - 1] = np.maximum(mpre[i - 1], mpre[i])
    i = np.where(mrec[1:] != mrec[:-1])[0]
    return np.sum((mrec[i + 1] - mrec[i]) * mpre[i + 1])


def best_overlaps(state, label):
    """Each prediction's best overlap and the object that has it, by falling score; -1 for none."""
    predictions, annotations = state.tables["predictions"], state.tables["truths"]
    overlap = oriented_overlap(state, crowds=False)
    frames = [
        (table["centre"][:, None] + table["corners"].reshape(-1, 4, 2))
        for table in (predictions, annotations)
    ]
    rows = np.flatnonzero(predictions["label"] == label)
    rows = rows[np.argsort(-predictions["score"][rows], kind="stable")]
    pairs = []
    for row in rows:
        is_candidate = (annotations["image"] == predictions["image"][row]) & (
            annotations["label"] == label
        )
        low = np.maximum(frames[0][row].min(axis=0), frames[1].min(axis=1))
        high = np.minimum(frames[0][row].max(axis=0), frames[1].max(axis=1))
        is_candidate = np.flatnonzero(is_candidate & (high - low + 1.0 > 0).all(axis=1))
        best, jmax = -np.inf, -1
        if len(is_candidate):
            overlaps = overlap(np.full(len(is_candidate), row), is_candidate)
            best, jmax = np.max(overlaps), is_candidate[np.argmax(overlaps)]
        pairs.append((best, jmax))
    return pairs


def voc_eval(state, label, pairs, threshold, eleven):
    """The rule of `dota_evaluation_task1.py`, prediction by prediction."""
    there = state.tables["truths"]
    difficult = there["difficult"] | there["crowd"]
    npos = int((~difficult & (there["label"] == label)).sum())
    taken = set()
    tp, fp = np.zeros(len(pairs)), np.zeros(len(pairs))
    for d, (best, jmax) in enumerate(pairs):
        if best > threshold:
            if not difficult[jmax]:
                if jmax not in taken:
                    tp[d] = 1.0
                    taken.add(jmax)
                else:
                    fp[d] = 1.0
        else:
            fp[d] = 1.0
    if npos == 0:
        return None
    fp, tp = np.cumsum(fp), np.cumsum(tp)
    prec = tp / np.maximum(tp + fp, np.finfo(np.float64).eps)
    return voc_ap(tp / float(npos), prec, eleven)


def of_rule(metrics):
    return {
        (
            metric.parameters["rule"],
            metric.parameters["iou"],
            metric.parameters["label"],
        ): metric.value
        for metric in metrics
        if metric.type == "AP" and metric.parameters["rule"] in RULES
    }


def report(images, resamples=0, iou=None):
    state = state_of_shards(OrientedDetectionEvaluator(), images)
    return evaluate_state(
        OrientedDetectionEvaluator(),
        state,
        task="ORIENTED_OBJECT_DETECTION",
        options=EvaluationOptions(resamples, metrics=MetricSettings(iou=iou)),
    )


SHIP = [10, 10, 20, 10, 0.5]
SPECIAL = {
    "perfect": [([wire("a", SHIP, score=1)], [wire("a", SHIP)])],
    "twice": [([wire("a", SHIP, score=s) for s in (1, 0.9)], [wire("a", SHIP)])],
    "nothing found": [([], [wire("a", SHIP)])],
    "nothing there": [([wire("a", SHIP, score=1)], [])],
    "no image": [],
    "an empty image": [([], [])],
    "only difficult": [([wire("a", SHIP, score=1)], [wire("a", SHIP, difficult=True)])],
    "only a crowd": [([wire("a", SHIP, score=1)] * 2, [wire("a", SHIP, crowd=True)])],
    "another label": [([wire("b", SHIP, score=1)], [wire("a", SHIP)])],
    "of exactly a half": [
        ([wire("a", [0, 0, 20, 10, 0], score=1)], [wire("a", [0, 0, 10, 10, 0])])
    ],
    "no second choice": [
        (
            [wire("a", [0, 0, 20, 10, 0], score=1), wire("a", [1, 0, 20, 10, 0], score=0.9)],
            [wire("a", [0, 0, 20, 10, 0]), wire("a", [3, 0, 20, 10, 0])],
        )
    ],
    "equal overlaps: the first is taken": [
        (
            [wire("a", [0, 0, 20, 10, 0], score=1), wire("a", [3, 0, 20, 10, 0], score=0.9)],
            [wire("a", [3, 0, 20, 10, 0]), wire("a", [-3, 0, 20, 10, 0])],
        )
    ],
    "a difficult one is overlapped more": [
        (
            [wire("a", [0, 0, 20, 10, 0], score=1)],
            [wire("a", [2, 0, 20, 10, 0]), wire("a", [1, 0, 20, 10, 0], difficult=True)],
        )
    ],
}


@pytest.mark.parametrize(
    "cases", [*SPECIAL.values(), *map(random_cases, range(30))], ids=[*SPECIAL, *range(30)]
)
def test_numbers_are_those_of_the_development_kit(cases):
    images = images_of(cases)
    state = state_of_shards(OrientedDetectionEvaluator(), images)
    metrics = of_rule(report(images).metrics)
    assert len(metrics) == 4 * (1 + len(state.labels))
    pairs = [best_overlaps(state, label) for label in range(len(state.labels))]
    for rule in RULES:
        for threshold in IOU_THRESHOLDS:
            expected = [
                voc_eval(
                    state, label, label_pairs, threshold=threshold, eleven=rule == "DOTA VOC07"
                )
                for label, label_pairs in enumerate(pairs)
            ]
            for label, value in zip(state.labels, expected, strict=True):
                assert metrics[rule, threshold, label] == pytest.approx(value, abs=1e-9)
            defined = [value for value in expected if value is not None]
            mean = np.mean(defined) if defined else None
            assert metrics[rule, threshold, None] == pytest.approx(mean, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_numbers_at_chosen_thresholds_are_those_of_the_development_kit(seed):
    images, chosen = images_of(random_cases(seed)), (0.6, 0.3, 0.85)
    state = state_of_shards(OrientedDetectionEvaluator(), images)
    chosen_report = report(images, iou=chosen)
    metrics = of_rule(chosen_report.metrics)
    assert len(metrics) == len(RULES) * len(chosen) * (1 + len(state.labels))
    for label, name in enumerate(state.labels):
        pairs = best_overlaps(state, label)
        for rule, threshold in product(RULES, chosen):
            expected = voc_eval(
                state, label, pairs, threshold=threshold, eleven=rule == "DOTA VOC07"
            )
            assert metrics[rule, threshold, name] == pytest.approx(expected, abs=1e-9)
    assert chosen_report.parameters["dota"]["iou_above"] == chosen


def test_the_rule_tells_what_it_says():
    """An overlap of exactly 0.5 does not match, and a prediction has no second choice: by hand."""
    for name, value in {
        "of exactly a half": 0,
        "no second choice": 0.5,
        "equal overlaps: the first is taken": 0.5,
        "only difficult": None,
        "a difficult one is overlapped more": 0,
        "twice": 1,
    }.items():
        metrics = of_rule(report(images_of(SPECIAL[name])).metrics)
        assert metrics["DOTA VOC12", 0.5, "a"] == value, name


def overall(headlines):
    return [headline for headline in headlines if headline.parameters["label"] is None]


def test_weights_are_as_if_images_were_there_so_often():
    cases = random_cases(1)
    images = images_of(cases)
    state = state_of_shards(OrientedDetectionEvaluator(), images)
    weights = np.random.default_rng(0).integers(0, 3, (6, len(images))).astype(float)
    weights[0] = 1
    weights[1] = 0
    headlines = overall(OrientedDetectionEvaluator().evaluate(state).headlines(weights))
    for number, weighting in enumerate(weights):
        at = [left for left, count in enumerate(weighting) for _ in range(int(count))]
        repeated = [msgspec.structs.replace(images[left], id=str(n)) for n, left in enumerate(at)]
        repeated_state = state_of_shards(OrientedDetectionEvaluator(), repeated)
        again = (
            OrientedDetectionEvaluator()
            .evaluate(repeated_state)
            .headlines(np.ones((1, len(repeated))))
        )
        again = overall(again)
        for left, right in zip(headlines, again, strict=True):
            assert left[:2] == right[:2]
            np.testing.assert_allclose(left.values[number], right.values[0], atol=1e-12)


def test_a_part_is_a_weighting_of_zeros_and_ones():
    images = images_of(random_cases(5))
    state = state_of_shards(OrientedDetectionEvaluator(), images)
    mask = np.arange(len(images)) % 2.0
    weighted = OrientedDetectionEvaluator().evaluate(state).headlines(mask[None])
    selected = select_images(state, np.flatnonzero(mask))
    alone = (
        OrientedDetectionEvaluator().evaluate(selected).headlines(np.ones((1, len(selected.ids))))
    )
    for left, right in zip(weighted, alone, strict=True):
        np.testing.assert_allclose(left.values, right.values, atol=1e-12)


class Oriented(COCOeval):
    """pycocotools, with our overlap in place of its own."""

    state = None

    def computeIoU(self, image, label):  # noqa: N802 - its name
        predictions, annotations = self._dts[image, label], self._gts[image, label]
        if not predictions and not annotations:
            return []
        order = np.argsort([-prediction["score"] for prediction in predictions], kind="mergesort")
        rows = np.array([predictions[at]["id"] - 1 for at in order[: self.params.maxDets[-1]]], int)
        truths = np.array([prediction["id"] - 1 for prediction in annotations], int)
        pairs = np.repeat(rows, len(truths)), np.tile(truths, len(rows))
        return oriented_overlap(self.state)(*pairs).reshape(len(rows), len(truths))


def coco(state):
    """Ask pycocotools for its twelve numbers; difficult objects are ignored as crowds are not."""
    predictions, annotated = state.tables["predictions"], state.tables["truths"]
    annotations = [
        {
            "id": row + 1,
            "image_id": int(annotated["image"][row]) + 1,
            "category_id": int(annotated["label"][row]) + 1,
            "area": float(annotated["area"][row]),
            "bbox": [0, 0, 1, 1],
            "iscrowd": int(annotated["crowd"][row]),
        }
        for row in range(len(annotated["image"]))
    ]
    results = [
        {
            "id": row + 1,
            "image_id": int(predictions["image"][row]) + 1,
            "category_id": int(predictions["label"][row]) + 1,
            "area": float(predictions["area"][row]),
            "bbox": [0, 0, 1, 1],
            "score": float(predictions["score"][row]),
            "iscrowd": 0,
        }
        for row in range(len(predictions["image"]))
    ]
    names = [{"id": number + 1} for number in range(len(state.labels))]
    pictures = [{"id": number + 1} for number in range(len(state.ids))]
    sides = []
    with contextlib.redirect_stdout(io.StringIO()):
        for rows in (annotations, results):
            side = COCO()
            side.dataset = {"images": pictures, "categories": names, "annotations": rows}
            side.createIndex()
            sides.append(side)
        evaluation = Oriented(*sides, "bbox")
        evaluation.state = state
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [None if value < 0 else value for value in evaluation.stats]


@pytest.mark.parametrize("seed", range(12))
def test_numbers_by_the_other_rule_are_those_of_pycocotools(seed):
    cases = random_cases(seed)
    for _, there in cases:
        for item in there:
            item["difficult"] = False  # of which it does not know
    images = images_of(cases)
    metrics = [item for item in report(images).metrics if item.parameters.get("rule") == "COCO"]
    expected = coco(state_of_shards(OrientedDetectionEvaluator(), images))
    assert [item.value for item in metrics[:12]] == pytest.approx(expected, abs=1e-12)


def test_a_report_names_both_rules_and_their_order_of_shards_is_nothing():
    images = images_of(random_cases(7))
    unsharded = report(images, resamples=20)
    shards = [build_state(OrientedDetectionEvaluator(), images[at::3], []) for at in (2, 0, 1)]
    sharded = evaluate_state(
        OrientedDetectionEvaluator(),
        merge_states([merge_states(shards[:2]), shards[2]]),
        task="ORIENTED_OBJECT_DETECTION",
        options=EvaluationOptions(resamples=20),
    )
    assert sharded.metrics == unsharded.metrics
    assert sharded.curves == unsharded.curves
    rules = {metric.parameters.get("rule") for metric in unsharded.metrics}
    assert {"COCO", *RULES} <= rules
    assert unsharded.parameters["dota"]["iou_above"] == IOU_THRESHOLDS
    [dota] = [
        metric
        for metric in unsharded.metrics
        if of_rule([metric]) == {("DOTA VOC12", 0.5, None): metric.value}
    ]
    assert (dota.ci95, dota.ci_reason) == (None, "fewer than 30 images")
