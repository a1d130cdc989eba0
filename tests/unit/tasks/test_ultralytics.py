import numpy as np
import pytest

from quadriga.tasks import OutputError
from quadriga.tasks.decoders import raw_head

_SIZE = (64, 64)


def naive(head, threshold):
    """Anchor by anchor: box corners, best score, first class of that score."""
    candidates = []
    for x, y, w, h, *scores in head.T.tolist():
        if max(scores) > threshold:
            box = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
            candidates.append((box, max(scores), scores.index(max(scores))))
    return candidates


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize(("classes", "anchors"), [(1, 1), (3, 84), (80, 525), (2, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_head_is_read_as_a_naive_loop_reads_it(classes, anchors, threshold, dtype):
    random = np.random.default_rng(classes)
    head = random.uniform(0, 1, (4 + classes, anchors)).astype(dtype)
    head[4:] = np.round(head[4:], 1)  # many ties
    head[:4] *= 64
    candidates = raw_head({"output0": head}, threshold, _SIZE)
    expected = naive(head, float(np.float32(threshold)))
    assert candidates.boxes.shape == (len(expected), 4)
    assert (candidates.boxes.dtype, candidates.scores.dtype) == (np.float32, np.float32)
    assert candidates.class_ids.tolist() == [class_id for _, _, class_id in expected]
    np.testing.assert_array_equal(candidates.scores, [score for _, score, _ in expected])
    boxes = np.array([box for box, _, _ in expected]).reshape(-1, 4)
    np.testing.assert_allclose(candidates.boxes, boxes, rtol=1e-5, atol=1e-5)


def test_a_score_of_exactly_the_threshold_is_left_out():
    head = np.array([[5, 5], [5, 5], [2, 2], [2, 2], [0.5, 0.75]], np.float32)
    assert raw_head({"output0": head}, 0.5, _SIZE).scores.tolist() == [0.75]


@pytest.mark.parametrize("shape", [(0,), (84,), (4, 84), (1, 7, 84)])
def test_another_shape_is_an_output_error(shape):
    with pytest.raises(OutputError, match="expected output 0 to have the shape"):
        raw_head({"output0": np.zeros(shape, np.float32)}, 0.5, _SIZE)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("row", [0, 3, 4, 5])
def test_candidates_that_are_not_finite_are_an_output_error(row, value):
    head = np.full((6, 3), 0.75, np.float32)
    head[row, 1] = value
    with pytest.raises(OutputError, match="finite"):
        raw_head({"output0": head}, 0.5, _SIZE)


def test_what_is_not_finite_below_the_threshold_harms_nobody():
    head = np.full((6, 2), 0.75, np.float32)
    head[0, 0], head[4:, 0] = np.inf, 0.1
    assert raw_head({"output0": head}, 0.5, _SIZE).scores.tolist() == [0.75]
