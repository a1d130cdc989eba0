"""Power of drift detection: how often a change is detected.

The alarm of one signal in one window, with all its gates (p below alpha, effect, enough independent rows); and
that as one of ten signals, nine of which did not change, in one of 24 windows of a day.

Flags: `--repeats N` (500), `--baseline N` (2,000), `--only NAME` for some of the changes. With `--rows N --chosen M` each
window has N rows, of which M are chosen at random, as images for signals are.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import drift_worlds as worlds
import numpy as np

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.samples import build_sample
from quadriga.monitor.drift.significance.decision import ComparisonSettings

ROW = "| {:44} | {:>5} | {:>8} | {:>16} |"


Change = tuple[int, Callable[..., Any], Callable[..., Any]]
"""Rows of the current window, and two worlds: functions that return values, and their sources if they have any."""


def moved_labels(rng: np.random.Generator, n: int) -> Any:
    """Return labels, a tenth of which are replaced by a frequent one."""
    shares = worlds.SHARES.copy()
    shares[[0, 3]] += [-0.1, 0.1]
    return np.array(worlds.LABELS)[rng.choice(20, n, p=shares)]


def new_label(rng: np.random.Generator, n: int) -> Any:
    """Return labels, a tenth of which are replaced by a new one."""
    values = worlds.labels(rng, n)
    values[rng.random(n) < 0.1] = "new"
    return values


def outliers(distance: float, rng: np.random.Generator, n: int) -> Any:
    """Return embeddings, a tenth of which are so many times as far from the centre, in any direction."""
    values = worlds.embeddings(rng, n)
    values[: n // 10] *= distance
    return values


def cluster(distance: float, rng: np.random.Generator, n: int) -> Any:
    """Return embeddings, a tenth of which are shifted by so many deviations in one direction."""
    values = worlds.embeddings(rng, n)
    values[: n // 10, 0] += distance
    return values


def shifted(world: Callable[..., Any], shift: float, rng: np.random.Generator, n: int) -> Any:
    """Return the values of a world shifted upwards, with its sources if it has any."""
    values = world(rng, n)
    return (
        (values[0] + shift, values[1]) if isinstance(values, tuple) else values + np.float32(shift)
    )


def wider(rng: np.random.Generator, n: int) -> Any:
    """Return values with a standard deviation of 1.3."""
    return worlds.normal(rng, n) * 1.3


def more(rng: np.random.Generator, n: int) -> Any:
    """Return numbers of objects, four on average instead of three."""
    return rng.poisson(4, n)


BY_TURNS, AT_RANDOM = worlds.without_key(worlds.turns), worlds.without_key(worlds.random_turns)
SHIFTS = {
    "0.5 sd": (100, worlds.normal, 0.5),
    "0.5 sd, few rows": (50, worlds.normal, 0.5),
    "0.2 sd": (1000, worlds.normal, 0.2),
    "64-d: 0.1 sd in each dimension": (200, worlds.embeddings, 0.1),
    "AR(0.9), 4 cameras: 0.5 sd": (1000, worlds.cameras, 0.5),
    "AR(0.9), recordings: 0.5 sd": (1000, worlds.recordings, 0.5),
    "AR(0.9), no source key: 0.5 sd": (1000, worlds.unkeyed, 0.5),
    "AR(0.9), no source key: 1 sd": (1000, worlds.unkeyed, 1.0),
    "AR(0.9), no source key: 3 sd": (1000, worlds.unkeyed, 3.0),
    "AR(0.9), 4 cameras: 1 sd": (1000, worlds.cameras, 1.0),
    "8 cameras by turns, no key: 3 sd": (1000, BY_TURNS, 3.0),
    "8 cameras at random, no key: 3 sd": (1000, AT_RANDOM, 3.0),
    "20 cameras, short, key: 1 sd": (1000, worlds.short_sources, 1.0),
}
CHANGES: dict[str, Change] = {
    "spread x 1.3": (1000, worlds.normal, wider),
    "counts: Poisson(3) to Poisson(4)": (200, worlds.counts, more),
    "labels: total variation 0.1": (500, worlds.labels, moved_labels),
    "labels: a tenth is new": (200, worlds.labels, new_label),
    "64-d: a tenth far out, x 2": (200, worlds.embeddings, partial(outliers, 2.0)),
    "64-d: a tenth far out, x 1.5": (200, worlds.embeddings, partial(outliers, 1.5)),
    "64-d: a tenth far out, 8 sd one way": (200, worlds.embeddings, partial(cluster, 8.0)),
    **{name: (n, world, partial(shifted, world, by)) for name, (n, world, by) in SHIFTS.items()},
}


def choose(rng: np.random.Generator, side: Any, count: int) -> tuple[Any, Any]:
    """Choose rows at random, in their order; return their values, and their sources if they have any."""
    values, sources = side if isinstance(side, tuple) else (side, None)
    if count >= len(values):
        return values, sources
    rows = np.sort(rng.choice(len(values), count, replace=False))
    return values[rows], None if sources is None else [sources[row] for row in rows]


def detect_once(change: Change, baseline_n: int, chosen: int, seed: int) -> tuple[bool, bool]:
    """Return whether a change is detected: alone, and among ten signals of a day of windows."""
    rng = np.random.default_rng(seed)
    n, baseline, current = change
    baseline_rows, current_rows = baseline(rng, baseline_n), current(rng, n)
    drawn = choose(rng, baseline_rows, baseline_n), choose(rng, current_rows, chosen or n)

    def is_alarm(quiet: int, windows: int) -> bool:
        """Compare the signal beside quiet ones, in one of so many windows of a day."""
        sides = [
            build_sample({"x": values} | worlds.quiet(rng, len(values), quiet), sources=sources)
            for values, sources in drawn
        ]
        return compare(*sides, ComparisonSettings(windows=windows, seed=seed)).signals[0].alarm

    return is_alarm(0, 1), is_alarm(9, 24)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--baseline", type=int, default=2000)
    parser.add_argument("--only", default="")
    parser.add_argument("--rows", type=int, default=0, help="of a window, in place of those in the table")  # fmt: skip
    parser.add_argument("--chosen", type=int, default=0, help="of these, at random; 0 for all")
    arguments = parser.parse_args()
    print(ROW.format("change", "n", "alarm", "one of 24 x 10"))
    for name, (n, *sides) in CHANGES.items():
        if arguments.only in name:
            window = (arguments.rows or n, *sides)
            detect = partial(detect_once, window, arguments.baseline, arguments.chosen)
            seen = worlds.repeat(detect, name, arguments.repeats)
            shares = [worlds.share(list(flags)) for flags in zip(*seen, strict=True)]
            print(ROW.format(name, arguments.chosen or n, *shares), flush=True)


if __name__ == "__main__":
    main()
