"""The header of a file, without its weights: what is there, and what is not an ONNX model."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from quadriga.engine.onnx_file import OnnxFileError, check_external_data, read_onnx
from tests.onnx_models import doubling, save, value


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


def external(folder, location="weights.bin"):
    path = doubling(folder / "model.onnx")
    model = onnx.load(path)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=1)
    for key, text in (("location", location), ("offset", "8"), ("length", "16")):
        tensor.external_data.add(key=key, value=text)
    model.graph.initializer.append(tensor)
    path.write_bytes(model.SerializeToString())
    return path


def test_external_weights_are_found_and_checked(tmp_path):
    path = external(tmp_path)
    header, _ = read_onnx(path)
    (external_data,) = header.external_data
    assert (external_data.location, external_data.offset, external_data.length) == (
        "weights.bin",
        8,
        16,
    )
    with pytest.raises(OnnxFileError, match="no such file"):
        check_external_data(path, header)
    (tmp_path / "weights.bin").write_bytes(bytes(23))
    with pytest.raises(OnnxFileError, match="to hold 24 bytes, got 23"):
        check_external_data(path, header)
    (tmp_path / "weights.bin").write_bytes(bytes(24))
    check_external_data(path, header)


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname"])
def test_external_weights_stay_inside_the_folder(tmp_path, location):
    (tmp_path / "weights.bin").write_bytes(bytes(24))
    path = external(tmp_path / "model", location)
    with pytest.raises(OnnxFileError, match="inside the model's folder"):
        check_external_data(path, read_onnx(path)[0])


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
    with pytest.raises(OnnxFileError, match="expected"):
        read_onnx(path)


def test_every_cut_of_a_file_is_refused_or_read_but_never_a_crash(tmp_path):
    content = doubling(tmp_path / "whole.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        try:
            read_onnx(path)
        except OnnxFileError:
            continue


def test_a_tensor_that_two_nodes_give_is_refused(tmp_path):
    model = onnx.load(doubling(tmp_path / "model.onnx"))
    model.graph.node.append(model.graph.node[0])
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(OnnxFileError, match="a tensor that two nodes give"):
        read_onnx(tmp_path / "model.onnx")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(OnnxFileError, match=r"none\.onnx"):
        read_onnx(tmp_path / "none.onnx")
