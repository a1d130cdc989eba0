import tempfile

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from quadriga.extras.tuning import quantizer
from quadriga.extras.tuning.quantizer import (
    QuantizationError,
    has_vnni,
    quantize_graph,
)
from tests.onnx_models import doubling, save, value


def network(path, *, opset=17, metadata=None):
    """Two convolutions with a sigmoid between them, and one after."""
    draws = np.random.default_rng(3)
    weights = {
        "w1": draws.normal(size=(16, 3, 3, 3)).astype(np.float32),
        "w2": draws.normal(size=(4, 16, 3, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="last"),
        helper.make_node("Sigmoid", ["c"], ["y"], name="scores"),
    ]
    inputs, outputs = [value("x", ["n", 3, 16, 16])], [value("y", ["n", 4, 12, 12])]
    return save(path, nodes, inputs, outputs, weights, opset=opset, metadata=metadata)


def feeds(count=8):
    draws = np.random.default_rng(5)
    return [{"x": draws.random((1, 3, 16, 16), np.float32)} for _ in range(count)]


def run(path, array):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, array)[0]


@pytest.fixture
def target(tmp_path):
    (tmp_path / "new").mkdir()
    return tmp_path / "new" / "model.onnx"


@pytest.mark.parametrize(("opset", "per_channel"), [(12, False), (17, True)])
def test_a_graph_in_whole_numbers_answers_alike(tmp_path, target, opset, per_channel):
    source = network(tmp_path / "model.onnx", opset=opset, metadata={"names": "{0: 'cat'}"})
    read = []
    graph = quantize_graph(source, target, feeds(), on_read=read.append)
    assert graph.layers == 2
    assert graph.per_channel is per_channel
    assert graph.excluded == ("scores",)
    assert read == [*range(1, 9)]
    assert [file.name for file in target.parent.iterdir()] == ["model.onnx"]
    model = onnx.load(target)
    assert {entry.key: entry.value for entry in model.metadata_props}["names"] == "{0: 'cat'}"
    (array,) = feeds(1)
    np.testing.assert_allclose(run(target, array), run(source, array), atol=0.1)


@pytest.mark.parametrize("max_file_bytes", [1 << 30, 1], ids=["one file", "weights beside it"])
@pytest.mark.parametrize("opset", [9, 17])
def test_nothing_is_left_but_the_graph(tmp_path, target, monkeypatch, *, opset, max_file_bytes):
    monkeypatch.setattr(quantizer, "_MAX_FILE_BYTES", max_file_bytes)
    source = network(tmp_path / "model.onnx", opset=opset)
    for name in ("current", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "current")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert quantize_graph(source, target, feeds()).layers == 2
    assert quantize_graph(source, target, feeds(), exclude=["last"]).layers == 1
    with pytest.raises(QuantizationError):
        quantize_graph(source, target.with_name("failed.onnx"), [])
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    names -= {"new/failed.onnx", "new/model.onnx.data"}  # the caller's, and weights that stay
    assert names == {"current", "temporary", "new", "model.onnx", "new/model.onnx"}
    (array,) = feeds(1)
    np.testing.assert_allclose(run(target, array), run(source, array), atol=0.1)


def test_excluded_nodes_stay_in_floating_point(tmp_path, target):
    source = network(tmp_path / "model.onnx")
    graph = quantize_graph(source, target, feeds(), exclude=["fir*"])
    assert graph.layers == 1
    assert set(graph.excluded) == {"scores", "first"}


def test_the_coordinates_of_a_distribution_stay_in_floating_point(tmp_path, target):
    """The DFL of YOLO computes distances by a convolution of 16 weights, after the last layer."""
    weights = {
        "w": np.random.default_rng(7).normal(size=(16, 3, 3, 3)).astype(np.float32),
        "d": np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="head"),
        helper.make_node("Softmax", ["a"], ["b"], name="softmax", axis=1),
        helper.make_node("Conv", ["b", "d"], ["y"], name="distances"),
    ]
    inputs, outputs = [value("x", ["n", 3, 16, 16])], [value("y", ["n", 1, 14, 14])]
    source = save(tmp_path / "model.onnx", nodes, inputs, outputs, weights)
    graph = quantize_graph(source, target, feeds())
    assert set(graph.excluded) == {"softmax", "distances"}


def quantized(path, target):
    quantize_graph(network(path.with_name("float.onnx")), target, feeds())
    target.rename(path)
    return path


REFUSED = {
    "nothing to quantize": (lambda path, _: doubling(path), "nothing to quantize"),
    "quantized before": (quantized, "quantized already"),
    "no model": (lambda path, _: path.write_bytes(b"no") and path, "cannot quantize model.onnx"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_quantized_is_refused(tmp_path, target, make, message):
    source = make(tmp_path / "model.onnx", target)
    with pytest.raises(QuantizationError, match=message):
        quantize_graph(source, target, [{"x": np.zeros((1, 3), np.float32)}])
    assert not list(target.parent.glob("prepared*"))


def test_images_that_cannot_be_read_are_no_calibration(tmp_path, target):
    with pytest.raises(QuantizationError):
        quantize_graph(network(tmp_path / "model.onnx"), target, [])


def test_without_the_package_the_line_to_type_is_named(tmp_path, target, monkeypatch):
    monkeypatch.setattr(quantizer, "find_spec", lambda _: None)
    with pytest.raises(QuantizationError, match=r"pip install 'quadriga\[quantize\]'"):
        quantize_graph(tmp_path / "model.onnx", target, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("flags\t: fpu avx2 avx512f\n", False),
        ("model name\t: a\nflags\t: fpu avx512_vnni\n", True),
        ("flags\t: fpu avx_vnni\n", True),
    ],
    ids=["no flags", "AVX2", "AVX-512 VNNI", "AVX VNNI"],
)
def test_processors_with_vnni_are_known(tmp_path, text, expected):
    (tmp_path / "cpuinfo").write_text(text)
    assert has_vnni(tmp_path / "cpuinfo") is expected
    assert not has_vnni(tmp_path / "none")
