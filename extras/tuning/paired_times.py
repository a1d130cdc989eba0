"""Times of several ways to do the same, measured in turns: a machine that changes its speed changes that of all."""

import math
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

MIN_ROUNDS = 6
"""Smallest number of values whose median has an interval."""

_WARM_UP_ROUNDS = 3


class RunTimes(msgspec.Struct, frozen=True):
    """Seconds of each run of one way, in the order of the rounds."""

    wall_s: list[float]
    cpu_s: list[float]
    """Time of all threads of this process."""

    @property
    def ms(self) -> float:
        """Return the median in milliseconds."""
        return round(statistics.median(self.wall_s) * 1000, 3)

    @property
    def cpu_ms(self) -> float:
        """Return the median of the processor's time in milliseconds."""
        return round(statistics.median(self.cpu_s) * 1000, 3)


def time_in_turns(
    tasks: Sequence[Callable[[int], object]], *, max_rounds: int, max_s: float
) -> list[RunTimes]:
    """Run each task once a round, in an order that turns round by round, until a limit is reached.

    Args:
        tasks: What is timed, called with the number of the round.
        max_rounds: Maximum number of rounds.
        max_s: Seconds after which no further round begins; six rounds are run at least.
    """
    for number in range(_WARM_UP_ROUNDS):
        for task in tasks:
            task(number)
    times = [RunTimes([], []) for _ in tasks]
    end_s = time.monotonic() + max_s
    for number in range(max_rounds):
        if number >= MIN_ROUNDS and time.monotonic() > end_s:
            break
        order = range(len(tasks)) if number % 2 else reversed(range(len(tasks)))
        for index in order:
            started_s, started_cpu_s = time.perf_counter(), time.process_time()
            tasks[index](number)
            times[index].cpu_s.append(time.process_time() - started_cpu_s)
            times[index].wall_s.append(time.perf_counter() - started_s)
    return times


def median_factor(
    before_s: Sequence[float], after_s: Sequence[float]
) -> tuple[float, tuple[float, float] | None]:
    """Return the median over the rounds of how many times as fast the second is, and its 95 % interval."""
    factors = [old / max(new, 1e-9) for old, new in zip(before_s, after_s, strict=True)]
    return round(statistics.median(factors), 3), median_interval(factors)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a median by the ranks of the values; None of fewer than six.

    Source: Conover, Practical Nonparametric Statistics, 3.2: normal approximation of the binomial ranks.
    """
    count, ordered = len(values), sorted(values)
    if count < MIN_ROUNDS:
        return None
    half_width = 1.96 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - half_width) - 1)
    high = min(count - 1, math.ceil(count / 2 + half_width))
    return round(ordered[low], 3), round(ordered[high], 3)
