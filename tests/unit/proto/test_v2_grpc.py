"""V2 over gRPC: what is sent is what is read, and what does not fit is an error that says why."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quadriga.proto.datatypes import NUMPY_TYPES
from quadriga.proto.errors import InvalidRequest, NotFound, ProtocolError, Unsupported
from quadriga.proto.grpc import service as grpc_service
from quadriga.proto.grpc.messages import (
    POOL,
    SERVICE,
    message_class,
    response_class,
)
from quadriga.proto.grpc.service import CONTENTS, CallServices, parse_infer, render_infer
from quadriga.proto.http.intake import Intake
from quadriga.proto.messages import (
    InferResponse,
    Tensor,
)
from tests.unit.proto.echo_grpc import EchoGrpc, called

PROTO = Path(__file__).parent.parent.parent.parent / "proto"


def asked(datatype="FP32", shape=(1,), raw=None, parameters=None, **contents):
    """Make a request of one input."""
    request = message_class("ModelInferRequest")(model_name="m")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=shape)
    for name, values in contents.items():
        getattr(tensor.contents, name).extend(values)
    for name, (kind, value) in (parameters or {}).items():
        setattr(tensor.parameters[name], kind, value)
    if raw is not None:
        request.raw_input_contents.append(raw)
    return request


def rendered(*outputs: Tensor, raw: bool, client=None):
    """Render outputs, and read them as a client does whose messages are ours, unless others are named."""
    answer = response_class("ModelInferResponse")()
    render_infer(InferResponse("m", "1", "id", outputs), answer, raw=raw)
    return (client or message_class("ModelInferResponse")).FromString(answer.SerializeToString())


def parameters_of(output):
    return {
        name: (kind := value.WhichOneof("parameter_choice"), kind and getattr(value, kind))
        for name, value in output.parameters.items()
    }


def as_request(answer):
    """Send an answer's tensors as a request."""
    request = message_class("ModelInferRequest")(model_name="m", id=answer.id)
    for output in answer.outputs:
        request.inputs.add().MergeFromString(output.SerializeToString())
    request.raw_input_contents.extend(answer.raw_output_contents)
    return request


@pytest.mark.parametrize("datatype", NUMPY_TYPES)
@given(data=st.data())
def test_any_array_comes_back_as_it_was(datatype, data):
    dtype = NUMPY_TYPES[datatype]
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
    array = data.draw(arrays.arrays(dtype, shape))
    for raw in (False, True):
        answer = rendered(Tensor("x", datatype, shape, array), raw=raw)
        assert bool(answer.raw_output_contents) == (raw or datatype == "FP16")
        (tensor,) = parse_infer(as_request(answer)).inputs
        assert (tensor.datatype, tensor.shape, tensor.data.dtype) == (datatype, shape, dtype)
        np.testing.assert_array_equal(tensor.data, array)


@given(elements=st.lists(st.binary()))
def test_any_bytes_come_back_as_they_were(elements):
    for raw in (False, True):
        answer = rendered(Tensor("x", "BYTES", (len(elements),), elements), raw=raw)
        (tensor,) = parse_infer(as_request(answer)).inputs
        assert (tensor.shape, tensor.data) == ((len(elements),), elements)


@pytest.mark.parametrize(
    ("request_", "expected_text"),
    [
        (message_class("ModelInferRequest")(), "at least one input"),
        (asked("FP32", [1], fp32_contents=[1], raw=b"abcd"), "got both (fp32_contents)"),
        (asked("FP32", [1], fp64_contents=[1]), "contents.fp32_contents, got fp64_contents"),
        (asked("FP32", [1], fp32_contents=[1], bool_contents=[True]), "fp32_contents"),
        (asked("FP16", [1], fp32_contents=[1]), "raw_input_contents"),
        (asked("UINT8", [1], uint_contents=[300]), "from 0 to 255, got 300"),
        (asked("INT8", [2], int_contents=[0, -129]), "from -128 to 127, got -129"),
        (asked("UINT16", [1], uint_contents=[2**16]), "got 65536"),
        (asked("INT32", [2], int_contents=[1]), "expected 2 elements"),
        (asked("FP32", [2]), "expected 2 elements"),
        (asked("FP32", [], fp32_contents=[1, 2]), "expected 1 elements for shape []"),
        (asked("FP32", [], raw=b"abcdefgh"), "expected 4 bytes"),
        (asked("FP32", [-1, 2], fp32_contents=[1]), "without negative sizes"),
        (asked("FP32", [0, 2**62, 2**62]), "that memory can hold"),
        (asked("FP32", [0, 2**62, 2**62], raw=b""), "that memory can hold"),
        (asked("FP32", [2**40], raw=b""), "bytes"),
        (asked("FP32", [1], raw=b"abc"), "expected 4 bytes"),
        (asked("BYTES", [1], raw=b"\xff\0\0\0a"), "expected 255 bytes"),
        (asked("BF16", [1], raw=b"ab"), "expected datatype to be one of"),
        (asked("", [1]), "expected datatype to be one of"),
        (asked("BYTES", [1], parameters={"prompts": ("string_param", "What?")}), "JSON text"),
        (asked("BYTES", [1], parameters={"tiling": ("string_param", "[" * 5000)}), "JSON text"),
        (message_class("ModelInferRequest")(id="x" * 1025, inputs=[{}]), "at most 1024"),
        (
            message_class("ModelInferRequest")(id="字" * 683, inputs=[{}]),
            "at most 2048 bytes, got 2049",
        ),
        (
            message_class("ModelInferRequest")(id="\0" * 683, inputs=[{}]),
            "at most 2048 bytes, got 2049",
        ),
    ],
)
def test_contents_that_do_not_fit_the_tensor_are_refused(request_, expected_text):
    with pytest.raises(InvalidRequest) as refused:
        parse_infer(request_)
    assert expected_text in str(refused.value)


@pytest.mark.timeout(100)  # of what takes milliseconds
def test_a_shape_of_a_hundred_thousand_sizes_is_refused_before_they_are_multiplied():
    with pytest.raises(InvalidRequest, match="at most 32 dimensions, got 100000"):
        parse_infer(asked("FP32", [2**62] * 100_000, raw=b""))


def test_raw_contents_are_of_all_inputs_or_of_none():
    request = asked("FP32", [1], raw=b"abcd")
    request.raw_input_contents.append(b"abcd")
    with pytest.raises(InvalidRequest, match="of all 1 inputs or of none, got 2"):
        parse_infer(request)


def test_shared_memory_is_not_offered():
    with pytest.raises(Unsupported, match="shared memory"):
        parse_infer(asked(parameters={"shared_memory_region": ("string_param", "a")}))
    request = asked(raw=bytes(4))
    request.outputs.add(name="y").parameters["shared_memory_region"].string_param = "a"
    with pytest.raises(Unsupported, match=r"outputs\[0\] \('y'\): expected .*shared memory"):
        parse_infer(request)


def test_outputs_are_raw_if_one_has_no_typed_contents():
    half, single = np.ones(2, np.float16), np.ones(3, np.float32)
    answer = rendered(Tensor("a", "FP32", (3,), single), Tensor("b", "FP16", (2,), half), raw=False)
    assert list(answer.raw_output_contents) == [single.tobytes(), half.tobytes()]
    assert not any(output.HasField("contents") for output in answer.outputs)


def test_parameters_are_read_by_their_kind_and_lists_from_json():
    given_ = {
        "a": ("bool_param", True),
        "b": ("int64_param", -(2**63)),
        "c": ("string_param", '["text"]'),
        "d": ("double_param", 0.1),
        "e": ("uint64_param", 2**64 - 1),
        "prompts": ("string_param", '["a", "b"]'),
        "tiling": ("bool_param", False),
    }
    request = asked("BYTES", [-1], parameters=given_, bytes_contents=[b"\xff"])
    request.inputs[0].parameters["none"].SetInParent()
    (tensor,) = parse_infer(request).inputs
    assert tensor.parameters == {
        "a": True,
        "b": -(2**63),
        "c": '["text"]',
        "d": 0.1,
        "e": 2**64 - 1,
        "prompts": ["a", "b"],
        "tiling": False,
        "none": None,
    }
    assert (tensor.shape, tensor.data) == ((1,), [b"\xff"])


def test_parameters_and_predictions_are_written():
    parameters = {
        "a": True,
        "b": -1,
        "c": 2**64 - 1,
        "d": 0.5,
        "e": "text",
        "f": {"g": [1]},
        "h": 2**64,
        "i": None,
    }
    answer = rendered(
        Tensor("x", "BYTES", (1,), [[{"label": "é"}]], parameters=parameters), raw=False
    )
    (output,) = answer.outputs
    assert parameters_of(output) == {
        "a": ("bool_param", True),
        "b": ("int64_param", -1),
        "c": ("uint64_param", 2**64 - 1),
        "d": ("double_param", 0.5),
        "e": ("string_param", "text"),
        "f": ("string_param", '{"g":[1]}'),
        "h": ("string_param", "18446744073709551616"),
    }
    assert list(output.contents.bytes_contents) == ['[{"label":"é"}]'.encode()]


class Aborted(Exception):
    """What a context does with a status."""


class Context:
    async def abort(self, code, details):
        raise Aborted(code, details)

    def set_trailing_metadata(self, _):
        pass

    def invocation_metadata(self):
        return None


def test_messages_share_their_room_with_bodies():
    intake = Intake(100)
    service = grpc_service.GrpcService(EchoGrpc(), "0", shared=CallServices(intake))
    row = POOL.FindServiceByName(SERVICE).methods_by_name["ServerLive"]
    body = b"\xfa\x01\x3e" + b"a" * 62  # field 31, which nobody knows
    asyncio.run(service._unary(row, body, Context()))
    with intake.hold(50), pytest.raises(Aborted) as caught:
        asyncio.run(service._unary(row, body, Context()))
    code, details = caught.value.args
    assert (code, "at most 100 bytes" in details) == (grpc.StatusCode.UNAVAILABLE, True)
    assert intake.held_bytes == 0


METHODS = sorted(set(POOL.FindServiceByName(SERVICE).methods_by_name) - {"ModelStreamInfer"})


@pytest.mark.parametrize("method", METHODS)
@given(body=st.binary(max_size=64))
def test_arbitrary_bytes_are_answered_or_refused(method, body):
    try:
        called(method, body)
    except ProtocolError as error:
        assert error.grpc_code != "INTERNAL"  # noqa: PT017 - most examples raise, some do not


@given(
    datatype=st.sampled_from([*NUMPY_TYPES, "BYTES"]),
    shape=st.lists(st.integers(-1, 2**62) | st.integers(0, 3), max_size=4),
    raw=st.none() | st.binary(max_size=32),
    field=st.sampled_from(sorted(set(CONTENTS.values()) - {"bytes_contents"})),
    values=st.lists(st.integers(0, 1), max_size=4),
)
def test_no_tensor_is_a_fault_of_the_server(datatype, shape, raw, field, values):
    try:
        called("ModelInfer", asked(datatype, shape, raw, **{field: values}))
    except ProtocolError as error:
        assert error.grpc_code == "INVALID_ARGUMENT"  # noqa: PT017 - as above


def test_long_errors_are_cut():
    code, text = grpc_service._status(NotFound("é" * 10_000), "a-1")
    assert code.name == "NOT_FOUND"
    assert len(text.encode()) in (1999, 2000)
    assert text.endswith("é...")


def test_json_nested_too_deeply_for_its_handler_is_refused():
    code, text = grpc_service._status(RecursionError(), "a-1")
    assert (code.name, text) == ("INVALID_ARGUMENT", "expected JSON that is nested less deeply")


def test_fault_of_the_server_is_logged_without_details_to_the_client(caplog):
    code, text = grpc_service._status(ValueError("a secret"), "a-1")
    assert code.name == "INTERNAL"
    assert "secret" not in text
    assert "a secret" in caplog.text
    assert "request a-1 failed" in caplog.text


def test_the_compiled_messages_are_those_of_the_source(tmp_path):
    compiled = tmp_path / "set.binpb"
    sources = ["open_inference.proto", "model_repository.proto"]
    assert (
        protoc.main(["", f"--proto_path={PROTO}", f"--descriptor_set_out={compiled}", *sources])
        == 0
    )
    read = descriptor_pb2.FileDescriptorSet.FromString
    assert read((PROTO / "open_inference.binpb").read_bytes()) == read(compiled.read_bytes()), (
        "run `make descriptors`"
    )


OTHER_CLIENT = """
import sys
from google.protobuf import descriptor_pb2, descriptor_pool

def other():
    read = descriptor_pb2.FileDescriptorSet.FromString
    for file in read(open("proto/open_inference.binpb", "rb").read()).file:
        file.name = file.name.replace("open_inference", "grpc_service")
        del file.dependency[:]
        if "ModelRepository" not in str(file.service):
            descriptor_pool.Default().Add(file)

def ours():
    import quadriga.proto.grpc.service

for word in sys.argv[1:]:
    {"other": other, "ours": ours}[word]()
descriptor_pool.Default().FindMessageTypeByName("inference.ModelInferRequest")
"""


@pytest.mark.parametrize("order", [("ours", "other"), ("other", "ours")])
def test_a_client_that_declares_the_same_messages_can_be_imported_too(order):
    environment = {**os.environ, "PYTHONPATH": str(PROTO.parent / "src")}
    command = [sys.executable, "-c", OTHER_CLIENT, *order]
    subprocess.run(command, check=True, cwd=PROTO.parent, env=environment)


def test_an_error_of_a_call_has_its_request_id(caplog):
    class Named(Context):
        trailer = ()

        def set_trailing_metadata(self, trailer):
            self.trailer = trailer

        def invocation_metadata(self):
            return (("x-request-id", "trace-1"),)

    context = Named()
    with pytest.raises(Aborted):
        asyncio.run(grpc_service._abort(context, ValueError("a secret")))
    assert context.trailer == (("x-request-id", "trace-1"),)
    assert "request trace-1 failed" in caplog.text
