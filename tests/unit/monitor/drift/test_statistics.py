"""Statistics of drift, against scipy and against their definitions."""

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist, jensenshannon

from quadriga.monitor.drift.significance import kernels, two_samples
from quadriga.monitor.drift.significance.decision import benjamini_hochberg

RNG = np.random.default_rng(7)
PAIRS = {
    "plain": (RNG.normal(size=300), RNG.normal(0.2, 1, 120)),
    "skewed": (RNG.lognormal(size=80), RNG.lognormal(size=81)),
    "tied": (RNG.integers(0, 6, 200).astype(float), RNG.integers(0, 7, 50).astype(float)),
    "one row": (RNG.normal(size=40), np.array([0.3])),
    "constant": (np.full(30, 2.0), np.full(20, 2.0)),
    "apart": (np.zeros(30), np.ones(20)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_distances_of_numbers_match_scipy(name):
    baseline, current = PAIRS[name]
    theirs = stats.ks_2samp(baseline, current)
    ours = two_samples.ks(baseline, current)
    assert ours.statistic == pytest.approx(theirs.statistic, abs=1e-9)
    assert ours.p == pytest.approx(theirs.pvalue, abs=1e-9)
    apart = stats.wasserstein_distance(baseline, current)
    assert two_samples.wasserstein(baseline, current) == pytest.approx(apart, abs=1e-9)


@pytest.mark.parametrize("counts", [[[10, 20, 30], [12, 18, 40]], [[5, 1], [0, 9]], [[7], [9]]])
def test_chi_square_matches_scipy(counts):
    table = np.array(counts, float)
    theirs = stats.chi2_contingency(table, correction=False)
    ours = two_samples.chi_square(table)
    assert ours.statistic == pytest.approx(theirs.statistic, abs=1e-9)
    assert ours.p == pytest.approx(theirs.pvalue, abs=1e-9)


def test_jensen_shannon_matches_scipy_and_psi_its_definition():
    table = np.array([[10, 0, 30, 5], [12, 18, 40, 0]], float)
    assert two_samples.jensen_shannon(table).value == pytest.approx(jensenshannon(*table), abs=1e-9)
    full = np.array([[10, 20, 30], [12, 18, 40]], float)
    p, q = full / full.sum(axis=1, keepdims=True)
    assert two_samples.psi(full).value == pytest.approx(
        float(((q - p) * np.log(q / p)).sum()), abs=1e-9
    )
    assert two_samples.total_variation(full) == pytest.approx(float(abs(p - q).sum() / 2), abs=1e-9)


def test_psi_is_as_large_as_expected_where_nothing_changed():
    rng = np.random.default_rng(0)
    tables = [rng.multinomial([400, 200], np.full(10, 0.1)).astype(float) for _ in range(400)]
    divergences = [two_samples.psi(table) for table in tables]
    assert np.mean([divergence.value for divergence in divergences]) == pytest.approx(
        divergences[0].expected, rel=0.1
    )


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    "table", [[[900, 60, 30, 9, 1], [90, 6, 3, 1, 0]], [[1, 1], [1, 0]], [[500, 500], [50, 50]]]
)
def test_pooled_cells_keep_the_counts(table, ordered):
    counts = np.array(table, float)
    cells = two_samples.pool_cells(counts, ordered=ordered)
    together = np.zeros((2, int(cells.max()) + 1))
    np.add.at(together.T, cells, counts.T)
    assert together.sum() == counts.sum()
    expected = together.sum(axis=0) * together.sum(axis=1, keepdims=True) / together.sum()
    few = (expected < two_samples.MIN_EXPECTED).any(axis=0)
    assert few.sum() <= 1
    if ordered:
        assert (np.diff(cells) >= 0).all()


def test_only_rare_labels_are_pooled():
    table = np.array([[500, 3, 490, 60, 35, 0], [50, 0, 40, 10, 5, 1]], float)
    assert two_samples.pool_cells(table, ordered=False).tolist() == [3, 0, 2, 1, 0, 0]


def test_the_scale_of_an_effect_is_never_zero():
    assert two_samples.spread(np.arange(101.0), np.zeros(1)) == 50.0
    assert two_samples.spread(np.zeros(10), np.ones(10)) == 0.5
    assert two_samples.spread(np.zeros(10), np.zeros(10)) == 1.0


def _sides(n, m, dimensions=5):
    rng = np.random.default_rng(n)
    rows = rng.normal(size=(n + m, dimensions)).astype(np.float32)
    return rows, np.arange(n + m) >= n


def test_the_energy_distance_matches_its_definition():
    rows, current = _sides(40, 25)
    x, y = rows[~current].astype(float), rows[current].astype(float)
    expected = 2 * cdist(x, y).mean() - cdist(x, x).mean() - cdist(y, y).mean()
    kernel = kernels.centre_kernel(
        kernels.kernel_matrix(kernels.pairwise_distances(rows), "energy")
    )
    assert kernels.squared_distance(kernel, current) == pytest.approx(expected, abs=1e-9)


def test_the_energy_distance_of_numbers_matches_scipy():
    rows, current = _sides(40, 25, 1)
    expected = stats.energy_distance(rows[~current, 0], rows[current, 0]) ** 2
    kernel = kernels.centre_kernel(
        kernels.kernel_matrix(kernels.pairwise_distances(rows), "energy")
    )
    assert kernels.squared_distance(kernel, current) == pytest.approx(expected, abs=1e-9)


def test_mmd_matches_its_definition():
    rows, current = _sides(30, 20)
    kernel = kernels.kernel_matrix(kernels.pairwise_distances(rows), "mmd")
    x, y = ~current, current
    expected = (
        kernel[np.ix_(x, x)].mean() + kernel[np.ix_(y, y)].mean() - 2 * kernel[np.ix_(x, y)].mean()
    )
    centred = kernels.centre_kernel(kernel)
    assert kernels.squared_distance(centred, current) == pytest.approx(expected, abs=1e-9)


def test_equal_rows_have_distance_zero():
    rows = np.repeat(np.random.default_rng(0).normal(50, 1, (3, 64)).astype(np.float32), 2, axis=0)
    assert kernels.pairwise_distances(rows)[::2, 1::2].diagonal().tolist() == [0.0, 0.0, 0.0]


def test_adjusted_p_values_match_scipy():
    p = [0.01, 0.5, 0.02, 0.02, 1.0, 0.0]
    expected = stats.false_discovery_control(p)
    assert benjamini_hochberg(p) == pytest.approx(list(expected), abs=1e-12)
    assert benjamini_hochberg([]) == []
