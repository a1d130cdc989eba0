"""How often drift is seen where nothing changed.

For independent rows, for rows that resemble their neighbours, for embeddings, and for a day of windows.
`p < 0.05` is the test alone, which ought to be right one time in twenty; an alarm also asks for an effect and
for enough independent rows. Beside them, evidently's default rules on the same samples.

Flags: `--repeats N` (2,000), `--days N` (400), `--baseline N` (2,000), `--n N N` (50 200 1000), `--only NAME` for some of the worlds.
"""

import argparse
from collections.abc import Callable, Mapping
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

DEPENDENT: dict[str, World] = {
    "AR(0.9), 4 cameras on both sides": worlds.cameras,
    "AR(0.9), recordings of 25 frames": worlds.recordings,
    "AR(0.9), no source key": worlds.unkeyed,
    "independent, then AR(0.9)": (worlds.normal, worlds.unkeyed),
    "each frame 5 times, a key each": worlds.copies,
    "each frame 5 times, one camera": worlds.copies_of_a_camera,
    "labels that stay, one camera": worlds.sticky_labels,
}
EMBEDDED: dict[str, World] = {
    "64-d embeddings": worlds.embeddings,
    "64-d video, AR(0.9), one camera": worlds.video_embeddings,
}
ROW = "| {:34} | {:>5} | {:>8} | {:>8} | {:>8} | {:>12} | {:>9} | {:>15} |"


def one(world: World, baseline: int, n: int, seed: int) -> tuple[Signal, bool, bool]:
    """Compare two samples of one world; evidently with all of the baseline, and with 1,000 rows."""
    rng = np.random.default_rng(seed)
    before, after = world if isinstance(world, tuple) else (world, world)
    made = [before(rng, baseline), after(rng, n)]
    made = [side if isinstance(side, tuple) else (side, None) for side in made]
    sides = [build_sample({"x": values}, sources=sources) for values, sources in made]
    found = compare(sides[0], sides[1], ComparisonSettings(seed=seed)).signals[0]
    before, now = (np.asarray(values) for values, _ in made)
    return found, worlds.evidently(before, now), worlds.evidently(before[:1000], now)


def day(baseline: int, n: int, windows: int, seed: int) -> tuple[bool, bool, bool]:
    """Tell whether a quiet day has a window with a p-value below alpha, adjusted or not, or an alarm."""
    rng = np.random.default_rng(seed)
    before = build_sample(worlds.quiet(rng, baseline, 10))
    found = [
        signal
        for _ in range(windows)
        for signal in compare(
            before,
            build_sample(worlds.quiet(rng, n, 10)),
            ComparisonSettings(windows=windows, seed=seed),
        ).signals
    ]
    return (
        any((signal.p or 0.0) < 0.05 for signal in found),
        any((signal.p_adjusted or 0.0) < 0.05 for signal in found),
        any(signal.alarm for signal in found),
    )


def table(made: Mapping[str, World], given: argparse.Namespace) -> None:
    """Print a row for each world and size."""
    for name, world in made.items():
        for n in given.n if given.only in name else []:
            pairs = worlds.repeat(partial(one, world, given.baseline, n), name, given.repeats)
            found = [signal for signal, *_ in pairs]
            print(
                ROW.format(
                    name,
                    n,
                    worlds.share([(signal.p or 0.0) < 0.05 for signal in found]),
                    worlds.share([(signal.p or 0.0) < 0.05 / 24 for signal in found]),
                    worlds.share([signal.alarm for signal in found]),
                    worlds.share([signal.status == "insufficient" for signal in found]),
                    worlds.share([theirs for _, theirs, _ in pairs]),
                    worlds.share([theirs for *_, theirs in pairs]),
                ),
                flush=True,
            )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--days", type=int, default=400)
    parser.add_argument("--baseline", type=int, default=2000)
    parser.add_argument("--n", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    print(
        ROW.format(
            "nothing changed",
            "n",
            "p < 0.05",
            "p < 0.05/24",
            "alarm",
            "insufficient",
            "evidently",
            "evidently, 1,000",
        )
    )
    table(worlds.INDEPENDENT, given)
    table(DEPENDENT, given)
    table(EMBEDDED, given)
    if given.only in "day" and given.days:
        days = worlds.repeat(partial(day, given.baseline, 200, 24), "day", given.days)
        for name, flags in zip(
            ("p < 0.05", "adjusted", "alarm"), zip(*days, strict=True), strict=True
        ):
            print(f"| days of 24 windows x 10 signals, {name}: {worlds.share(list(flags))}")


if __name__ == "__main__":
    main()
