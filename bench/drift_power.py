"""Power of drift detection: how often a change is detected.

The alarm of one signal in one window, with all its gates (p below alpha, effect, enough independent rows); and
that as one of ten signals, nine of which did not change, in one of 24 windows of a day. Beside them,
evidently's default rules on the same samples: read them with how often they alarm when nothing changed.

Flags: `--repeats N` (500), `--baseline N` (2,000), `--only NAME` for some of the changes. With `--rows N --chosen M` each
window has N rows, of which M are chosen at random, as images for signals are.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import drift_worlds as worlds
import numpy as np

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.samples import build_sample
from quadriga.monitor.drift.significance.decision import ComparisonSettings
from quadriga.monitor.report.schema import Signal

ROW = "| {:44} | {:>5} | {:>8} | {:>16} | {:>9} | {:>15} |"


class Change(NamedTuple):
    """A change between two worlds, which are functions that return values, and their sources if they have any."""

    n: int
    """Rows of the current window."""
    baseline: Callable[[np.random.Generator, int], Any]
    current: Callable[[np.random.Generator, int], Any]


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
CHANGES = {
    "0.5 sd": Change(100, worlds.normal, partial(shifted, worlds.normal, 0.5)),
    "0.5 sd, few rows": Change(50, worlds.normal, partial(shifted, worlds.normal, 0.5)),
    "0.2 sd": Change(1000, worlds.normal, partial(shifted, worlds.normal, 0.2)),
    "spread x 1.3": Change(1000, worlds.normal, wider),
    "counts: Poisson(3) to Poisson(4)": Change(200, worlds.counts, more),
    "labels: total variation 0.1": Change(500, worlds.labels, moved_labels),
    "labels: a tenth is new": Change(200, worlds.labels, new_label),
    "64-d: a tenth far out, x 2": Change(200, worlds.embeddings, partial(outliers, 2.0)),
    "64-d: a tenth far out, x 1.5": Change(200, worlds.embeddings, partial(outliers, 1.5)),
    "64-d: a tenth far out, 8 sd one way": Change(200, worlds.embeddings, partial(cluster, 8.0)),
    "64-d: 0.1 sd in each dimension": Change(
        200, worlds.embeddings, partial(shifted, worlds.embeddings, 0.1)
    ),
    "AR(0.9), 4 cameras: 0.5 sd": Change(
        1000, worlds.cameras, partial(shifted, worlds.cameras, 0.5)
    ),
    "AR(0.9), recordings: 0.5 sd": Change(
        1000, worlds.recordings, partial(shifted, worlds.recordings, 0.5)
    ),
    "AR(0.9), no source key: 0.5 sd": Change(
        1000, worlds.unkeyed, partial(shifted, worlds.unkeyed, 0.5)
    ),
    "AR(0.9), no source key: 1 sd": Change(
        1000, worlds.unkeyed, partial(shifted, worlds.unkeyed, 1.0)
    ),
    "AR(0.9), no source key: 3 sd": Change(
        1000, worlds.unkeyed, partial(shifted, worlds.unkeyed, 3.0)
    ),
    "AR(0.9), 4 cameras: 1 sd": Change(1000, worlds.cameras, partial(shifted, worlds.cameras, 1.0)),
    "8 cameras by turns, no key: 3 sd": Change(1000, BY_TURNS, partial(shifted, BY_TURNS, 3.0)),
    "8 cameras at random, no key: 3 sd": Change(1000, AT_RANDOM, partial(shifted, AT_RANDOM, 3.0)),
    "20 cameras, short, key: 1 sd": Change(
        1000, worlds.short_sources, partial(shifted, worlds.short_sources, 1.0)
    ),
}


def choose(rng: np.random.Generator, side: Any, count: int) -> tuple[Any, Any]:
    """Choose rows at random, in their order; return their values, and their sources if they have any."""
    values, sources = side if isinstance(side, tuple) else (side, None)
    if count >= len(values):
        return values, sources
    rows = np.sort(rng.choice(len(values), count, replace=False))
    return values[rows], None if sources is None else [sources[row] for row in rows]


def detect_once(
    change: Change, baseline_n: int, chosen: int, seed: int
) -> tuple[bool, bool, bool, bool]:
    """Return whether a change is detected: alone, among ten signals, by evidently, and with a baseline of 1,000."""
    rng = np.random.default_rng(seed)
    baseline_rows, current_rows = change.baseline(rng, baseline_n), change.current(rng, change.n)
    drawn = [
        choose(rng, baseline_rows, baseline_n),
        choose(rng, current_rows, chosen or change.n),
    ]

    def signal(quiet: int, windows: int) -> Signal:
        """Compare the signal beside quiet ones, in one of so many windows of a day."""
        sides = [
            build_sample({"x": values} | worlds.quiet(rng, len(values), quiet), sources=sources)
            for values, sources in drawn
        ]
        return compare(sides[0], sides[1], ComparisonSettings(windows=windows, seed=seed)).signals[
            0
        ]

    baseline, current = (np.asarray(values) for values, _ in drawn)
    return (
        signal(0, 1).alarm,
        signal(9, 24).alarm,
        worlds.evidently(baseline, current),
        worlds.evidently(baseline[:1000], current),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--baseline", type=int, default=2000)
    parser.add_argument("--only", default="")
    parser.add_argument("--rows", type=int, default=0, help="of a window, in place of those in the table")  # fmt: skip
    parser.add_argument("--chosen", type=int, default=0, help="of these, at random; 0 for all")
    arguments = parser.parse_args()
    print(ROW.format("change", "n", "alarm", "one of 24 x 10", "evidently", "evidently, 1,000"))
    for name, change in CHANGES.items():
        if arguments.only in name:
            window = change._replace(n=arguments.rows or change.n)
            detect = partial(detect_once, window, arguments.baseline, arguments.chosen)
            seen = worlds.repeat(detect, name, arguments.repeats)
            shares = [worlds.share(list(flags)) for flags in zip(*seen, strict=True)]
            print(ROW.format(name, arguments.chosen or change.n, *shares), flush=True)


if __name__ == "__main__":
    main()
