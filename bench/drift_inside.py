"""Changes that begin inside the window: how often they raise an alarm, or are named as too uncertain to judge.

Steps of 1, 2 and 4 standard deviations begin at 10, 30, 50, 70 and 90 % of the window; beside them a ramp, a bump, a new
label, and a value that goes missing. Counted are windows whose changed part alone is beyond doubt: `ks_2samp` of it
against the baseline has p below 1e-6. `named` means that the report is insufficient, and says which signal moved and where.
`place` is how far off the named row is, as a share of the window: the median.

Flags: `--repeats N` of each step and onset (10), `--baseline N` (2,000), `--only NAME` for some of the worlds.
"""

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import drift_worlds as worlds
import numpy as np
from scipy import stats

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.metadata import PRESENCE_SUFFIX, with_presence
from quadriga.monitor.drift.significance.decision import ComparisonSettings

ONSETS, STEPS, SIZES = (0.1, 0.3, 0.5, 0.7, 0.9), (1.0, 2.0, 4.0), (300, 1_000, 5_000)
MAX_P = 1e-6
ROW = "| {:34} | {:>5} | {:>12} | {:>15} | {:>13} | {:>8} | {:>7} |"
World = Callable[[np.random.Generator, int], Any]


class Outcome(NamedTuple):
    """What a comparison said about a change."""

    is_beyond_doubt: bool
    is_alarm: bool
    is_named: bool
    place: float | None
    """Distance of the named row from the true one, as a share of the window."""


def step(values: Any, start: int, height: float) -> Any:
    """Raise all values from a row on."""
    values[start:] += height
    return values


def ramp(values: Any, start: int, height: float) -> Any:
    """Raise values from a row on, more and more."""
    values[start:] += np.linspace(0, height, len(values) - start)
    return values


def bump(values: Any, start: int, height: float) -> Any:
    """Raise a fifth of the values, from a row on."""
    values[start : start + len(values) // 5] += height
    return values


def new_label(values: Any, start: int, share: float) -> Any:
    """Replace a share of the labels by a new one, from a row on."""
    changed = np.arange(len(values)) >= start
    changed &= np.random.default_rng(start).random(len(values)) < share
    return np.where(changed, "new", values)


def missing(values: Any, start: int, _: float) -> Any:
    """Drop all values from a row on."""
    return [*values[:start].tolist(), *[None] * (len(values) - start)]


def compare_once(
    world: World,
    change: Callable[..., Any],
    baseline_n: int,
    cell: tuple[int, float, float],
    seed: int,
) -> Outcome:
    """Compare a window, in which a change begins, with a baseline of the same world."""
    n, onset, height = cell
    rng, start = np.random.default_rng(seed), round(onset * n)
    drawn = [world(rng, baseline_n), world(rng, n)]
    values, *sources = drawn[1] if isinstance(drawn[1], tuple) else (drawn[1],)
    if change in (step, ramp):
        height *= float(np.std(worlds.values_of(drawn[0])))
    values = change(values.copy(), start, height)
    drawn[1] = (values, *sources) if sources else values
    settings = ComparisonSettings(seed=seed)
    sides = worlds.sides(drawn, settings)
    report = compare(*with_presence(*sides, names=["x"]), settings)
    name = "x" + PRESENCE_SUFFIX * (change is missing)
    signal = next(signal for signal in report.signals if signal.name == name)
    before, after = map(worlds.values_of, drawn)
    is_beyond = change not in (step, ramp, bump) or bool(
        stats.ks_2samp(before, after[start:], method="asymp").pvalue < MAX_P
    )
    place = None if signal.began is None else abs(signal.began.row - start) / len(after)
    is_named = report.status == "insufficient" and signal.moved is True and place is not None
    return Outcome(is_beyond, report.status == "drift", is_named, place)


def print_row(name: str, n: int, outcomes: list[Outcome]) -> None:
    """Print how many changes beyond doubt were seen."""
    counted = [outcome for outcome in outcomes if outcome.is_beyond_doubt]
    alarms = sum(outcome.is_alarm for outcome in counted)
    named = sum(outcome.is_named and not outcome.is_alarm for outcome in counted)
    places = [outcome.place for outcome in counted if outcome.place is not None]
    place = f"{100 * float(np.median(places)):.1f} %" if places else "-"
    total = max(len(counted), 1)
    share = f"{100 * (alarms + named) / total:.1f} %"
    silent = len(counted) - alarms - named
    print(ROW.format(name, n, len(counted), alarms, named, silent, f"{share}, {place}"), flush=True)


WORLDS: dict[str, World] = {
    "normal": worlds.normal,
    "skewed: lognormal": worlds.lognormal,
    "tied: scores of two digits": worlds.rounded,
    "AR(0.9), no source key": worlds.unkeyed,
    "AR(0.9), 4 cameras on both sides": worlds.cameras,
    "AR(0.9), recordings of 25 frames": worlds.recordings,
    "each frame 5 times, one camera": worlds.copies_of_a_camera,
    "8 cameras by turns, key": worlds.turns,
    "8 cameras by turns, no key": worlds.without_key(worlds.turns),
    "8 cameras at random, no key": worlds.without_key(worlds.random_turns),
}
OTHERS: dict[str, tuple[World, Callable[..., Any], tuple[float, ...]]] = {
    "ramp to 2 sd": (worlds.normal, ramp, (2.0,)),
    "ramp to 4 sd": (worlds.normal, ramp, (4.0,)),
    "bump of 2 sd": (worlds.normal, bump, (2.0,)),
    "new label in 60 % of rows": (worlds.labels, new_label, (0.6,)),
    "value that goes missing": (worlds.normal, missing, (0.0,)),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--baseline", type=int, default=2000)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    print(ROW.format("step inside", "n", "beyond doubt", "alarm", "named", "silent", "said, place"))
    studies = {name: (world, step, STEPS) for name, world in WORLDS.items()} | OTHERS
    for name, (world, change, heights) in studies.items():
        for n in SIZES if arguments.only in name else ():
            outcomes = []
            for onset, height in product(ONSETS, heights):
                once = partial(compare_once, world, change, arguments.baseline, (n, onset, height))
                outcomes += worlds.repeat(once, f"{name} {n} {onset} {height}", arguments.repeats)
            print_row(name, n, outcomes)


if __name__ == "__main__":
    main()
