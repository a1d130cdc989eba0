"""Whether the rows of a graph's input are answered alike alone and beside others, tried with examples."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

TOLERANCE = 1e-5
"""Largest difference between a number of a row that ran alone and beside others, as a share of it if it is above 1."""
HALF_TOLERANCE = 2e-3
"""The same of outputs of 16 bits, which have three digits."""

Feeds = Mapping[str, npt.NDArray[Any]]
"""Arrays by input."""


class DependentRowsError(ValueError):
    """A graph whose rows cannot run together."""


def check_rows(names: Sequence[str], outputs: Sequence[Any], rows: int) -> None:
    """Check that each output has the rows of the input as its first axis.

    Raises:
        DependentRowsError: One has not.
    """
    for name, output in zip(names, outputs, strict=True):
        shape = np.shape(output)
        if shape[:1] != (rows,):
            raise DependentRowsError(
                f"expected output {name!r} to have the {rows} rows of the input as its first axis, got the shape "
                f"{list(shape)}"
            )


def check_independent(
    run: Callable[[dict[str, Any]], Mapping[str, Any]], examples: Sequence[Feeds], size: int
) -> None:
    """Check that rows are answered alike alone and beside others.

    Args:
        run: Runs the graph, and returns its outputs by name.
        examples: Inputs of one row each, which differ.
        size: Number of rows that run together.

    Raises:
        DependentRowsError: Outputs have no rows, or rows change each other.
    """
    alone = [run(dict(example)) for example in examples]
    for outputs in alone:
        check_rows([*outputs], [*outputs.values()], 1)
    positions = [row % len(examples) for row in range(size)]
    beside = run(
        {
            name: np.concatenate([examples[position][name] for position in positions])
            for name in examples[0]
        }
    )
    check_rows([*beside], [*beside.values()], size)
    for name, rows in beside.items():
        tolerance = HALF_TOLERANCE if rows.dtype == np.float16 else TOLERANCE
        for position, row in zip(positions, rows, strict=True):
            difference = largest_difference(np.asarray(alone[position][name][0]), np.asarray(row))
            if difference > tolerance:
                raise DependentRowsError(
                    f"expected output {name!r} of a row to be the same beside {size - 1} others as alone, within "
                    f"{tolerance:g}, got a difference of {difference:.3g}: the graph mixes rows"
                )


def largest_difference(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    """Return the largest difference, as a share of numbers above 1; infinite between shapes, whole numbers and texts."""
    if object in (first.dtype, second.dtype):  # maps from classes to scores, or texts
        first, second = _numbers(first), _numbers(second)
    if first.shape != second.shape:
        return np.inf
    if first.dtype.kind != "f":
        return 0.0 if np.array_equal(first, second) else np.inf
    first, second = first.astype(np.float64), second.astype(np.float64)
    is_finite = np.isfinite(first)
    if not np.array_equal(first[~is_finite], second[~is_finite], equal_nan=True):
        return np.inf
    scale = np.maximum(np.abs(first[is_finite]), 1.0)
    return float(np.max(np.abs(first - second)[is_finite] / scale, initial=0.0))


def _numbers(row: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the scores of a row's map, in the order of the classes; a text as it is."""
    value = row[()]
    if isinstance(value, dict):
        return np.array([value[key] for key in sorted(value)], np.float32)
    return row.astype(str)
