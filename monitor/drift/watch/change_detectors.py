"""Change detectors for series with one value per window: ADWIN and Page-Hinkley.

Their false alarms are measured in docs/drift-reference.md. They never raise an alarm of a report.
"""

import math
from itertools import pairwise
from typing import Final

import msgspec

WARM_UP = 48
"""Number of values that the level is learned from before changes are detected."""

ADWIN_CONFIDENCE: Final = 0.002
"""Delta of ADWIN: smaller values make fewer false alarms."""
ADWIN_BUCKETS: Final = 5
"""Maximum number of buckets of one size."""
ADWIN_MIN_VALUES: Final = 5
"""Minimum number of values on each side of a change."""
PH_ALLOWED: Final = 0.25
"""Deviation from the mean that Page-Hinkley tolerates at each value, in units of the series."""
PH_THRESHOLD: Final = 16.0
"""Cumulative deviation that counts as a change, in units of the series."""

Bucket = tuple[int, float, float]
"""Number of values, their mean, and the sum of their squared distances from it."""


class Adwin(msgspec.Struct):
    """Adaptive window: it grows while its level stays, and drops its older part when the level changes.

    Values are in units of their standard deviation; their variance counts as at least 1. The window is stored in
    buckets, so that the state grows with the logarithm of its length.

    Source: Bifet and Gavalda, Learning from Time-Changing Data with Adaptive Windowing (2007), ADWIN2.
    """

    buckets: list[Bucket] = []
    """Buckets of the window, oldest first."""

    def update(self, value: float) -> bool:
        """Add the next value, and return whether the level changed."""
        self.buckets.append((1, value, 0.0))
        size = 1
        while sum(bucket[0] == size for bucket in self.buckets) > ADWIN_BUCKETS:
            position = next(
                position for position, bucket in enumerate(self.buckets) if bucket[0] == size
            )
            self.buckets[position : position + 2] = [
                merge_buckets(self.buckets[position], self.buckets[position + 1])
            ]
            size *= 2
        changed = False
        while (cut := self._cut()) is not None:
            del self.buckets[:cut]
            changed = True
        return changed

    def _cut(self) -> int | None:
        """Return the bucket before which the means differ most beyond their threshold; None if they nowhere do."""
        newer: list[Bucket] = [(0, 0.0, 0.0)]
        for bucket in reversed(self.buckets):
            newer.append(merge_buckets(bucket, newer[-1]))
        n, _, squares = newer[-1]
        if n < 2 * ADWIN_MIN_VALUES:
            return None
        log_confidence = math.log(2 * math.log(n) / ADWIN_CONFIDENCE)
        variance = max(squares / n, 1.0)  # correlated neighbours vary less than their level does
        older: Bucket = (0, 0.0, 0.0)
        cut, max_excess = None, 1.0
        for position, (bucket, newer_bucket) in enumerate(
            zip(self.buckets, newer[-2::-1], strict=True), 1
        ):
            older = merge_buckets(older, bucket)
            if min(older[0], newer_bucket[0]) < ADWIN_MIN_VALUES:
                continue
            inverse_sizes = 1 / older[0] + 1 / newer_bucket[0]
            threshold = (
                math.sqrt(2 * inverse_sizes * variance * log_confidence)
                + 2 / 3 * inverse_sizes * log_confidence
            )
            if abs(older[1] - newer_bucket[1]) > max_excess * threshold:
                cut, max_excess = position, abs(older[1] - newer_bucket[1]) / threshold
        return cut


def merge_buckets(first: Bucket, second: Bucket) -> Bucket:
    """Merge two buckets into one."""
    n = first[0] + second[0]
    if not n:
        return first
    difference = second[1] - first[1]
    mean = first[1] + difference * second[0] / n
    return n, mean, first[2] + second[2] + difference * difference * first[0] * second[0] / n


class PageHinkley(msgspec.Struct):
    """Page-Hinkley test: sums of the deviations above and below the running mean, beyond the tolerated ones.

    Values are in units of their standard deviation.

    Source: Page, Continuous Inspection Schemes (1954); Hinkley (1971).
    """

    n: int = 0
    mean: float = 0.0
    above: float = 0.0
    below: float = 0.0

    def update(self, value: float) -> bool:
        """Add the next value, and return whether the level changed; after a change the test starts anew."""
        self.n += 1
        self.mean += (value - self.mean) / self.n
        self.above = max(0.0, self.above + value - self.mean - PH_ALLOWED)
        self.below = max(0.0, self.below + self.mean - value - PH_ALLOWED)
        if max(self.above, self.below) <= PH_THRESHOLD:
            return False
        self.n, self.mean, self.above, self.below = 0, 0.0, 0.0, 0.0
        return True


class Series(msgspec.Struct):
    """A series with its detectors: the first values define level and unit, then all are scaled and tested.

    The unit is the standard deviation of the first values; if they are autocorrelated, it is larger by as much as
    that makes their mean less certain.
    """

    min_unit: float = msgspec.field(default=0.0, name="least")
    """Smallest unit."""
    n: int = 0
    first: list[float] = []
    """First values, until the level is known."""
    mean: float = 0.0
    unit: float = 0.0
    adwin: Adwin = msgspec.field(default_factory=Adwin)
    page_hinkley: PageHinkley = msgspec.field(default_factory=PageHinkley)

    def update(self, value: float) -> list[str]:
        """Add the next value, and return the names of the detectors that detect a change."""
        self.n += 1
        if self.n <= WARM_UP:
            self.first.append(value)
            if self.n < WARM_UP:
                return []
            self.mean, self.unit = estimate_level(self.first)
        values, self.first = self.first or [value], []
        detected = []
        for raw_value in values:
            scaled = (raw_value - self.mean) / max(self.unit, self.min_unit, 1e-12)
            adwin, page_hinkley = self.adwin.update(scaled), self.page_hinkley.update(scaled)
            has_changed = {"adwin": adwin, "page_hinkley": page_hinkley}
            detected = [name for name, changed in has_changed.items() if changed]
        return detected


def estimate_level(values: list[float]) -> tuple[float, float]:
    """Return the mean of values and their standard deviation, which is enlarged if they are autocorrelated."""
    mean = sum(values) / len(values)
    deviations = [value - mean for value in values]
    squares = sum(deviation * deviation for deviation in deviations)
    lagged_products = sum(first * second for first, second in pairwise(deviations))
    correlation = min(max(lagged_products / squares, 0.0), 0.95) if squares else 0.0
    if correlation < 2 / math.sqrt(len(values)):
        correlation = 0.0
    variance = squares / (len(values) - 1) * (1 + correlation) / (1 - correlation)
    return mean, math.sqrt(variance)
