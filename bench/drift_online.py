"""False alarms and delays of change detectors, on series with one value per window.

False alarms are counted in 10,000 windows in which nothing changes; the delay is the median number of windows
from a change, after 200 windows without, until a detector speaks, within 500. Beside it, how many never did.

Flags: `--series N` (100 of 1,000 windows, and as many with a change).
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import drift_worlds as worlds
import numpy as np
import numpy.typing as npt

from quadriga.monitor.drift.watch.change_detectors import WARM_UP, Adwin, PageHinkley, Series

DETECTORS = ("adwin", "page_hinkley")
SHIFTS = (0.5, 1.0, 2.0)
BEFORE, AFTER, QUIET = 200, 500, 1_000
ROW = "| {:36} | {:>12} | {:>14} | {:>14} | {:>14} |"
Make = Callable[[np.random.Generator, int], npt.NDArray[np.float64]]
WORLDS: dict[str, Make] = {"independent": worlds.normal, "AR(0.9)": worlds.chain}


def follow(values: npt.NDArray[np.float64]) -> dict[str, list[int]]:
    """Return the windows at which each detector detected a change."""
    series, changes = Series(), {name: list[int]() for name in DETECTORS}
    for window, value in enumerate(values):
        for name in series.update(float(value)):
            changes[name].append(window)
    return changes


def follow_once(make: Make, shift: float, seed: int) -> dict[str, list[int]]:
    """Follow one random series; without a shift nothing changes in it."""
    rng = np.random.default_rng(seed)
    if not shift:
        return follow(make(rng, QUIET + WARM_UP))
    values = make(rng, BEFORE + AFTER)
    values[BEFORE:] += shift
    return follow(values)


def delays(changes: list[dict[str, list[int]]], name: str) -> str:
    """Format the median delay, and the share of changes that were never detected."""
    first_windows = [
        next((window for window in series_changes[name] if window >= BEFORE), None)
        for series_changes in changes
    ]
    waited = [AFTER if window is None else window - BEFORE + 1 for window in first_windows]
    missed = sum(window is None for window in first_windows) / len(first_windows)
    return f"{statistics.median(waited):.0f}, {100 * missed:.0f} %"


def cost(detector: Adwin | PageHinkley) -> str:
    """Measure the time of one update."""
    values = np.random.default_rng(1).normal(size=5_000)
    started_s = time.perf_counter()
    for value in values:
        detector.update(float(value))
    return f"{(time.perf_counter() - started_s) / len(values) * 1e6:.1f} us"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=100)
    count = parser.parse_args().series
    heads = [f"delay, {shift:g} sd" for shift in SHIFTS]
    print(ROW.format("detector, series", "false alarms", *heads))
    print("|---|---|---|---|---|")
    for world, make in WORLDS.items():
        quiet = worlds.repeat(partial(follow_once, make, 0.0), world, count)
        moved = [
            worlds.repeat(partial(follow_once, make, shift), f"{world} {shift}", count)
            for shift in SHIFTS
        ]
        for name in DETECTORS:
            false_alarms = sum(len(changes[name]) for changes in quiet)
            rate = false_alarms / (count * QUIET) * 10_000
            median_delays = [delays(changes, name) for changes in moved]
            print(ROW.format(f"{name}, {world}", f"{rate:.1f}", *median_delays))
    print(f"a value: adwin {cost(Adwin())}, page_hinkley {cost(PageHinkley())}")


if __name__ == "__main__":
    main()
