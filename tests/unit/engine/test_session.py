"""Sessions: what runs, and what a user reads when a model cannot be loaded."""

import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from quadriga.engine.models.runners.session import LoadError, RunError, Session
from tests.onnx_models import doubling, save, value


def test_a_model_runs_by_names(tmp_path):
    session = Session(doubling(tmp_path / "model.onnx"))
    assert [(t.name, t.datatype, t.shape) for t in session.inputs] == [("x", "FP32", (-1, 3))]
    doubled = session.run({"x": np.ones((2, 3), np.float32)})["y"]
    np.testing.assert_array_equal(doubled, np.full((2, 3), 2, np.float32))


@pytest.mark.parametrize("layers", [1, 2])
def test_products_of_8_bits_do_not_overflow(tmp_path, layers):
    """Two of 255 times 127 are more than 16 bits hold, in which processors without VNNI add them."""
    weights = np.full((64, 64), 127, np.int8)
    scales = {"one": np.float32(1), "less": np.float32(1 / (127 * 64)), "zero": np.uint8(0)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["q0"])]
    for layer in range(layers):  # which share their weights
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{layer}", "one", "zero"], [f"x{layer}"]),
            helper.make_node("DequantizeLinear", ["weights", "less"], [f"w{layer}"]),
            helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"p{layer}"]),
            helper.make_node("QuantizeLinear", [f"p{layer}", "one", "zero"], [f"q{layer + 1}"]),
        ]
    nodes.append(helper.make_node("DequantizeLinear", [f"q{layers}", "one", "zero"], ["y"]))
    arrays = {name: np.asarray(array) for name, array in scales.items()} | {"weights": weights}
    ends = [value("x", [1, 64])], [value("y", [1, 64])]
    session = Session(save(tmp_path / "model.onnx", nodes, *ends, arrays))
    answer = session.run({"x": np.full((1, 64), 255, np.float32)})["y"]
    np.testing.assert_array_equal(answer, np.full((1, 64), 255, np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ir_version": 99}, "IR version"),
        ({"opset": 999}, "operator set"),
    ],
)
def test_a_file_too_new_says_how_to_export_again(tmp_path, options, message):
    path = save(
        tmp_path / "model.onnx",
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [value("x", [1])],
        [value("y", [1])],
        **options,
    )
    with pytest.raises(LoadError) as caught:
        Session(path)
    assert message in str(caught.value)
    assert "export again" in str(caught.value)


def test_an_unknown_operator_is_named(tmp_path):
    node = helper.make_node("NoSuchOperator", ["x"], ["y"])
    path = save(tmp_path / "model.onnx", [node], [value("x", [1])], [value("y", [1])])
    with pytest.raises(LoadError, match="NoSuchOperator"):
        Session(path)


def test_a_graph_without_inputs_is_a_load_error(tmp_path):
    constant = helper.make_node("Constant", [], ["y"], value_float=1.0)
    path = save(tmp_path / "model.onnx", [constant], [], [value("y", [])])
    with pytest.raises(LoadError, match="expected a graph with inputs, got one without"):
        Session(path)


@pytest.mark.parametrize("content", [b"", b"hello", bytes(100)])
def test_no_model_is_a_load_error(tmp_path, content):
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(LoadError, match="ONNX"):
        Session(tmp_path / "model.onnx")


def test_sequences_are_refused_with_the_way_out(tmp_path):
    output = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    path = save(tmp_path / "model.onnx", [node], [value("x", [1])], [output])
    with pytest.raises(LoadError, match="without sequences"):
        Session(path)


def test_a_provider_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(LoadError, match="NoExecutionProvider"):
        Session(doubling(tmp_path / "model.onnx"), ("NoExecutionProvider",))


def test_a_wrong_input_is_a_run_error(tmp_path):
    session = Session(doubling(tmp_path / "model.onnx"))
    with pytest.raises(RunError):
        session.run({"x": np.ones((2, 4), np.float32)})


@pytest.mark.parametrize("device", ["", "cpu"], ids=["arrays", "binding"])
def test_device_outputs_feed_the_next_run(tmp_path, device):
    """A sum that grows by what is given, in its own memory, with its rows chosen between runs."""
    path = save(
        tmp_path / "model.onnx",
        [
            helper.make_node("Add", ["kept", "x"], ["grown"]),
            helper.make_node("Add", ["grown", "grown"], ["doubled"]),
        ],
        [value("x", ["n", 2]), value("kept", ["n", 2])],
        [value("doubled", ["n", 2]), value("grown", ["n", 2])],
    )
    session = Session(path)
    session._device = device, 0
    cache = np.zeros((2, 2), np.float32)
    added = np.array([[1, 2], [3, 4]], np.float32)
    for _ in range(3):
        doubled, outputs = session.run_on_device({"x": added, "kept": cache}, "doubled", ["grown"])
        cache = outputs["grown"]
    np.testing.assert_array_equal(doubled, added * 6)
    rows = session.select_rows(cache, np.array([1, 1, 0]))
    feeds = {"x": np.zeros((3, 2), np.float32), "kept": rows}
    np.testing.assert_array_equal(
        session.run_on_device(feeds, "doubled", [])[0], [[18, 24], [18, 24], [6, 12]]
    )
    with pytest.raises(RunError):
        session.run_on_device({"x": added, "kept": rows}, "doubled", ["grown"])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_of_a_run_beyond_what_is_usual_goes_back_to_the_system(tmp_path, monkeypatch):
    monkeypatch.setattr("quadriga.engine.models.runners.session._KEPT_S", 0.1)
    nodes = [
        helper.make_node("ConstantOfShape", ["n"], ["ones"], value=helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])),
        helper.make_node("Relu", ["ones"], ["relu"]),
        helper.make_node("ReduceMax", ["relu"], ["y"], keepdims=0),
    ]  # fmt: skip
    path = tmp_path / "model.onnx"
    save(path, nodes, [value("n", [1], TensorProto.INT64)], [value("y", [])])
    session = Session(path)
    assert session.run({"n": np.array([7])})["y"] == 1  # as the warm-up: the first memory stays
    before = resident_bytes()
    count = 150 * 2**20  # 600 MiB
    assert session.run({"n": np.array([count])})["y"] == 1
    deadline_s = time.monotonic() + 20
    while resident_bytes() - before > 100 * 2**20 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert resident_bytes() - before < 100 * 2**20
    assert session.run({"n": np.array([7])})["y"] == 1


def test_a_model_that_is_dropped_waits_for_no_timer(tmp_path, monkeypatch):
    monkeypatch.setattr("quadriga.engine.models.runners.session._LARGE_GROWTH_BYTES", -(2**60))
    monkeypatch.setattr("quadriga.engine.models.runners.session._LONG_RUN_S", -1.0)
    session = Session(doubling(tmp_path / "model.onnx"))
    graph = weakref.ref(session._runner)
    session.run({"x": np.zeros((2, 3), np.float32)})
    assert graph()._release is not None
    del session
    assert graph() is None
