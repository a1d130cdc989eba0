"""Distances between two sets of embeddings, as quadratic forms of the membership of the rows.

With w = 1/n for a current row and -1/m for one of the baseline, the energy distance is -w'Dw over the
distances D, and MMD² is w'Kw over a kernel K. Both stay as they are when rows and columns of the matrix
are centred; centred, w'Kw = (1/n + 1/m)² z'Kz for z = 1 where a row is current, else 0.

Source: Székely and Rizzo, Energy statistics (2013); Gretton et al., A kernel two-sample test (2012).
"""

from collections.abc import Callable
from typing import Literal

import numpy as np

from quadriga.monitor.drift.significance.exchangeable_units import ExchangeableUnits
from quadriga.monitor.drift.significance.permutation import SideMatrix
from quadriga.tasks.arrays import BoolArray, Float32Array, Float64Array

Kernel = Literal["energy", "mmd"]

_MAX_MEDIAN_ROWS = 500
"""Maximum number of rows used to estimate the median distance."""


def pairwise_distances(rows: Float32Array) -> Float64Array:
    """Return the Euclidean distances (N, N) between embeddings (N, D)."""
    centred = rows.astype(np.float64)
    centred -= centred.mean(axis=0)
    squares = np.einsum("ij,ij->i", centred, centred)
    squared = squares[:, None] + squares - 2 * (centred @ centred.T)
    squared[squared < 1e-12 * (squares[:, None] + squares)] = 0.0
    result: Float64Array = np.sqrt(squared, out=squared)
    return result


def kernel_matrix(distances: Float64Array, kernel: Kernel) -> Float64Array:
    """Return the kernel (N, N) of distances: the negative distances, or a Gaussian whose width is their median."""
    if kernel == "energy":
        return -distances
    sampled = distances[:: len(distances) // _MAX_MEDIAN_ROWS + 1]
    positive = sampled[sampled > 0]
    width = float(np.median(positive)) if len(positive) else 1.0
    gaussian: Float64Array = np.exp(-((distances / width) ** 2) / 2)
    return gaussian


def centre_kernel(kernel: Float64Array) -> Float64Array:
    """Centre a symmetric kernel: its rows and columns then sum to 0."""
    means = kernel.mean(axis=0)
    centred: Float64Array = kernel - means - means[:, None] + means.mean()
    return centred


def squared_distance(kernel: Float64Array, current: BoolArray) -> float:
    """Return the squared distance between current and baseline rows under a centred kernel: energy distance or MMD²."""
    n = int(current.sum())
    return float(kernel[np.ix_(current, current)].sum() * (1 / n + 1 / (len(current) - n)) ** 2)


def unbiased_effect(baseline: Float32Array, current: Float32Array, name: Kernel) -> float:
    """Return the squared distance of embeddings (N, D), 0 on average if nothing changed, as a share of the largest.

    It is 0, too, where a side has one row: how far its rows lie apart is not known.
    """
    if min(len(baseline), len(current)) < 2:
        return 0.0
    rows = np.concatenate([baseline, current]).astype(np.float32)
    kernel = kernel_matrix(pairwise_distances(rows), name)
    diagonal, n = float(kernel.diagonal().mean()), len(baseline)
    within = [
        (side.mean() - diagonal / len(side)) / (1 - 1 / len(side))
        for side in (kernel[:n, :n], kernel[n:, n:])
    ]
    across = float(kernel[:n, n:].mean())
    return float(sum(within) - 2 * across) / max(2 * (diagonal - across), 1e-300)


def permutation_statistic(
    kernel: Float64Array, units: ExchangeableUnits
) -> Callable[[SideMatrix], Float64Array]:
    """Return the statistic of permutations: the squared distance of the sides under a centred kernel (P, P)."""
    sizes = np.bincount(units.unit_of_row)
    if len(sizes) < len(kernel):
        order = np.argsort(units.unit_of_row, kind="stable")
        starts = np.cumsum(sizes) - sizes
        sums = np.add.reduceat(kernel[order], starts, axis=0)
        kernel = np.add.reduceat(sums[:, order], starts, axis=1)
    if units.has_equal_weights:
        kernel = centre_kernel(kernel / sizes / sizes[:, None])
        sizes = np.ones_like(sizes)
    matrix = kernel.astype(np.float32)
    total_size = float(sizes.sum())

    def statistic(sides: SideMatrix) -> Float64Array:
        n = (sides @ sizes).astype(np.float64)
        form = np.einsum("ij,ij->i", sides @ matrix, sides).astype(np.float64)
        return np.asarray(form * (1 / n + 1 / (total_size - n)) ** 2, np.float64)

    return statistic
