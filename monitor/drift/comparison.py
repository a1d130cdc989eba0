"""Comparison of a window with a baseline, column by column, as a report.

An effect is a distance over the spread of the baseline. Where a signal hardly varies, a change that nobody could notice
is a large effect; so a change has to reach a smallest shift in the signal's own unit, too.
"""

import sys
import zlib
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.samples import (
    Column,
    DriftError,
    Kind,
    Sample,
    kind_conflict,
    merge_names,
)
from quadriga.monitor.drift.significance import decision, kernels, parts, permutation, two_samples
from quadriga.monitor.drift.significance.decision import ComparisonSettings
from quadriga.monitor.drift.significance.exchangeable_units import (
    ExchangeableUnits,
    Origin,
    exchangeable_units,
    within_sources,
)
from quadriga.monitor.drift.significance.memory import NO_MEMORY, repeated_rows
from quadriga.monitor.drift.significance.permutation import PermutationBudget
from quadriga.monitor.drift.summary import Summary, as_summary
from quadriga.monitor.report.schema import (
    Begin,
    Data,
    Effect,
    Histogram,
    Level,
    Report,
    Signal,
    Window,
)
from quadriga.tasks.arrays import Float32Array, Float64Array, Int64Array

NOTICEABLE = {
    "image.brightness": 0.5,
    "image.contrast": 0.5,
    "image.blur": 0.05,
    "image.saturation": 0.005,
    "image.colour_a": 0.5,
    "image.colour_b": 0.5,
    "image.dark": 0.005,
    "image.burnt": 0.005,
    "aspect": 0.02,
    "x": 0.005,
    "y": 0.005,
}
"""Shifts of image statistics and of boxes that a person or a network could notice, in their units.

Lightness and colours are CIELAB's, in which a difference of about 2.3 is just noticeable between two patches; means over
an image are judged four times as strictly. Blur is a logarithm: 0.05 is a variance of the edges that is 5 % smaller.
Aspect is width over height. The others are shares of pixels, of full saturation, or of the image's width and height.
"""

_FLOAT_NOISE = 1e-6
"""Rounding of float32 values, and of sums of them, as a share of their magnitude."""
_STEP_SHARE = 0.1
"""Share of the step between rounded values that a mean has to move."""
_TIED_SHARE = 0.9
"""Share of distinct values below which values are taken to be rounded to steps."""


def smallest_shift(name: str, baseline: Float64Array) -> float:
    """Return the smallest shift of a signal that matters, in the unit of its values.

    It is that of `NOTICEABLE` for image statistics and boxes. For others it follows from the resolution of the baseline: a tenth
    of the smallest step between rounded values, and a millionth of their magnitude.

    Args:
        name: Name of the signal.
        baseline: (N,) values of the baseline, finite; at least one.
    """
    if name in NOTICEABLE:
        return NOTICEABLE[name]
    noise = _FLOAT_NOISE * float(np.quantile(np.abs(baseline), 0.9))
    distinct = np.unique(baseline)
    if not 1 < len(distinct) < _TIED_SHARE * len(baseline):
        return noise
    return max(noise, _STEP_SHARE * float(np.diff(distinct).min()))


MAX_GRID_VALUES = 128
"""Maximum number of values at which permutations compare distribution functions."""
HISTOGRAM_BINS = 40
"""Number of bins of a histogram in a report."""
PSI_BINS = 10
"""Number of bins of PSI for numbers, each with an equal share of the baseline."""
_MAX_SCORED_LABELS = 32
"""Number of the most frequent labels that the correlation of rows is measured by."""
_BEYOND_DOUBT = 0.2
"""Share of alpha for rows that do not resemble their neighbours, but others: how many are independent is least certain."""
_MIN_DISTINCT_SHARE = 0.9
"""Share of distinct values below which ties make the analytic p-value of KS too large."""
_TESTS: dict[Kind, tuple[str, str]] = {
    "numeric": ("ks", "wasserstein_iqr"),
    "count": ("chi_square", "wasserstein_iqr"),
    "categorical": ("chi_square", "total_variation"),
}
"""Names of the test and the effect by kind, as reports have them; embeddings are tested with the kernel."""


Moment = Callable[[int], str | None]
"""Returns the time of a row as RFC 3339 from its sort key; None where there is none."""


class _ColumnPair(NamedTuple):
    """A column on both sides."""

    kind: Kind
    baseline: Column
    current: Column
    origins: tuple[Origin, Origin]
    """Origins of the values of baseline and current."""
    window: Summary
    """Summary of the current window."""
    moment: Moment


class _ColumnResult(NamedTuple):
    """Result for a column that has values on both sides."""

    test: two_samples.TestResult
    effect: float
    units: ExchangeableUnits
    scores: tuple[Float32Array, Float32Array]
    """(P, D) features of the values of both sides, by which rows resemble each other."""
    histogram: Histogram = Histogram()
    levels: tuple[Level, Level] | None = None
    """Levels of baseline and current; None for labels and embeddings."""
    scale: float = 1.0
    """Shift in the unit of the signal that is an effect of 1."""
    smallest_shift: float = 0.0
    """Smallest shift that matters, in the unit of the signal."""
    table: Float64Array | None = None
    """(2, C) counts that PSI and the Jensen-Shannon distance are computed from; None for embeddings."""
    labels: tuple[str, ...] = ()
    """Labels that the dimensions of the scores stand for."""


def compare(
    baseline: Summary | Sample,
    current: Summary | Sample,
    settings: ComparisonSettings | None = None,
    *,
    task: str = "",
    moment: Moment = lambda _: None,
) -> Report:
    """Compare each column of the baseline; a column without current values is insufficient.

    Samples with more rows than `settings.rows` are reduced to that many; `moment` returns the time of a row from its
    sort key.

    Raises:
        DriftError: A column is of another kind, or its embeddings are of another length.
    """
    settings = settings or ComparisonSettings()
    baseline_summary = as_summary(baseline, settings)
    current_summary = as_summary(current, settings)
    samples = baseline_summary.sample, current_summary.sample
    _, codes = merge_names([(sample.source_names, sample.sources) for sample in samples])
    signal_count = len(baseline_summary.sample.columns)
    budget = PermutationBudget(decision.max_permutations(settings, signal_count), settings.seed)
    signals = []
    for column in baseline_summary.sample.columns:
        empty = Column(column.name, column.kind, column.rows[:0], column.values[:0])
        current_column = current_summary.sample.column(column.name) or empty
        origins = (
            _value_origin(baseline_summary, codes[0], column),
            _value_origin(current_summary, codes[1], current_column),
        )
        kind = _common_kind(column, current_column)
        pair = _ColumnPair(kind, column, current_column, origins, current_summary, moment)
        new_labels = (
            current_summary.labels.get(column.name, {}).keys()
            - baseline_summary.labels.get(column.name, {}).keys()
        )
        signals.append(
            _compare_column(
                pair, settings, budget, new_labels=sorted(new_labels), signal_count=signal_count
            )
        )
    sides = baseline_summary, current_summary
    return _build_report(decision.decide(signals, settings), sides, settings, task)


def _compare_column(
    pair: _ColumnPair,
    settings: ComparisonSettings,
    budget: PermutationBudget,
    *,
    new_labels: list[str],
    signal_count: int,
) -> Signal:
    """Test one column; its p-value is adjusted later, with those of the other signals."""
    n = (len(pair.baseline.rows), len(pair.current.rows))
    name, kind = pair.baseline.name, pair.kind
    kernel = (settings.kernel, f"{settings.kernel}_coefficient")
    test, effect = _TESTS.get(kind, kernel)
    if not min(n):
        return Signal(
            name=name,
            kind=kind,
            test=test,
            effect=Effect(effect, None, 0.0),
            n=n,
            status="insufficient",
            reason=f"expected values on each side, got {n[0]} and {n[1]}",
        )
    budget = budget._replace(seed=zlib.crc32(name.encode(), settings.seed))
    result, minimum = _test_column(pair, settings, budget)
    signal = Signal(
        name=name,
        kind=kind,
        test=test,
        effect=Effect(effect, result.effect, minimum),
        n=n,
        statistic=result.test.statistic,
        p=result.test.p,
        status="ok",
        n_eff=result.units.n_eff,
        units=result.units.kind,
        histogram=result.histogram,
        new_labels=new_labels,
        psi=None if result.table is None else two_samples.psi(result.table),
        js=None if result.table is None else two_samples.jensen_shannon(result.table),
        before=result.levels and result.levels[0],
        after=result.levels and result.levels[1],
        min_shift=result.levels and _finite(minimum * result.scale),
    )
    return _judge(signal, pair, result, settings, signal_count=signal_count)


def _judge(
    signal: Signal,
    pair: _ColumnPair,
    result: _ColumnResult,
    settings: ComparisonSettings,
    *,
    signal_count: int,
) -> Signal:
    """Say how certain a change is, of the whole window and of a part of it, and whether it can be judged at all.

    The effect is that of the changed part where the whole window moved by less than the minimum.
    """
    n, units, p, n_eff = signal.n, result.units, result.test.p, result.units.n_eff
    limit = settings.alpha / settings.windows / signal_count
    has_sources = all(origin.has_sources for origin in pair.origins)
    status, reason = decision.power_status(units, settings, signal_count, has_sources=has_sources)
    scores = within_sources(result.scores, pair.origins)
    steady = units.steady or units
    of_parts = parts.find_dependence(units, n, steady.memory)
    if units.has_memory:  # which is known less well than the correlation of neighbours
        of_parts = of_parts._replace(time=of_parts.time * parts.SAFETY)
    part = parts.most_changed_part(scores, of_parts)
    p_part, moved = part and part.p, None
    if status == "insufficient":
        dependence = parts.find_dependence(units, n)
        # A source may differ for what it is, and few independent rows are few.
        is_estimated = units.kind == "blocks" or (units.kind == "rows" and units.has_memory)
        if is_estimated:
            # Where the correlation of neighbours is known, the level of numbers tells more than their spread as well.
            has_level = result.levels is not None and units.kind == "blocks"
            before, after = (side[:, : 1 if has_level else None] for side in result.scores)
            p, n_eff = parts.whole_p_value((before, after), dependence), dependence.n_eff
        share = _BEYOND_DOUBT if units.kind == "rows" else 1.0
        if is_estimated and decision.combined_p_value(p, p_part) < limit * share:
            status, reason = "low_power", ""
        else:
            part = parts.most_changed_part(scores, parts.independent(n))
            as_independent = parts.whole_p_value(result.scores, parts.independent(n))
            moved = decision.combined_p_value(as_independent, part and part.p) < limit
    elif units.kind != "rows" and limit <= decision.combined_p_value(p, p_part):
        # Doubt about the dependence is no reason to be silent about the part.
        # A window that is far more correlated than the baseline has only itself to be measured by.
        measured = units if steady.has_equal_weights else steady
        doubted = parts.find_dependence(measured, n, (NO_MEMORY, NO_MEMORY))
        doubted_part = parts.most_changed_part(scores, doubted._replace(is_certain=True))
        if doubted_part is not None and parts.is_doubted(doubted_part, units.kind, doubted):
            status, reason = "insufficient", decision.CHANGED_INSIDE
            moved, part = True, doubted_part
    effect, minimum, began = result.effect, signal.effect.minimum, None
    if part is not None and (moved or decision.combined_p_value(p, p_part) < settings.alpha):
        began = _begin(pair, result, part, settings)
        is_significant = moved or part.p < limit * parts.PARTS_SHARE
        if is_significant and effect < minimum <= began.effect:
            effect = began.effect
        elif not part.stands_out and not (is_significant and p >= limit):
            began = None
    moved = moved and effect >= minimum
    return replace(
        signal,
        status=status,
        reason=reason,
        p=p,
        p_part=p_part,
        n_eff=n_eff,
        effect=replace(signal.effect, value=effect),
        shift=result.levels and _finite(effect * result.scale),
        began=began if status != "insufficient" or moved else None,
        moved=moved,
    )


def _begin(
    pair: _ColumnPair, result: _ColumnResult, part: parts.Part, settings: ComparisonSettings
) -> Begin:
    """Describe where the window changed."""
    column, window = pair.current, pair.window
    inside = slice(part.start, part.end)
    outside = np.delete(np.arange(len(column.rows)), inside)
    before = after = None
    changed = replace(column, values=column.values[inside])
    effect = effect_of_part(pair.baseline, changed, settings.kernel) / result.scale
    if result.labels or (result.levels and part.dimension == 0):
        values = result.scores[1][:, part.dimension] if result.labels else column.values
        before, after = (float(values[rows].mean()) for rows in (outside, inside))
    rows, order = column.rows, window.sample.order
    is_open = part.end < len(rows)
    scale = window.n / max(len(order), 1)
    last = int(rows[part.end - 1])
    return Begin(
        round(int(rows[part.start]) * scale) if part.start else 0,
        round((last + 1) * scale) if is_open else None,
        window.n,
        _finite(effect),
        before=before,
        after=after,
        label=result.labels[part.dimension] if result.labels else None,
        at=pair.moment(int(order[rows[part.start]])),
        until=pair.moment(int(order[last])) if is_open else None,
    )


def effect_of_part(baseline: Column, current: Column, kernel: kernels.Kernel) -> float:
    """Return how far values moved: numbers in their unit, labels and embeddings as the effect of their kind."""
    if baseline.kind == "embedding":
        return kernels.unbiased_effect(baseline.values, current.values, kernel)
    if baseline.kind == "categorical":
        labels, codes = merge_names([(side.labels, side.values) for side in (baseline, current)])
        table = permutation.count_table(np.concatenate(codes), len(codes[0]), len(labels))
        return two_samples.total_variation(table)
    return two_samples.wasserstein(baseline.values, current.values)


def _test_column(
    pair: _ColumnPair, settings: ComparisonSettings, budget: PermutationBudget
) -> tuple[_ColumnResult, float]:
    """Test a column that has values on both sides, by its kind; return the minimum of its effect, too."""
    if pair.kind == "embedding":
        return _compare_embeddings(pair, settings, budget), settings.min_distance
    if pair.kind == "categorical":
        return _compare_categories(pair, budget), settings.min_share
    result = _compare_numbers(pair, budget)
    return result, _finite(max(settings.min_shift, result.smallest_shift / result.scale))


def _finite(value: float) -> float:
    """Return a value, or the largest number if it is beyond."""
    return min(value, sys.float_info.max)


def _common_kind(baseline: Column, current: Column) -> Kind:
    """Return the kind by which two columns are compared.

    Raises:
        DriftError: The columns cannot be compared.
    """
    kinds = kind_conflict(baseline, current)
    if kinds is not None:
        expected = f"expected {baseline.name} to be {kinds[0]} as in the baseline"
        raise DriftError(f"{expected}, got {kinds[1]}")
    if not len(baseline.rows):
        return current.kind
    return baseline.kind if baseline.kind == current.kind or not len(current.rows) else "numeric"


def _value_origin(side: Summary, sources: Int64Array, column: Column) -> Origin:
    is_sampled = side.is_sampled(column.kind)
    order = side.sample.order[column.rows]
    runs = order // side.run if is_sampled else np.zeros_like(order)
    return Origin(sources[column.rows], runs, bool(side.sample.source_names), is_sampled)


def _build_report(
    signals: list[Signal],
    sides: tuple[Summary, Summary],
    settings: ComparisonSettings,
    task: str,
) -> Report:
    baseline, current = sides
    judged = [signal for signal in signals if signal.status != "insufficient"]
    is_open = any(signal.moved for signal in signals)
    alarm = any(signal.alarm for signal in signals)
    min_n_eff = [min((signal.n_eff[side] for signal in judged), default=None) for side in (0, 1)]
    spending = {"correction": "bh", "spending": f"bonferroni/{settings.windows}"}
    return Report(
        kind="drift",
        task=task,
        data=Data(
            Window(n=current.n, n_eff=min_n_eff[1]), Window(n=baseline.n, n_eff=min_n_eff[0])
        ),
        status="drift" if alarm else "ok" if judged and not is_open else "insufficient",
        parameters=msgspec.to_builtins(settings) | spending,
        signals=signals,
    )


def _compare_numbers(pair: _ColumnPair, budget: PermutationBudget) -> _ColumnResult:
    """Compare numbers by Kolmogorov-Smirnov, and counts by chi-square; the effect is the Wasserstein distance."""
    baseline, current = pair.baseline.values, pair.current.values
    n = len(baseline)
    pooled = np.concatenate([baseline, current])
    distinct = np.unique(pooled)
    values = distinct
    if len(distinct) > MAX_GRID_VALUES:
        values = np.unique(np.quantile(pooled, np.linspace(0, 1, MAX_GRID_VALUES), method="higher"))
    codes = np.searchsorted(values, pooled)
    scores = (codes / len(values)).astype(np.float32)[:, None]
    units = exchangeable_units((scores[:n], scores[n:]), _origins_of_rows(pair))
    if pair.kind == "count":
        cells = two_samples.pool_cells(permutation.count_table(codes, n, len(values)), ordered=True)
        test = permutation.chi_square(cells[codes], units, n, budget=budget)
    else:
        test = two_samples.ks(baseline, current)
        if len(distinct) < len(pooled) * _MIN_DISTINCT_SHARE or units.kind != "rows":
            p = permutation.permutation_p_value(
                permutation.ks_statistic, codes, units, n=n, budget=budget
            )
            test = test._replace(p=p)
    with_spread = np.hstack([scores, np.abs(scores - np.median(scores))])
    scale = two_samples.spread(baseline, current)
    # Values near the limits of a double overflow.
    effect = _finite(two_samples.wasserstein(baseline, current) / scale)
    edges = np.unique(np.quantile(baseline, np.linspace(0, 1, PSI_BINS + 1)[1:-1]))
    table = permutation.count_table(np.searchsorted(edges, pooled, "right"), n, len(edges) + 1)
    return _ColumnResult(
        test,
        effect,
        units,
        scores=(with_spread[:n], with_spread[n:]),
        histogram=histogram(baseline, current),
        levels=(_level(baseline), _level(current)),
        scale=scale,
        smallest_shift=smallest_shift(pair.baseline.name, baseline),
        table=table,
    )


def _level(values: Float64Array) -> Level:
    low, high = np.quantile(values, [0.1, 0.9]).tolist()
    return Level(float(values.mean()), low, high)


def _compare_categories(pair: _ColumnPair, budget: PermutationBudget) -> _ColumnResult:
    """Compare labels by chi-square, with rare labels pooled."""
    labels, codes_by_side = merge_names(
        [(column.labels, column.values) for column in (pair.baseline, pair.current)]
    )
    codes, n = np.concatenate(codes_by_side), len(codes_by_side[0])
    table = permutation.count_table(codes, n, len(labels))
    frequent = np.argsort(-table.sum(axis=0), kind="stable")[:_MAX_SCORED_LABELS]
    scores = (codes[:, None] == frequent).astype(np.float32)
    units = exchangeable_units((scores[:n], scores[n:]), pair.origins)
    cells = two_samples.pool_cells(table, ordered=False)
    test = permutation.chi_square(cells[codes], units, n, budget=budget)
    return _ColumnResult(
        test,
        two_samples.total_variation(table),
        units,
        scores=(scores[:n], scores[n:]),
        histogram=Histogram(list(labels), *table.astype(np.int64).tolist()),
        table=table[:, table.sum(axis=0) > 0],
        labels=tuple(labels[code] for code in frequent),
    )


def _compare_embeddings(
    pair: _ColumnPair, settings: ComparisonSettings, budget: PermutationBudget
) -> _ColumnResult:
    """Compare embeddings by energy distance or MMD, with permutations.

    The effect is the distance minus its mean over permutations, as a share of the distance if each side were a
    single point: at most 1.
    """
    scores = [column.values.astype(np.float32) for column in (pair.baseline, pair.current)]
    units = exchangeable_units((scores[0], scores[1]), _origins_of_rows(pair))
    distances = kernels.pairwise_distances(np.concatenate(scores))
    is_current = np.arange(len(distances)) >= len(scores[0])
    kernel = kernels.kernel_matrix(distances, settings.kernel)
    scale = 2 * float(kernel.diagonal().mean() - kernel[np.ix_(is_current, ~is_current)].mean())
    kernel = kernels.centre_kernel(kernel)
    statistic = kernels.squared_distance(kernel, is_current)
    permutations = permutation.permute_units(kernels.permutation_statistic(kernel, units), units)
    p, null_mean = permutation.fitted_p_value(
        permutations, budget._replace(max_permutations=settings.permutations)
    )
    effect = (permutations.observed - null_mean) / scale if scale > 0 else 0.0
    return _ColumnResult(
        two_samples.TestResult(statistic, p), effect, units, scores=(scores[0], scores[1])
    )


def _origins_of_rows(pair: _ColumnPair) -> tuple[Origin, Origin]:
    """Return the origins of a column's values, where none are known with repeated rows as sources."""
    if any(origin.has_sources for origin in pair.origins) or pair.kind == "count":
        return pair.origins
    codes = repeated_rows(pair.baseline.values, pair.current.values)
    if codes is None:
        return pair.origins
    baseline, current = (
        origin._replace(sources=side, has_sources=True)
        for origin, side in zip(pair.origins, codes, strict=True)
    )
    return baseline, current


def histogram(baseline: Float64Array, current: Float64Array) -> Histogram:
    """Count values in bins of equal width; the outer bins include the 0.1 % farthest out at each end."""
    low, high = np.quantile(np.concatenate([baseline, current]), [0.001, 0.999])
    edges = np.unique(np.linspace(low, high, HISTOGRAM_BINS + 1))
    if len(edges) == 1:
        edges = np.array([low - 0.5, low + 0.5])
    counts = (
        np.bincount(np.searchsorted(edges[1:-1], side, "right"), minlength=len(edges) - 1).tolist()
        for side in (baseline, current)
    )
    return Histogram(edges.tolist(), *counts)
