"""Curves of labels as a report draws them: precision over recall, and what is found over false alarms."""

from typing import Any

import numpy as np

from monitor.evaluation.arrays import Doubles, Integers, ratio
from monitor.evaluation.label_scores import LabelScores

_POINTS = 200
"""Most of one curve."""

_CURVES = 100
"""Most labels that are drawn, those with the most truths; the mean is over all."""

_GRID: Doubles = np.linspace(0, 1, 101)


def curves(scores: LabelScores, labels: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Draw the curves of labels, the mean of each kind first, its label None.

    The mean precision is over the best that each label has at each of 101 recalls or above.
    """
    steps = dict(scores.steps())
    if not steps:
        return {}
    best, score, found = (np.zeros((len(steps), len(_GRID))) for _ in range(3))
    drawn = sorted(sorted(steps, key=lambda label: -steps[label].found[-1])[:_CURVES])
    pr, roc = [], []
    for row, (label, step) in enumerate(steps.items()):
        recall, alarms = step.found / step.found[-1], step.wrong / step.wrong[-1]
        precision = ratio(step.found, step.found + step.wrong)
        at = np.searchsorted(recall, _GRID)
        best[row] = np.maximum.accumulate(precision[::-1])[::-1][at]
        score[row] = step.score[at]
        rates = np.append(0.0, alarms), np.append(0.0, recall)
        found[row] = np.interp(_GRID, *rates)
        if label in drawn:
            pr.append(_pr(labels[label], recall, precision, step.score))
            roc.append(_roc(labels[label], *rates, [None, *step.score.tolist()]))
    mean_pr = _pr(None, _GRID, best.mean(axis=0), score.mean(axis=0))
    mean_roc = _roc(None, _GRID, found.mean(axis=0), [None] * len(_GRID))
    return {"pr": [mean_pr, *pr], "roc": [mean_roc, *roc]}


def _pr(label: str | None, recall: Doubles, precision: Doubles, score: Doubles) -> dict[str, Any]:
    at = _thinned(recall, precision)
    return {
        "label": label,
        "recall": recall[at].tolist(),
        "precision": precision[at].tolist(),
        "score": score[at].tolist(),
    }


def _roc(
    label: str | None, alarms: Doubles, recall: Doubles, threshold: list[float | None]
) -> dict[str, Any]:
    at = _thinned(alarms, recall)
    return {
        "label": label,
        "false_positive_rate": alarms[at].tolist(),
        "true_positive_rate": recall[at].tolist(),
        "threshold": [threshold[one] for one in at],
    }


def _thinned(x: Doubles, y: Doubles) -> Integers:
    """Choose the points to draw: corners, and of too many of those some evenly along the curve."""
    if len(x) <= _POINTS:
        return np.arange(len(x))
    straight = np.diff(x[:-1]) * np.diff(y[1:]) == np.diff(x[1:]) * np.diff(y[:-1])
    corners = np.flatnonzero(~np.concatenate([[False], straight, [False]]))
    if len(corners) <= _POINTS:
        return corners
    x, y = x[corners], y[corners]
    way = np.append(0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
    at = np.searchsorted(way, np.linspace(0, way[-1], _POINTS)).clip(0, len(x) - 1)
    chosen: Integers = corners[np.unique(at)]
    return chosen
