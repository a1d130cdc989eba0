"""False alarms of drift: how often a comparison finds a change where nothing changed.

Measured for independent rows, correlated rows, embeddings, and a day of windows. `p < 0.05` is the test alone, which
should be wrong one time in twenty; an alarm also needs a minimum effect and enough independent rows.

Flags: `--repeats N` (2,000), `--days N` (400), `--baseline N` (2,000), `--n N N` (50 200 1000), `--only NAME` for some of the worlds.
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
from quadriga.monitor.report.schema import Signal

World = Callable[..., Any] | tuple[Callable[..., Any], Callable[..., Any]]
"""Returns values, and their sources if they have any; one for both sides, or one for each."""

WORLDS: dict[str, World] = {
    **worlds.INDEPENDENT,
    "AR(0.9), 4 cameras on both sides": worlds.cameras,
    "AR(0.9), recordings of 25 frames": worlds.recordings,
    "AR(0.9), no source key": worlds.unkeyed,
    "independent, then AR(0.9)": (worlds.normal, worlds.unkeyed),
    "each frame 5 times, a key each": worlds.copies,
    "each frame 5 times, one camera": worlds.copies_of_a_camera,
    "labels that stay, one camera": worlds.sticky_labels,
    "8 cameras by turns, key": worlds.turns,
    "8 cameras by turns, another key": worlds.with_other_key(worlds.turns),
    "8 cameras by turns, no key": worlds.without_key(worlds.turns),
    "8 cameras at random, another key": worlds.with_other_key(worlds.random_turns),
    "8 cameras at random, no key": worlds.without_key(worlds.random_turns),
    "8 cameras of 2 sites, other keys": worlds.nested_turns,
    "20 cameras, short, key": worlds.short_sources,
    "20 cameras, short, no key": worlds.without_key(worlds.short_sources),
    "each frame 5 times, order lost": worlds.lost_copies,
    "64-d embeddings": worlds.embeddings,
    "64-d video, AR(0.9), one camera": worlds.video_embeddings,
}
ROW = "| {:34} | {:>5} | {:>8} | {:>11} | {:>8} | {:>12} |"


def compare_once(world: World, baseline_n: int, n: int, seed: int) -> Signal:
    """Compare two samples of a world."""
    rng = np.random.default_rng(seed)
    baseline_world, current_world = world if isinstance(world, tuple) else (world, world)
    drawn = [baseline_world(rng, baseline_n), current_world(rng, n)]
    settings = ComparisonSettings(seed=seed)
    return compare(*worlds.sides(drawn, settings), settings).signals[0]


def simulate_day(baseline_n: int, n: int, windows: int, seed: int) -> tuple[bool, bool, bool]:
    """Return whether a quiet day has a window with a p-value below alpha, with an adjusted one, and with an alarm."""
    rng = np.random.default_rng(seed)
    baseline = build_sample(worlds.quiet(rng, baseline_n, 10))
    signals = [
        signal
        for _ in range(windows)
        for signal in compare(
            baseline,
            build_sample(worlds.quiet(rng, n, 10)),
            ComparisonSettings(windows=windows, seed=seed),
        ).signals
    ]
    return (
        any(worlds.p_value(signal) < 0.05 for signal in signals),
        any(signal.p_adjusted is not None and signal.p_adjusted < 0.05 for signal in signals),
        any(signal.alarm for signal in signals),
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--days", type=int, default=400)
    parser.add_argument("--baseline", type=int, default=2000)
    parser.add_argument("--n", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    print(ROW.format("nothing changed", "n", "p < 0.05", "p < 0.05/24", "alarm", "insufficient"))
    for name, world in WORLDS.items():
        for n in arguments.n if arguments.only in name else []:
            once = partial(compare_once, world, arguments.baseline, n)
            signals = worlds.repeat(once, name, arguments.repeats)
            flags = (
                [worlds.p_value(signal) < 0.05 for signal in signals],
                [worlds.p_value(signal) < 0.05 / 24 for signal in signals],
                [signal.alarm for signal in signals],
                [signal.status == "insufficient" for signal in signals],
            )
            print(ROW.format(name, n, *map(worlds.share, flags)), flush=True)
    if arguments.only in "day" and arguments.days:
        once = partial(simulate_day, arguments.baseline, 200, 24)
        days = zip(*worlds.repeat(once, "day", arguments.days), strict=True)
        for name, flags in zip(("p < 0.05", "adjusted", "alarm"), days, strict=True):
            print(f"| days of 24 windows x 10 signals, {name}: {worlds.share(list(flags))}")


if __name__ == "__main__":
    main()
