"""Detectors that tell when the level of a series changed, one value per window: ADWIN and Page-Hinkley.

How often they are wrong is measured in docs/drift-reference.md. They raise no alarm of a report.
"""

import math
from itertools import pairwise
from typing import Final

import msgspec

WARM_UP = 48
"""Values that are learned from, before anything is said."""

ADWIN_CONFIDENCE: Final = 0.002
ADWIN_BUCKETS: Final = 5
ADWIN_MIN_VALUES: Final = 5
PH_ALLOWED: Final = 0.25
PH_THRESHOLD: Final = 16.0

Bucket = tuple[int, float, float]
"""Number of values, their mean, and the sum of their squared distances from it."""


class Adwin(msgspec.Struct):
    """A window that grows while its level stays, and drops its older part when the level changed.

    Values are in units of their standard deviation; their variance is taken to be 1 at least. The window is
    kept in buckets, so that the state grows with the logarithm of its length.

    Source: Bifet and Gavalda, Learning from Time-Changing Data with Adaptive Windowing (2007), ADWIN2.
    """

    buckets: list[Bucket] = []
    """Oldest first."""

    def update(self, value: float) -> bool:
        """Take the next value; tells whether the level changed."""
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
        """Return where the means on both sides differ most beyond what chance allows, if they do."""
        newer: list[Bucket] = [(0, 0.0, 0.0)]
        for bucket in reversed(self.buckets):
            newer.append(merge_buckets(bucket, newer[-1]))
        n, _, squares = newer[-1]
        if n < 2 * ADWIN_MIN_VALUES:
            return None
        log_confidence = math.log(2 * math.log(n) / ADWIN_CONFIDENCE)
        variance = max(squares / n, 1.0)  # neighbours that are alike vary less than their level
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
    """Return what the values of both are together."""
    n = first[0] + second[0]
    if not n:
        return first
    difference = second[1] - first[1]
    mean = first[1] + difference * second[0] / n
    return n, mean, first[2] + second[2] + difference * difference * first[0] * second[0] / n


class PageHinkley(msgspec.Struct):
    """Sums how far values are above, and below, the mean so far by more than is allowed.

    Values are in units of their standard deviation.

    Source: Page, Continuous Inspection Schemes (1954); Hinkley (1971).
    """

    n: int = 0
    mean: float = 0.0
    above: float = 0.0
    below: float = 0.0

    def update(self, value: float) -> bool:
        """Take the next value; tells whether the level changed, and then begins anew."""
        self.n += 1
        self.mean += (value - self.mean) / self.n
        self.above = max(0.0, self.above + value - self.mean - PH_ALLOWED)
        self.below = max(0.0, self.below + self.mean - value - PH_ALLOWED)
        if max(self.above, self.below) <= PH_THRESHOLD:
            return False
        self.n, self.mean, self.above, self.below = 0, 0.0, 0.0, 0.0
        return True


class Series(msgspec.Struct):
    """A series with its detectors: the first values say what is usual, the later ones are judged.

    The unit is the standard deviation of the first values; where neighbours among them resemble each other,
    it is larger by as much as that makes their mean less certain.
    """

    min_unit: float = msgspec.field(default=0.0, name="least")
    """The unit is no smaller."""
    n: int = 0
    first: list[float] = []
    """While it is learned from."""
    mean: float = 0.0
    unit: float = 0.0
    adwin: Adwin = msgspec.field(default_factory=Adwin)
    page_hinkley: PageHinkley = msgspec.field(default_factory=PageHinkley)

    def update(self, value: float) -> list[str]:
        """Take the next value; returns the names of the detectors that say that the level changed."""
        self.n += 1
        if self.n <= WARM_UP:
            self.first.append(value)
            if self.n < WARM_UP:
                return []
            self.mean, self.unit = estimate_level(self.first)
        values, self.first = self.first or [value], []
        detected = []
        for value_ in values:
            scaled = (value_ - self.mean) / max(self.unit, self.min_unit, 1e-12)
            adwin, page_hinkley = self.adwin.update(scaled), self.page_hinkley.update(scaled)
            has_changed = {"adwin": adwin, "page_hinkley": page_hinkley}
            detected = [name for name, changed in has_changed.items() if changed]
        return detected


def estimate_level(values: list[float]) -> tuple[float, float]:
    """Return the mean of values, and their standard deviation, larger where neighbours are alike."""
    mean = sum(values) / len(values)
    deviations = [value - mean for value in values]
    squares = sum(deviation * deviation for deviation in deviations)
    lagged_products = sum(left * right for left, right in pairwise(deviations))
    correlation = min(max(lagged_products / squares, 0.0), 0.95) if squares else 0.0
    if correlation < 2 / math.sqrt(len(values)):
        correlation = 0.0
    variance = squares / (len(values) - 1) * (1 + correlation) / (1 - correlation)
    return mean, math.sqrt(variance)
