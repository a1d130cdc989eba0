"""Coverage of the intervals of an evaluation: how often a 95 % interval holds the true value.

Each world draws images from a simulated model, for which the value over very many images is taken as true. Printed of
each metric and number of images: the share of samples whose interval holds the true value, the mean width, for shares
of images its ratio to Wilson's interval, and the share of samples without an interval, with the most frequent reason.

Flags: `--repeats N` (1,000), `--images N …` (30 100 300 1000), `--only NAME` for some of the worlds.
"""

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.stats import binomtest

from quadriga.monitor.evaluation.evaluators import build_state, load_evaluator
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import EvaluatedImage, merge_states
from quadriga.monitor.report.schema import Metric

LABELS = 5
SHARES = ("Accuracy", "TopKAccuracy")
METRICS = ("Accuracy", "TopKAccuracy", "F1", "ROCAUC", "ECE", "Brier", "AP", "AR", "mIOU")


class World(NamedTuple):
    """A simulated model and its images."""

    task: str
    draw: Callable[[np.random.Generator, int], list[EvaluatedImage]]
    """Draws so many images."""
    true_images: int
    """Number of images whose value is taken as true."""


def make_image(number: int, predictions: Any, truths: Any, side: int = 640) -> EvaluatedImage:
    """Return an image with predictions and annotations."""
    encoded = [
        msgspec.Raw(json.dumps(items, default=float).encode()) for items in (predictions, truths)
    ]
    return EvaluatedImage(
        id=f"{number:07d}", predictions=encoded[0], ground_truth=encoded[1], width=side, height=side,
        metadata={}, created_at=None, image=None,
    )  # fmt: skip


def classification(accuracy: float) -> World:
    """Return a world of ten labels that are right so often, with scores that are too high."""

    def draw(generator: np.random.Generator, count: int) -> list[EvaluatedImage]:
        labels = 2 * LABELS
        true = generator.integers(0, labels, count)
        scores = generator.dirichlet(np.full(labels, 0.2), count)
        best = scores.argmax(axis=1)
        is_right = generator.random(count) < accuracy
        wanted = np.where(is_right, true, (true + generator.integers(1, labels, count)) % labels)
        rows = np.arange(count)
        scores[rows, best], scores[rows, wanted] = scores[rows, wanted], scores[rows, best]
        return [
            make_image(
                row,
                [{"label": f"c{label}", "score": scores[row, label]} for label in range(labels)],
                [{"label": f"c{true[row]}"}],
            )
            for row in range(count)
        ]

    return World("classification", draw, 50_000)


def _box(label: str, corner: Any, side: float, **fields: float) -> dict[str, Any]:
    x, y = corner
    return {"label": label, "xmin": x, "ymin": y, "xmax": x + side, "ymax": y + side, **fields}


def _draw_boxes(
    generator: np.random.Generator,
    count: int,
    *,
    ease_of: tuple[float, float],
    shift: float,
    false_boxes: float,
) -> list[EvaluatedImage]:
    """Draw images of about three objects, easy or difficult together; the labels are unequally frequent."""
    images = []
    for number in range(count):
        predictions, truths, ease = [], [], generator.beta(*ease_of)
        for _ in range(generator.poisson(3)):
            label = f"c{min(int(generator.exponential(1.2)), 3)}"
            corner, side = generator.uniform(0, 500, 2), generator.uniform(40, 120)
            truths.append(_box(label, corner, side))
            if generator.random() < ease:
                moved = corner + generator.normal(0, shift * side, 2)
                predictions.append(_box(label, moved, side, score=generator.beta(5, 2)))
        for _ in range(generator.poisson(false_boxes)):
            corner, side = generator.uniform(0, 500, 2), generator.uniform(40, 120)
            label = f"c{generator.integers(4)}"
            predictions.append(_box(label, corner, side, score=generator.beta(2, 4)))
        images.append(make_image(number, predictions, truths))
    return images


def _draw_segments(generator: np.random.Generator, count: int) -> list[EvaluatedImage]:
    """Draw images with a square of some of three labels, found at a place that is beside it."""
    images = []
    for number in range(count):
        predictions, truths, ease = [], [], generator.beta(8, 2)
        for label, frequency in enumerate((0.9, 0.5, 0.2)):
            if generator.random() > frequency:
                continue
            x, y, side = (int(value) for value in generator.integers((0, 0, 10), (40, 40, 24)))
            shift = round((1 - ease) * side * generator.uniform(0.2, 1))
            for items, left in ((truths, x), (predictions, x + shift)):
                corners = ((left, y), (left + side, y), (left + side, y + side), (left, y + side))
                ring = [{"x": corner_x, "y": corner_y} for corner_x, corner_y in corners]
                items.append({"label": f"c{label}", "contour": [ring]})
            predictions[-1]["score"] = 0.9
        images.append(make_image(number, predictions, truths, 64))
    return images


WORLDS = {
    **{
        f"accuracy {value}": classification(value)
        for value in (0.9, 0.95, 0.97, 0.99, 0.995, 0.999)
    },
    # three in four objects are found, with false ones beside them
    "detection": World(
        "detection", partial(_draw_boxes, ease_of=(6, 2), shift=0.06, false_boxes=0.6), 60_000
    ),
    # nearly all objects are found, with few false ones
    "sure detection": World(
        "detection", partial(_draw_boxes, ease_of=(40, 1), shift=0.03, false_boxes=0.1), 60_000
    ),
    "segmentation": World("segmentation", _draw_segments, 6_000),
}


def metrics_of(
    world: World, images: Sequence[EvaluatedImage], resamples: int, seed: int
) -> dict[str, Metric]:
    """Evaluate images; return the metrics that have intervals, by their names."""
    evaluator = load_evaluator(world.task)
    state = merge_states([build_state(evaluator, images, ())])
    options = EvaluationOptions(resamples, seed)
    report = evaluate_state(evaluator, state, task=world.task, options=options)
    return {
        _name(metric): metric
        for metric in report.metrics
        if metric.type in METRICS and (resamples == 0 or metric.ci95 or metric.ci_reason)
    }


def _name(metric: Metric) -> str:
    shown = ("k", "iou", "area", "label", "average", "background")
    parameters = [metric.parameters[key] for key in shown if metric.parameters.get(key) is not None]
    return " ".join(
        [metric.type, *map(str, parameters), str(metric.parameters.get("max_dets", ""))]
    )


def measure(name: str, world: World, image_counts: Sequence[int], repeats: int) -> None:
    """Print a row for each metric and number of images."""
    begun_s = time.monotonic()
    true_images = world.draw(np.random.default_rng(99), world.true_images)
    true_values = {
        metric_name: metric.value
        for metric_name, metric in metrics_of(world, true_images, 0, 0).items()
    }
    for count in image_counts:
        rows: dict[str, list[Metric]] = defaultdict(list)
        for repeat in range(repeats):
            images = world.draw(np.random.default_rng(1000 + repeat), count)
            for metric_name, metric in metrics_of(world, images, 200, repeat).items():
                rows[metric_name].append(metric)
        for metric_name, metrics in rows.items():
            true_value = true_values.get(metric_name)
            if true_value is not None:
                print(
                    f"{name:15}{count:5}  {_row(metric_name, true_value, metrics, count)}",
                    flush=True,
                )
    print(f"{name}: {time.monotonic() - begun_s:.0f} s", flush=True)


def _row(name: str, true_value: float, metrics: Sequence[Metric], images: int) -> str:
    reasons = Counter(metric.ci_reason for metric in metrics if metric.ci95 is None)
    reason = next((text for text, _ in reasons.most_common(1)), "")
    shown = [metric for metric in metrics if metric.ci95 is not None]
    coverage, width, ratio = "    -", "    -", ""
    if shown:
        low, high = np.array([metric.ci95 for metric in shown]).T
        coverage = f"{np.mean((low <= true_value) & (true_value <= high)):.3f}"
        width = f"{np.mean(high - low):.3f}"
    if shown and name.startswith(SHARES):
        wilson = [
            binomtest(round(metric.value * images), images).proportion_ci(method="wilson")
            for metric in shown
        ]
        ratio = (
            f"{np.mean(high - low) / np.mean([bound.high - bound.low for bound in wilson]):5.2f}"
        )
    absent = 1 - len(shown) / len(metrics)
    return f"{name:32}{true_value:8.4f}  {coverage}  {width}  {ratio:5}  {absent:5.2f}  {reason}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--images", type=int, nargs="+", default=[30, 100, 300, 1000])
    parser.add_argument("--only", action="append", choices=WORLDS)
    arguments = parser.parse_args()
    print(f"{'world':15}{'n':>5}  {'metric':32}{'true':>8}  cover  width  ratio  null")
    for name in arguments.only or WORLDS:
        measure(name, WORLDS[name], arguments.images, arguments.repeats)


if __name__ == "__main__":
    main()
