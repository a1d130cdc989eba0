"""Errors of accuracy estimated from scores: a simulated, calibrated classifier of five classes.

Each change is made of 8,000 images of a baseline with truth, and 20,000 without. `unchanged` is what one is wrong
by who takes the accuracy of the baseline.

Flags: `--repeats N` (20).
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import drift_worlds as worlds
import numpy as np

from quadriga.monitor.drift.estimates import estimate_accuracy

CENTRES = 2.2 * np.array([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1]])
EVEN = np.full(5, 0.2)
METHODS = ("atc_max_confidence", "atc_negative_entropy", "cbpe")
ROW = "| {:44} | {:>9} | {:>22} | {:>24} | {:>8} |"


def answers(
    rng: np.random.Generator, n: int, shares: Any = EVEN, noise: float = 1.0, shift: float = 0.0
) -> tuple[Any, Any]:
    """Return scores, and which answers are right."""
    label = rng.choice(5, n, p=shares)
    seen = CENTRES[label] + noise * rng.normal(size=(n, 2)) + shift
    logits = -0.5 * ((seen[:, None] - CENTRES) ** 2).sum(axis=2)
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    return scores, scores.argmax(axis=1) == label


def hard(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    """Return images near the border of two classes, of the same world."""
    scores, right = answers(rng, 4 * n)
    chosen = np.flatnonzero(rng.random(4 * n) < 1 - 0.9 * scores.max(axis=1))[:n]
    return scores[chosen], right[chosen]


CHANGES: dict[str, Callable[[np.random.Generator, int], tuple[Any, Any]]] = {
    "nothing": answers,
    "more images near a border (covariate shift)": hard,
    "another mix of classes": partial(answers, shares=[0.6, 0.1, 0.1, 0.1, 0.1]),
    "all classes moved by 0.5 sd": partial(answers, shift=0.5),
    "noise x 1.5": partial(answers, noise=1.5),
    "noise x 2": partial(answers, noise=2.0),
}


def estimation_errors(change: str, seed: int) -> list[float]:
    """Return the error of each method, and of assuming no change, in percentage points."""
    rng = np.random.default_rng(seed)
    baseline, correct = answers(rng, 8_000)
    current, right = CHANGES[change](rng, 20_000)
    metrics = [
        metric.value or 0.0 for metric in estimate_accuracy(baseline, correct, current, resamples=0)
    ]
    return [100 * (value - right.mean()) for value in [*metrics, correct.mean()]]


def main() -> None:
    """Print the table: mean errors, with their sign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    print(ROW.format("change", "unchanged", *(f"`{name}`" for name in METHODS)))
    print("|---|---|---|---|---|")
    for change in CHANGES:
        *errors, unchanged = np.mean(
            worlds.repeat(partial(estimation_errors, change), change, repeats), axis=0
        )
        print(ROW.format(change, f"{unchanged:+.1f}", *(f"{value:+.1f}" for value in errors)))


if __name__ == "__main__":
    main()
