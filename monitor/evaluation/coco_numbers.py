"""COCO's numbers and curves as a report has them."""

from typing import Any

import numpy as np

from monitor.evaluation.arrays import Doubles, Integers, mean_known
from monitor.evaluation.average_precision import MOST, RECALLS, THRESHOLDS, Curves
from monitor.evaluation.reporting import number
from monitor.report import Metric

AREA_NAMES = ("all", "small", "medium", "large")
"""Of `AREAS`."""

AVERAGED = "0.50:0.95"
"""How COCO writes the mean over its ten thresholds."""

_LABEL_IOUS = (0.5, 0.75)
"""Thresholds that each label's curve is drawn at."""


def twelve() -> list[tuple[str, dict[str, Any]]]:
    """Return the type and the parameters of COCO's twelve numbers, in its order."""
    sizes, most = AREA_NAMES[1:], MOST[-1]
    asked: list[tuple[str, str | float, str, int]] = [
        *(("AP", iou, "all", most) for iou in (AVERAGED, 0.5, 0.75)),
        *(("AP", AVERAGED, area, most) for area in sizes),
        *(("AR", AVERAGED, "all", few) for few in MOST),
        *(("AR", AVERAGED, area, most) for area in sizes),
    ]
    return [(kind, _parameters(iou, area, count, None)) for kind, iou, area, count in asked]


def label_parameters(iou: str | float, label: str) -> dict[str, Any]:
    """Return the parameters of a label's number."""
    return {**_parameters(iou, "all", MOST[-1], label), "n": "objects"}


def _parameters(iou: str | float, area: str, most: int, label: str | None) -> dict[str, Any]:
    return {"rule": "COCO", "iou": iou, "area": area, "max_dets": most, "label": label}


def label_metrics(drawn: Curves, labels: list[str], to_find: Integers) -> list[Metric]:
    """Return the AP of labels (K,), also at each of two thresholds, and AR; None where nothing is to find."""
    precision = drawn.precision[:, :, :, 0, -1].mean(axis=1)  # (T, K)
    values: list[tuple[str, str | float, Doubles]] = [("AP", AVERAGED, precision.mean(axis=0))]
    values += [("AP", iou, precision[_nearest(iou)]) for iou in _LABEL_IOUS]
    values += [("AR", AVERAGED, drawn.recall[:, :, 0, -1].mean(axis=0))]
    return [
        Metric(kind, number(of[at]), label_parameters(iou, label), n=int(to_find[at]))
        for kind, iou, of in values
        for at, label in enumerate(labels)
    ]


def precision_curves(drawn: Curves, labels: list[str]) -> list[dict[str, Any]]:
    """Return precision over recall with its scores: the mean at each threshold, each label at two.

    A score is None where the recall is not reached; the mean's is taken over the labels that reach it.
    """
    known = np.flatnonzero(~np.isnan(drawn.recall[0, :, 0, -1]))
    if not known.size:
        return []
    precision = drawn.precision[:, :, known, 0, -1]
    score = drawn.scores[:, :, known, 0, -1]
    reached = RECALLS[:, None] <= drawn.recall[:, None, known, 0, -1]
    reached &= precision > 0
    mean = mean_known(np.where(reached, score, np.nan))
    found = [
        _curve(None, float(iou), precision[at].mean(axis=1), mean[at])
        for at, iou in enumerate(THRESHOLDS.round(2))
    ]
    for at, label in enumerate(known):
        for iou in _LABEL_IOUS:
            of = _nearest(iou), slice(None), at
            scores = np.where(reached[of], score[of], np.nan)
            found.append(_curve(labels[label], iou, precision[of], scores))
    return found


def _curve(label: str | None, iou: float, precision: Doubles, score: Doubles) -> dict[str, Any]:
    return {
        "label": label,
        "iou": iou,
        "recall": RECALLS.round(2).tolist(),
        "precision": precision.tolist(),
        "score": [number(one) for one in score],
    }


def _nearest(iou: float) -> int:
    return int(np.abs(THRESHOLDS - iou).argmin())
