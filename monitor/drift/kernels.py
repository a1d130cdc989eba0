"""Distances between two sets of embeddings, as quadratic forms of who belongs to which.

With w = 1/n for a current row and -1/m for one of the baseline, the energy distance is -w'Dw over the
distances D, and MMD² is w'Kw over a kernel K. Both stay as they are when rows and columns of the matrix
are centred; centred, w'Kw = (1/n + 1/m)² z'Kz for z = 1 where a row is current, else 0.

Source: Székely and Rizzo, Energy statistics, 2013; Gretton et al., A kernel two-sample test, 2012.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

Kernel = Literal["energy", "mmd"]

_MEDIAN_ROWS = 500
"""Of no more rows than this is the median distance taken."""


def distances(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the Euclidean distances (N, N) between embeddings (N, D)."""
    centred = rows.astype(np.float64)
    centred -= centred.mean(axis=0)
    squares = np.einsum("ij,ij->i", centred, centred)
    made = squares[:, None] + squares - 2 * (centred @ centred.T)
    made[made < 1e-12 * (squares[:, None] + squares)] = 0.0
    apart: npt.NDArray[np.float64] = np.sqrt(made, out=made)
    return apart


def kernel_of(apart: npt.NDArray[np.float64], kernel: Kernel) -> npt.NDArray[np.float64]:
    """Return the kernel (N, N) of distances: them, negative; or a Gaussian as wide as their median."""
    if kernel == "energy":
        return -apart
    some = apart[:: len(apart) // _MEDIAN_ROWS + 1]
    positive = some[some > 0]
    width = float(np.median(positive)) if len(positive) else 1.0
    gaussian: npt.NDArray[np.float64] = np.exp(-((apart / width) ** 2) / 2)
    return gaussian


def centred(kernel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a symmetric kernel whose rows and columns sum up to 0."""
    means = kernel.mean(axis=0)
    made: npt.NDArray[np.float64] = kernel - means - means[:, None] + means.mean()
    return made


def between(kernel: npt.NDArray[np.float64], current: npt.NDArray[np.bool_]) -> float:
    """Return the squared distance of current rows (N,) from the others: energy distance or MMD²."""
    n = int(current.sum())
    return float(kernel[np.ix_(current, current)].sum() * (1 / n + 1 / (len(current) - n)) ** 2)
