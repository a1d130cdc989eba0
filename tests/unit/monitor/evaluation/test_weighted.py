"""The steps that an average precision is summed from."""

import numpy as np

from quadriga.monitor.evaluation.objects.average_precision import RECALLS
from quadriga.monitor.evaluation.objects.weighted import _steps


def test_each_recall_is_reached_where_pycocotools_finds_it():
    for to_find in (1, 3, 7, 50, 100, 300, 1000, 99_999):
        recalls = np.arange(1, to_find + 1) / to_find
        reached = np.cumsum(_steps(recalls[:, None], np.array([0])))
        expected = np.searchsorted(RECALLS, recalls, "right")
        np.testing.assert_array_equal(reached, expected)
