"""A state survives being bytes, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quadriga.monitor.array_packing import pack, unpack
from quadriga.monitor.evaluation.evaluators import build_state
from quadriga.monitor.evaluation.state import (
    EvaluationState,
    merge_states,
)
from tests.unit.monitor.evaluation.label_evaluator import LabelEvaluator, labelled_image

TEXT = np.dtypes.StringDType()
SHAPES = st.sampled_from([(0,), (3,), (0, 4), (2, 5), (2, 2, 2)])
COLUMNS = st.one_of(
    arrays(np.float64, SHAPES),
    arrays(np.int64, SHAPES),
    arrays(np.bool_, SHAPES),
    arrays(np.uint8, SHAPES),
    arrays(np.dtype(">f4"), SHAPES),
    st.lists(st.text(max_size=40), max_size=5).map(lambda texts: np.array(texts, TEXT)),
)


def state_with(tables) -> EvaluationState:
    sizes = np.array([[1, 2]], np.int64)
    return EvaluationState(
        ids=["1"],
        images=["x"],
        sizes=sizes,
        slices={"hour": [None]},
        labels=["é\0"],
        tables=tables,
        excluded={"no_truth": 2},
    )


TABLES = st.dictionaries(st.text(max_size=5), COLUMNS, max_size=3)


@given(st.dictionaries(st.text(max_size=5), TABLES, max_size=3))
def test_columns_of_every_kind_come_back(tables):
    state = state_with(tables)
    decoded = unpack(pack(state), EvaluationState)
    assert decoded[:2] == state[:2]
    assert decoded[3:5] == state[3:5]
    assert decoded.excluded == state.excluded
    for name, table in tables.items():
        for key, column in table.items():
            again = decoded.tables[name][key]
            assert (again.dtype, again.shape) == (column.dtype, column.shape)
            if column.dtype == TEXT:
                assert again.tolist() == column.tolist()
            else:
                assert again.tobytes() == column.tobytes()
    assert pack(decoded) == pack(state)


def test_what_came_back_merges():
    images = [labelled_image(1), labelled_image(2, "ab", "b"), labelled_image(3, "", None)]
    states = [build_state(LabelEvaluator(), [image], ["hour"]) for image in images]
    merged_bytes = pack(merge_states(states))
    assert (
        pack(merge_states(unpack(pack(state), EvaluationState) for state in states)) == merged_bytes
    )


def test_a_row_of_an_array_in_another_order_comes_back():
    turned = np.arange(6.0).reshape(2, 3).T
    decoded = unpack(pack(state_with({"a": {"b": turned}})), EvaluationState)
    np.testing.assert_array_equal(decoded.tables["a"]["b"], turned)


@pytest.mark.parametrize("data", [b"", b"\x93\x01\x02\x03", b"hello"])
def test_other_bytes_are_refused(data: bytes):
    with pytest.raises(ValueError, match=r"Expected `array`|truncated"):
        unpack(data, EvaluationState)


def test_an_array_whose_bytes_do_not_fit_is_refused():
    data = pack(state_with({"a": {"b": np.zeros(3, np.int64)}}))
    with pytest.raises(ValueError, match="data type '<i7' not understood"):
        unpack(data.replace(b"<i8", b"<i7"), EvaluationState)
