"""When to raise an alarm: the change is significant, large enough to matter, and there are enough values to judge."""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.significance.exchangeable_units import ExchangeableUnits
from quadriga.monitor.drift.significance.kernels import Kernel
from quadriga.monitor.drift.significance.parts import PARTS_SHARE
from quadriga.monitor.drift.significance.permutation import log_arrangements
from quadriga.monitor.report.schema import Signal

MIN_UNITS = 20
"""Minimum number of blocks or sources on both sides together."""
MIN_UNITS_PER_SIDE = 2
"""Minimum number of units on each side: a single source may differ for what it is, not for when it was seen."""

_MEMORY = (
    "rows resemble rows further away, as where cameras take turns: name their source in source_keys"
)
_MEMORY_WITHIN_SOURCES = (
    "rows of a source resemble rows much later, so that the number of independent ones is not certain, "
    "however large: take a longer window and baseline"
)
CHANGED_INSIDE = (
    "a part of the window moved, but rows resemble their neighbours, so that it may be chance: "
    "take a longer window and baseline"
)

PowerStatus = Literal["ok", "low_power", "insufficient"]


class ComparisonSettings(msgspec.Struct, frozen=True):
    """Settings of a comparison and of its alarms."""

    alpha: float = 0.05
    """Maximum share of days with a false alarm, whatever the number of signals and windows."""
    windows: int = 1
    """Number of windows per day, which share alpha."""
    min_shift: float = msgspec.field(default=0.1, name="least_shift")
    """Smallest shift of a number that matters, as Wasserstein distance over interquartile range."""
    min_share: float = msgspec.field(default=0.05, name="least_share")
    """Smallest share of labels that matters, as total variation."""
    min_distance: float = msgspec.field(default=0.0005, name="least_distance")
    """Smallest distance of embeddings that matters, as a share of the largest possible; about 0.05 standard
    deviations in each dimension."""
    insufficient: float = 30.0
    """Effective sample size of a side below which there is no alarm."""
    low_power: float = 100.0
    """Effective sample size of a side below which only large changes can be detected."""
    kernel: Kernel = "energy"
    rows: int = 100_000
    """Maximum number of rows of a side that are compared; of more, as many are drawn."""
    embedding_rows: int = 2_000
    """Maximum number of embeddings of a side that are compared."""
    permutations: int = 999
    """Number of permutations; more are made where a small p-value needs them."""
    seed: int = 0


def max_permutations(settings: ComparisonSettings, signal_count: int) -> int:
    """Return how many permutations tell whether the p-value of one of so many signals is below its share of alpha."""
    shares = settings.windows * signal_count / settings.alpha / (1 - PARTS_SHARE)
    return max(settings.permutations, math.ceil(4 * shares))


def power_status(
    units: ExchangeableUnits,
    settings: ComparisonSettings,
    signal_count: int = 1,
    *,
    has_sources: bool = False,
) -> tuple[PowerStatus, str]:
    """Check whether a change of one of so many signals can be detected; return what is missing if it is insufficient.

    `has_sources` says whether the rows name their sources, so that naming them is no advice.
    """
    min_n_eff = min(units.n_eff)
    if min_n_eff < settings.insufficient:
        expected = f"expected {settings.insufficient:g} independent values on each side"
        return "insufficient", f"{expected}, got {min_n_eff:.0f} (as {units.kind})"
    if units.has_memory:
        return "insufficient", _MEMORY_WITHIN_SOURCES if has_sources else _MEMORY
    if not units.is_comparable:
        return "insufficient", "expected runs of rows as long as blocks, got too few rows of each"
    count = len(units.is_current)
    if units.kind != "rows" and count < MIN_UNITS:
        return "insufficient", f"expected {MIN_UNITS} {units.kind} on both sides, got {count}"
    current_count = int(units.is_current.sum())
    # The smallest p-value that permutations can reach is 1 / (number of arrangements).
    log_ways = math.inf if units.kind == "rows" else log_arrangements(units)
    min_log_ways = math.log(settings.windows / settings.alpha)
    if min(current_count, count - current_count) < MIN_UNITS_PER_SIDE or log_ways < min_log_ways:
        expected = f"expected more {units.kind} on each side"
        counts = f"{count - current_count} and {current_count}"
        return "insufficient", f"{expected}, got {counts}: too few to deal out"
    is_weak = min_n_eff < settings.low_power or log_ways < min_log_ways + math.log(signal_count)
    return ("low_power" if is_weak else "ok"), ""


def combined_p_value(window: float, part: float | None) -> float:
    """Return the p-value of the whole window and of its most changed part together, by a weighted Bonferroni.

    The part has a small share of alpha, so that changes of whole windows are seen as without it.
    """
    if part is None:
        return window
    return min(window / (1 - PARTS_SHARE), part / PARTS_SHARE, 1.0)


def decide(signals: Sequence[Signal], settings: ComparisonSettings) -> list[Signal]:
    """Adjust p-values for the number of signals and windows, and raise the alarms.

    The signals of a window are adjusted by Benjamini and Hochberg, the windows of a day by Bonferroni.
    """
    judged_positions = [
        position
        for position, signal in enumerate(signals)
        if signal.p is not None and signal.status != "insufficient"
    ]
    judged = [signals[position] for position in judged_positions]
    adjusted = benjamini_hochberg([combined_p_value(s.p or 0.0, s.p_part) for s in judged])
    decided = list(signals)
    for position, p in zip(judged_positions, adjusted, strict=True):
        p_adjusted, effect = min(p * settings.windows, 1.0), signals[position].effect
        is_large = effect.value is not None and effect.value >= effect.minimum
        is_alarm = p_adjusted < settings.alpha and is_large
        decided[position] = replace(
            signals[position],
            p_adjusted=p_adjusted,
            alarm=is_alarm,
            began=signals[position].began if is_alarm else None,
        )
    return decided


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, in the order of `p`.

    Source: scipy.stats.false_discovery_control.
    """
    values = np.asarray(p, np.float64)
    order = np.argsort(values)[::-1]
    scaled = values[order] * len(values) / np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled), 1.0)
    return adjusted.tolist()
