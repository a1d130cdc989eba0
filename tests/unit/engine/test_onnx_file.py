"""The header of a file, without its weights: what is there, and what is not an ONNX model."""

import numpy as np
import onnx
import pytest
from onnx import helper

from quadriga.engine.models.onnx_file import LoadError, OnnxHeader, read_onnx
from tests.onnx_models import doubling, save, value
from tests.row_models import IRISES, ML, linear


def test_header_agrees_with_the_onnx_package(tmp_path):
    path = save(
        tmp_path / "model.onnx",
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", [1])],
        outputs=[value("y", [1])],
        initializers={"w": np.ones(1, np.float32)},
        metadata={"names": "{0: 'ä'}", "stride": "32"},
    )
    header, _ = read_onnx(path)
    assert header.ir_version == 8
    assert header.opsets == {"": 17}
    assert header.producer == "quadriga-tests"
    assert header.metadata == {"names": "{0: 'ä'}", "stride": "32"}
    assert header.external_data == ()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"hello, this is no model",
        b"\x08",
        b"\xff" * 100,
        b"\x3a\xff\xff\xff\xff\x0f",
        bytes(64),
    ],
)
def test_files_other_than_onnx_are_refused(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(LoadError, match="expected"):
        read_onnx(path)


def test_every_cut_of_a_file_is_refused_or_read_but_never_a_crash(tmp_path):
    content = doubling(tmp_path / "whole.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        try:
            read_onnx(path)
        except LoadError:
            continue


def test_a_tensor_that_two_nodes_give_is_refused(tmp_path):
    model = onnx.load(doubling(tmp_path / "model.onnx"))
    model.graph.node.append(model.graph.node[0])
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(LoadError, match="a tensor that two nodes give"):
        read_onnx(tmp_path / "model.onnx")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(LoadError, match=r"none\.onnx"):
        read_onnx(tmp_path / "none.onnx")


def test_classes_are_read_and_long_attributes_are_not(tmp_path):
    path = tmp_path / "model.onnx"
    header, _ = read_onnx(linear(path, classes=(-1, 4, 2**40)))
    assert header.class_labels == (("-1", "4", str(2**40)),)
    header, _ = read_onnx(linear(path, zipmap=False))
    assert header.class_labels == (IRISES,)
    maps = helper.make_node("ZipMap", ["p"], ["maps"], domain=ML, classlabels_strings=["b", "a"])
    long = helper.make_node(
        "Noise", ["x"], ["p"], few=[1, 2], many=[7] * 100_000, classlabels_ints=[0, 1]
    )
    save(path, [long, maps], [value("x", [1])], [value("p", [1])], domains={ML: 1})
    header, graph = read_onnx(path)
    assert header.class_labels == (("b", "a"), ("0", "1"))
    assert graph.nodes[0].numbers == {"few": (1, 2), "classlabels_ints": (0, 1)}


@pytest.mark.parametrize(
    ("operators", "domains", "expected"),
    [
        ({"Conv", "Relu", "Gemm"}, {""}, True),
        ({"TreeEnsembleClassifier"}, {"", "ai.onnx.ml"}, True),
        ({"Conv", "Loop"}, {""}, False),
        ({"If"}, {""}, False),
        ({"Range"}, {"ai.onnx"}, False),
        ({"Attention"}, {"", "com.microsoft"}, False),
        (set(), {""}, False),
    ],
)
def test_the_work_of_a_graph_is_bounded_by_the_shapes_of_its_inputs(operators, domains, expected):
    header = OnnxHeader(
        8,
        dict.fromkeys(domains, 17),
        "",
        {},
        external_data=(),
        producers={},
        operators=frozenset(operators),
    )
    assert header.is_bounded == expected
