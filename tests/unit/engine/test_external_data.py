"""Files that an ONNX file names: each is seen wherever a tensor may stand, and lies in the model's folder."""

import onnx
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, SparseTensorProto, TensorProto

from quadriga.engine.models.onnx_file import (
    ExternalData,
    LoadError,
    ProtobufError,
    check_external_data,
    encode_bytes,
    read_external_data,
    read_onnx,
)
from quadriga.engine.models.runners.session import Session
from tests.onnx_models import doubling

INSIDE, OUTSIDE = "weights.bin", "../weights.bin"
SECRET = 16
"""Bytes of the file outside of the folder."""


def weights(location=OUTSIDE, **more):
    """A tensor of 4 numbers in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=1, **more)
    for key, text in (("location", location), ("offset", "8"), ("length", "16")):
        tensor.external_data.add(key=key, value=text)
    return tensor


def inner_graph():
    return GraphProto(name="inner", initializer=[weights()])


def node_with(**attribute):
    kind = attribute.pop("type", AttributeProto.TENSOR)
    model = ModelProto()
    node = model.graph.node.add(op_type="Constant", output=["c"])
    node.attribute.append(AttributeProto(name="value", type=kind, **attribute))
    return model


def with_function(**attribute):
    model = ModelProto()
    function = model.functions.add(name="f", domain="d")
    if attribute:
        function.attribute_proto.append(AttributeProto(name="a", **attribute))
    else:
        function.node.extend(node_with(t=weights()).graph.node)
    return model


def with_training(part):
    model = ModelProto()
    getattr(model.training_info.add(), part).initializer.append(weights())
    return model


def with_sparse(part):
    model = ModelProto()
    model.graph.sparse_initializer.append(SparseTensorProto(**{part: weights()}))
    return model


def nested(depth):
    """Bytes of a model with branches within branches; its messages would refuse many."""
    graph = inner_graph().SerializeToString()
    for _ in range(depth):
        graph = encode_bytes(1, encode_bytes(5, encode_bytes(6, graph)))
    return encode_bytes(7, graph)


def with_later_field():
    """A location that is there twice: programs that take the first see one inside of the folder."""
    tensor = weights(INSIDE)
    tensor.external_data.add(key="location", value=OUTSIDE)
    return ModelProto(graph=GraphProto(initializer=[tensor]))


def with_earlier_field():
    tensor = weights(OUTSIDE)
    tensor.external_data.add(key="location", value=INSIDE)
    return ModelProto(graph=GraphProto(initializer=[tensor]))


def with_second_value():
    """An entry whose value is there twice, which its messages cannot write."""
    entry = (
        encode_bytes(1, b"location")
        + encode_bytes(2, INSIDE.encode())
        + encode_bytes(2, OUTSIDE.encode())
    )
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=1)
    return encode_bytes(7, encode_bytes(5, tensor.SerializeToString() + encode_bytes(13, entry)))


def with_split_tensor():
    """A tensor in two parts, which readers join: one says that its data is elsewhere, one where."""
    where = weights()
    where.ClearField("data_location")
    parts = [TensorProto(data_location=1).SerializeToString(), where.SerializeToString()]
    attribute = encode_bytes(1, b"value") + b"".join(encode_bytes(5, part) for part in parts)
    return encode_bytes(7, encode_bytes(1, encode_bytes(5, attribute)))


SPARSE = SparseTensorProto(values=weights())
PLACES = {
    "initializer": ModelProto(graph=GraphProto(initializer=[weights()])),
    "sparse values": with_sparse("values"),
    "sparse indices": with_sparse("indices"),
    "constant": node_with(t=weights()),
    "constants": node_with(tensors=[weights()]),
    "sparse constant": node_with(sparse_tensor=SPARSE),
    "sparse constants": node_with(sparse_tensors=[SPARSE]),
    "long constants": node_with(tensors=[TensorProto(raw_data=bytes(1 << 17)), weights()]),
    "constant of another type": node_with(t=weights(), type=AttributeProto.INT),
    "branch": nested(1),
    "branch of a branch": nested(2),
    "branches": node_with(graphs=[inner_graph()], type=AttributeProto.GRAPHS),
    "function": with_function(),
    "default of a function": with_function(t=weights(), type=AttributeProto.TENSOR),
    "training": with_training("algorithm"),
    "start of training": with_training("initialization"),
    "later field": with_later_field(),
    "earlier field": with_earlier_field(),
    "second value": with_second_value(),
    "split tensor": with_split_tensor(),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "weights.bin").write_bytes(bytes(8 + SECRET))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.bin").write_bytes(bytes(8 + SECRET))
    return tmp_path / "model"


@pytest.mark.parametrize("part", PLACES.values(), ids=PLACES)
def test_no_tensor_names_a_file_outside_of_the_folder(folder, part):
    content = part if isinstance(part, bytes) else part.SerializeToString()
    path = doubling(folder / "model.onnx")
    path.write_bytes(path.read_bytes() + content)  # messages are merged by joining bytes
    with pytest.raises(LoadError, match="inside the model's folder"):
        Session(path)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("../weights.bin", "inside the model's folder"),
        ("/etc/hostname", "inside the model's folder"),
        ("below/../../weights.bin", "inside the model's folder"),
        ("link.bin", "inside the model's folder"),
        ("links/weights.bin", "inside the model's folder"),
        ("circle", "name of a file|no such file"),
        ("none.bin", "no such file"),
        ("", "no such file"),
        (".", "no such file"),
        ("*/_ORT_MEM_ADDR_/*", "no such file"),
        ("weights\0.bin", "name of a file"),
        ("a" * 5000, "name of a file|no such file"),
    ],
)
def test_locations_elsewhere_are_refused(folder, location, message):
    (folder / "link.bin").symlink_to(folder.parent / "weights.bin")
    (folder / "links").symlink_to(folder.parent)
    (folder / "circle").symlink_to(folder / "circle")
    external = (ExternalData(location, 8, 16),)
    with pytest.raises(LoadError, match=message):
        check_external_data(folder / "model.onnx", external)


@pytest.mark.parametrize(
    ("offset", "length", "message"),
    [(8, 17, "to hold 25 bytes, got 24"), (-8, 16, "byte 0"), (8, -1, "byte 0"), (8, 16, "")],
)
def test_parts_of_files_are_checked(folder, offset, length, message):
    external = (ExternalData(INSIDE, offset, length),)
    if not message:
        check_external_data(folder / "model.onnx", external)
        return
    with pytest.raises(LoadError, match=message):
        check_external_data(folder / "model.onnx", external)


def test_weights_in_the_folder_are_read(folder):
    path = doubling(folder / "model.onnx")
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer.append(weights(INSIDE))
    path.write_bytes(model.SerializeToString())
    assert read_onnx(path)[0].external_data == (ExternalData(INSIDE, 8, 16),)
    assert Session(path).outputs


def test_depth_is_bounded():
    assert len(list(read_external_data(memoryview(nested(30))))) == 1
    with pytest.raises(ProtobufError, match="nested more than 100 deep"):
        list(read_external_data(memoryview(nested(40))))


def test_keys_that_other_readers_cut_are_refused():
    tensor = encode_bytes(5, weights().SerializeToString())
    key = bytes([7 << 3 | 2 | 0x80, 0x80, 0x80, 0x80, 0x10])  # bit 32, which C++ drops, and field 7
    graph = key + bytes([len(tensor)]) + tensor
    with pytest.raises(ProtobufError, match="a field numbered"):
        list(read_external_data(memoryview(graph)))
