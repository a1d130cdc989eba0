"""Has anything changed? A window against a baseline, column by column, as a report."""

import sys
import zlib
from typing import NamedTuple

import msgspec
import numpy as np

from quadriga.monitor.drift.samples import (
    Column,
    DriftError,
    Kind,
    Sample,
    kind_conflict,
    merge_names,
)
from quadriga.monitor.drift.significance import kernels, two_samples
from quadriga.monitor.drift.significance.decision import (
    ComparisonSettings,
    decide,
    max_permutations,
    power_status,
)
from quadriga.monitor.drift.significance.exchangeable_units import (
    ExchangeableUnits,
    Origin,
    exchangeable_units,
)
from quadriga.monitor.drift.significance.permutation import (
    PermutationBudget,
    chi_square,
    count_table,
    fitted_p_value,
    ks_statistic,
    permutation_p_value,
    permute_units,
)
from quadriga.monitor.drift.summary import Summary, summarise
from quadriga.monitor.report.schema import Data, Effect, Histogram, Report, Signal, Window
from quadriga.tasks.arrays import Float64Array, Int64Array

MAX_GRID_VALUES = 128
"""Values, at most, at which permutations compare distribution functions."""
HISTOGRAM_BINS = 40
"""Of a histogram in a report."""
PSI_BINS = 10
"""Each with an equal share of the baseline."""
_MAX_SCORED_LABELS = 32
"""The most frequent labels: by them rows are found alike."""
_MIN_DISTINCT_SHARE = 0.9
"""Share of distinct values below which numbers are tied too often for the p-value of KS."""
_TESTS: dict[Kind, tuple[str, str]] = {
    "numeric": ("ks", "wasserstein_iqr"),
    "count": ("chi_square", "wasserstein_iqr"),
    "categorical": ("chi_square", "total_variation"),
}


class _ColumnPair(NamedTuple):
    """A column on both sides."""

    kind: Kind
    baseline: Column
    current: Column
    origins: tuple[Origin, Origin]
    """Of the values."""


class _ColumnResult(NamedTuple):
    """What came out for a column that has values on both sides."""

    test: two_samples.TestResult
    effect: float
    units: ExchangeableUnits
    histogram: Histogram = Histogram()
    table: Float64Array | None = None
    """(2, C) counts that PSI and its kin are taken from."""


def compare(
    baseline: Summary | Sample,
    current: Summary | Sample,
    settings: ComparisonSettings | None = None,
    *,
    task: str = "",
) -> Report:
    """Compare each column that the baseline has; one that is not current is insufficient.

    Of a sample with more rows than `settings.rows`, as many are drawn.

    Raises:
        DriftError: A column is of another kind, or its embeddings are of another length.
    """
    settings = settings or ComparisonSettings()
    before, now = as_summary(baseline, settings), as_summary(current, settings)
    _, codes = merge_names([(one.sample.source_names, one.sample.sources) for one in (before, now)])
    count = len(before.sample.columns)
    budget = PermutationBudget(max_permutations(settings, count), settings.seed)
    signals = []
    for column in before.sample.columns:
        nothing = Column(column.name, column.kind, column.rows[:0], column.values[:0])
        other = now.sample.column(column.name) or nothing
        origins = _value_origin(before, codes[0], column), _value_origin(now, codes[1], other)
        pair = _ColumnPair(_common_kind(column, other), column, other, origins)
        new = now.labels.get(column.name, {}).keys() - before.labels.get(column.name, {}).keys()
        signals.append(_compare_column(pair, settings, budget, sorted(new), count))
    return _build_report(decide(signals, settings), before, now, settings, task)


def as_summary(side: Summary | Sample, settings: ComparisonSettings) -> Summary:
    """Return a sample as a summary of no more rows than are compared; a summary as it is."""
    if isinstance(side, Summary):
        return side
    return summarise(
        side, rows=settings.rows, embeddings=settings.embedding_rows, seed=settings.seed
    )


def _compare_column(
    pair: _ColumnPair,
    settings: ComparisonSettings,
    budget: PermutationBudget,
    new: list[str],
    signals: int,
) -> Signal:
    n = (len(pair.baseline.rows), len(pair.current.rows))
    name, kind = pair.baseline.name, pair.kind
    kernel = (settings.kernel, f"{settings.kernel}_coefficient")
    test, effect = _TESTS.get(kind, kernel)
    if not min(n):
        reason = f"expected values on each side, got {n[0]} and {n[1]}"
        missing = Effect(effect, None, 0.0)
        return Signal(name, kind, test, missing, n, status="insufficient", reason=reason)
    budget = budget._replace(seed=zlib.crc32(name.encode(), settings.seed))
    if kind == "embedding":
        found, least = _compare_embeddings(pair, settings, budget), settings.min_distance
    elif kind == "categorical":
        found, least = _compare_categories(pair, budget), settings.min_share
    else:
        found, least = _compare_numbers(pair, budget), settings.min_shift
    enough, reason = power_status(found.units, settings, signals)
    return Signal(
        name,
        kind,
        test,
        Effect(effect, found.effect, least),
        n,
        *found.test,
        status=enough,
        reason=reason,
        n_eff=found.units.n_eff,
        units=found.units.kind,
        histogram=found.histogram,
        new_labels=new,
        psi=None if found.table is None else two_samples.psi(found.table),
        js=None if found.table is None else two_samples.jensen_shannon(found.table),
    )


def _common_kind(before: Column, now: Column) -> Kind:
    found = kind_conflict(before, now)
    if found is not None:
        wanted = f"expected {before.name} to be {found[0]} as in the baseline"
        raise DriftError(f"{wanted}, got {found[1]}")
    if not len(before.rows):
        return now.kind
    return before.kind if before.kind == now.kind or not len(now.rows) else "numeric"


def _value_origin(side: Summary, sources: Int64Array, column: Column) -> Origin:
    drawn = side.is_sampled(column.kind)
    order = side.sample.order[column.rows]
    runs = order // side.run if drawn else np.zeros_like(order)
    return Origin(sources[column.rows], runs, bool(side.sample.source_names), drawn)


def _build_report(
    signals: list[Signal], before: Summary, now: Summary, settings: ComparisonSettings, task: str
) -> Report:
    judged = [one for one in signals if one.status != "insufficient"]
    alarm = any(one.alarm for one in signals)
    least = [min((one.n_eff[side] for one in judged), default=None) for side in (0, 1)]
    told = {"correction": "bh", "spending": f"bonferroni/{settings.windows}"}
    return Report(
        kind="drift",
        task=task,
        data=Data(Window(n=now.n, n_eff=least[1]), Window(n=before.n, n_eff=least[0])),
        status="drift" if alarm else "ok" if judged else "insufficient",
        parameters=msgspec.to_builtins(settings) | told,
        signals=signals,
    )


def _compare_numbers(pair: _ColumnPair, budget: PermutationBudget) -> _ColumnResult:
    """Compare numbers by Kolmogorov-Smirnov, counts by chi-square; the effect is the same."""
    before, now = pair.baseline.values, pair.current.values
    n = len(before)
    both = np.concatenate([before, now])
    distinct = np.unique(both)
    values = distinct
    if len(distinct) > MAX_GRID_VALUES:
        values = np.unique(np.quantile(both, np.linspace(0, 1, MAX_GRID_VALUES), method="higher"))
    codes = np.searchsorted(values, both)
    scores = (codes / len(values)).astype(np.float32)[:, None]
    exchanged = exchangeable_units((scores[:n], scores[n:]), pair.origins)
    if pair.kind == "count":
        cells = two_samples.pool_cells(count_table(codes, n, len(values)), ordered=True)
        found = chi_square(cells[codes], exchanged, n, budget)
    else:
        found = two_samples.ks(before, now)
        if len(distinct) < len(both) * _MIN_DISTINCT_SHARE or exchanged.kind != "rows":
            found = found._replace(p=permutation_p_value(ks_statistic, codes, exchanged, n, budget))
    effect = two_samples.wasserstein(before, now) / two_samples.spread(before, now)
    effect = min(effect, sys.float_info.max)  # values near the limits of a double overflow
    edges = np.unique(np.quantile(before, np.linspace(0, 1, PSI_BINS + 1)[1:-1]))
    table = count_table(np.searchsorted(edges, both, "right"), n, len(edges) + 1)
    return _ColumnResult(found, effect, exchanged, histogram(before, now), table)


def _compare_categories(pair: _ColumnPair, budget: PermutationBudget) -> _ColumnResult:
    """Compare labels by chi-square, the rare ones put together."""
    labels, both = merge_names([(one.labels, one.values) for one in (pair.baseline, pair.current)])
    codes, n = np.concatenate(both), len(both[0])
    table = count_table(codes, n, len(labels))
    frequent = np.argsort(-table.sum(axis=0), kind="stable")[:_MAX_SCORED_LABELS]
    scores = (codes[:, None] == frequent).astype(np.float32)
    exchanged = exchangeable_units((scores[:n], scores[n:]), pair.origins)
    found = chi_square(two_samples.pool_cells(table, ordered=False)[codes], exchanged, n, budget)
    shown = Histogram(list(labels), *table.astype(np.int64).tolist())
    effect = two_samples.total_variation(table)
    return _ColumnResult(found, effect, exchanged, shown, table[:, table.sum(axis=0) > 0])


def _compare_embeddings(
    pair: _ColumnPair, settings: ComparisonSettings, budget: PermutationBudget
) -> _ColumnResult:
    """Compare embeddings by energy distance or MMD, with permutations.

    The effect is the distance, less what permutations have on average, as a share of what it would be if the
    sides were two points: at most 1.
    """
    scores = [one.values.astype(np.float32) for one in (pair.baseline, pair.current)]
    exchanged = exchangeable_units((scores[0], scores[1]), pair.origins)
    apart = kernels.pairwise_distances(np.concatenate(scores))
    current = np.arange(len(apart)) >= len(scores[0])
    kernel = kernels.kernel_matrix(apart, settings.kernel)
    scale = 2 * float(kernel.diagonal().mean() - kernel[np.ix_(current, ~current)].mean())
    kernel = kernels.centre_kernel(kernel)
    statistic = kernels.squared_distance(kernel, current)
    test = permute_units(kernels.permutation_statistic(kernel, exchanged), exchanged)
    p, usual = fitted_p_value(test, budget._replace(max_permutations=settings.permutations))
    effect = (test.observed - usual) / scale if scale > 0 else 0.0
    return _ColumnResult(two_samples.TestResult(statistic, p), effect, exchanged)


def histogram(before: Float64Array, now: Float64Array, bins: int = HISTOGRAM_BINS) -> Histogram:
    """Return counts in bins of equal width; what is far out (0.1 % at each end) is in the outer ones."""
    low, high = np.quantile(np.concatenate([before, now]), [0.001, 0.999])
    edges = np.unique(np.linspace(low, high, bins + 1))
    if len(edges) == 1:
        edges = np.array([low - 0.5, low + 0.5])
    counts = (
        np.bincount(np.searchsorted(edges[1:-1], side, "right"), minlength=len(edges) - 1).tolist()
        for side in (before, now)
    )
    return Histogram(edges.tolist(), *counts)
