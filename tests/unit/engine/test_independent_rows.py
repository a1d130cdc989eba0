"""Graphs whose rows may run together are told from those that mix them."""

import numpy as np
import pytest

from quadriga.engine.models.runners.batched_runs import (
    DependentRowsError,
    check_independent,
    check_rows,
)

ROW = np.arange(6, dtype=np.float32).reshape(1, 6)


INDEPENDENT = {
    "itself": lambda x: x,
    "almost": lambda x: x + np.float32(3e-7) * len(x),
    "maps": lambda x: np.array([{0: row[0], 1: row[1]} for row in x], object),
    "texts": lambda x: np.array([[str(row[0])] for row in x], object),
    "whole numbers": lambda x: x.argmax(1),
    "not finite": lambda x: x / 0.0,
    "half": lambda x: (x + 1e-4 * len(x)).astype(np.float16),
}
DEPENDENT = {
    "mean": (lambda x: x - x.mean(0), "the graph mixes rows"),
    "only the last row": (lambda x: x + (np.arange(len(x)) == 7)[:, None], "mixes rows"),
    "order": (lambda x: np.sort(x, 0), "mixes rows"),
    "one number": (lambda x: x.sum(), r"as its first axis, got the shape \[\]"),
    "fewer rows": (lambda x: x[:5], "to have the 8 rows of the input as its first axis"),
    "other maps": (lambda x: np.array([{0: row[0] + len(x)} for row in x], object), "mixes rows"),
    "other whole numbers": (lambda x: np.arange(len(x)), "mixes rows"),
    "not finite beside others": (lambda x: x / (len(x) < 8), "mixes rows"),
}


def examples():
    return [{"x": ROW + number} for number in range(3)]


@pytest.mark.parametrize("answer", INDEPENDENT.values(), ids=INDEPENDENT)
@pytest.mark.filterwarnings("ignore:divide by zero|invalid value")
def test_rows_that_do_not_change_each_other_may_run_together(answer):
    check_independent(lambda feeds: {"y": answer(feeds["x"])}, examples(), 8)


@pytest.mark.parametrize(("answer", "message"), DEPENDENT.values(), ids=DEPENDENT)
@pytest.mark.filterwarnings("ignore:divide by zero|invalid value")
def test_rows_that_change_each_other_are_found(answer, message):
    with pytest.raises(DependentRowsError, match=message):
        check_independent(lambda feeds: {"y": answer(feeds["x"])}, examples(), 8)


def test_rows_are_the_first_axis():
    check_rows(["y", "maps"], [np.zeros((2, 3)), [{}, {}]], 2)
    with pytest.raises(DependentRowsError, match="output 'maps'"):
        check_rows(["y", "maps"], [np.zeros((2, 3)), [{}]], 2)
