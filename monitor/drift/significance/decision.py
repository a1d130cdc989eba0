"""When to raise an alarm: likely enough no accident, large enough to matter, and enough seen to tell."""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.significance.exchangeable_units import ExchangeableUnits
from quadriga.monitor.drift.significance.kernels import Kernel
from quadriga.monitor.drift.significance.permutation import log_arrangements
from quadriga.monitor.report.schema import Signal

MIN_UNITS = 20
"""Blocks or sources, of both sides together."""
MIN_UNITS_PER_SIDE = 2
"""One alone may differ from all others for what it is, not for when it was seen."""

PowerStatus = Literal["ok", "low_power", "insufficient"]


class ComparisonSettings(msgspec.Struct, frozen=True):
    """How a comparison is made and judged."""

    alpha: float = 0.05
    """Share of days with a false alarm, at most, whatever the number of signals and windows."""
    windows: int = 1
    """Windows of a day, among which alpha is dealt out."""
    min_shift: float = msgspec.field(default=0.1, name="least_shift")
    """Smallest shift of a number that matters, as Wasserstein distance over interquartile range."""
    min_share: float = msgspec.field(default=0.05, name="least_share")
    """Smallest share of labels that matters, as total variation."""
    min_distance: float = msgspec.field(default=0.0005, name="least_distance")
    """Smallest distance of embeddings that matters, as a share of the largest possible; about 0.05 standard
    deviations in each dimension."""
    insufficient: float = 30.0
    """Independent values on a side, below which there is no alarm."""
    low_power: float = 100.0
    """Independent values on a side, below which only large changes can be seen."""
    kernel: Kernel = "energy"
    rows: int = 100_000
    """Of a side that are compared; of more, as many are drawn."""
    embedding_rows: int = 2_000
    """As `rows`."""
    permutations: int = 999
    seed: int = 0


def max_permutations(settings: ComparisonSettings, signals: int) -> int:
    """Return how many permutations it takes for one signal of many to get below its share of alpha."""
    return max(settings.permutations, math.ceil(2 * settings.windows * signals / settings.alpha))


def power_status(
    units: ExchangeableUnits, settings: ComparisonSettings, signals: int = 1
) -> tuple[PowerStatus, str]:
    """Tell whether there is enough to see a change of one signal of many, and if not, what is missing."""
    least = min(units.n_eff)
    if least < settings.insufficient:
        wanted = f"expected {settings.insufficient:g} independent values on each side"
        return "insufficient", f"{wanted}, got {least:.0f} (as {units.kind})"
    if not units.is_comparable:
        return "insufficient", "expected runs of rows as long as blocks, got too few rows of each"
    count = len(units.is_current)
    if units.kind != "rows" and count < MIN_UNITS:
        return "insufficient", f"expected {MIN_UNITS} {units.kind} on both sides, got {count}"
    now = int(units.is_current.sum())
    ways = math.inf if units.kind == "rows" else log_arrangements(units)
    coarsest = math.log(settings.windows / settings.alpha)
    if min(now, count - now) < MIN_UNITS_PER_SIDE or ways < coarsest:
        wanted = f"expected more {units.kind} on each side"
        return "insufficient", f"{wanted}, got {count - now} and {now}: too few to deal out"
    is_weak = least < settings.low_power or ways < coarsest + math.log(signals)
    return ("low_power" if is_weak else "ok"), ""


def decide(signals: Sequence[Signal], settings: ComparisonSettings) -> list[Signal]:
    """Adjust p-values for the number of signals and windows, and raise the alarms.

    Inside a window by Benjamini and Hochberg, over the windows of a day by Bonferroni.
    """
    judged = [
        at for at, one in enumerate(signals) if one.p is not None and one.status != "insufficient"
    ]
    adjusted = benjamini_hochberg([signals[at].p or 0.0 for at in judged])
    made = list(signals)
    for at, p in zip(judged, adjusted, strict=True):
        spent, effect = min(p * settings.windows, 1.0), signals[at].effect
        is_large = effect.value is not None and effect.value >= effect.minimum
        alarm = spent < settings.alpha and is_large
        made[at] = replace(signals[at], p_adjusted=spent, alarm=alarm)
    return made


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, in the same order.

    Source: scipy.stats.false_discovery_control.
    """
    values = np.asarray(p, np.float64)
    order = np.argsort(values)[::-1]
    scaled = values[order] * len(values) / np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled), 1.0)
    return adjusted.tolist()
