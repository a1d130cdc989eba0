"""V2 over gRPC between clients whose messages differ: MLServer's, KServe's, those of the Open Inference Protocol."""

import math

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.grpc import service as grpc_service
from quadriga.proto.grpc.messages import message_class
from quadriga.proto.grpc.service import parse_infer
from quadriga.proto.http.chariot import read_image_inputs
from quadriga.proto.messages import MAX_NAME_BYTES, InferResponse, Tensor
from quadriga.tasks.parameters import number
from tests.unit.proto.test_v2_grpc import PROTO, EchoGrpc, asked, called, parameters_of, rendered


def three_kinds_of_parameters():
    """Make the ModelInferResponse of MLServer and KServe, whose parameters are truth values, int64 or texts."""
    pool = descriptor_pool.DescriptorPool()
    compiled = (PROTO / "open_inference.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        for message in file.message_type:
            if message.name == "InferParameter":
                del message.field[3:]
        pool.AddSerializedFile(file.SerializeToString())
    message = pool.FindMessageTypeByName("inference.ModelInferResponse")
    return message_factory.GetMessageClass(message)


def test_a_number_that_a_client_has_no_kind_for_reaches_it_as_a_text():
    parameters = {"a": 0.1, "b": -2.5e-7, "c": 2**64 - 1, "d": 3, "e": False, "f": math.inf}
    tensor = Tensor("x", "BYTES", (1,), ["text"], parameters=parameters)
    (output,) = rendered(tensor, raw=False, client=three_kinds_of_parameters()).outputs
    assert parameters_of(output) == {
        "a": ("string_param", "0.1"),
        "b": ("string_param", "-2.5e-07"),
        "c": ("string_param", "18446744073709551615"),
        "d": ("int64_param", 3),
        "e": ("bool_param", False),
        "f": ("string_param", "inf"),
    }
    (output,) = rendered(tensor, raw=False).outputs
    assert [parameters_of(output)[name] for name in "abcf"] == [
        ("double_param", 0.1),
        ("double_param", -2.5e-7),
        ("uint64_param", 2**64 - 1),
        ("double_param", math.inf),
    ]


def test_a_stream_writes_numbers_as_such():
    request = asked("BYTES", [1], bytes_contents=[b"a"])
    service = grpc_service.GrpcService(ScoringGrpc(), "0")
    body = service._stream_answer(request.SerializeToString())
    answer = message_class("ModelStreamInferResponse").FromString(body).infer_response
    assert parameters_of(answer.outputs[0])["semantic_score"] == ("double_param", 0.25)


@pytest.mark.parametrize("with_inputs", [True, False])
def test_an_id_that_is_too_long_is_refused_and_not_repeated(with_inputs):
    service = grpc_service.GrpcService(ScoringGrpc(), "0")
    request = asked("BYTES", [1], bytes_contents=[b"a"])
    request.id = "é" * (MAX_NAME_BYTES // 2 + 1)
    if not with_inputs:
        del request.inputs[:]
    refusal = "expected id of at most 1024 characters, got 1025"
    body = request.SerializeToString()
    with pytest.raises(InvalidRequest, match=refusal):
        service._stream_answer(body)
    read = message_class("ModelStreamInferResponse").FromString
    answer = read(grpc_service._error_answer(body, refusal))
    assert (answer.error_message, answer.infer_response.id) == (refusal, "")
    request.id = "é" * (MAX_NAME_BYTES // 2)
    answer = read(grpc_service._error_answer(request.SerializeToString(), refusal))
    assert answer.infer_response.id == request.id


def test_texts_of_parameters_may_stand_for_numbers():
    given_ = {"score_threshold": ("string_param", "0.96"), "prompt": ("string_param", "0.96")}
    request = asked("BYTES", [1], parameters=given_, bytes_contents=[b"a"])
    request.parameters["top_p"].string_param = "0.5"
    (image_input,) = read_image_inputs(parse_infer(request))
    assert number(image_input.parameters, "score_threshold", 0, 1, 0.5) == 0.96
    assert number(image_input.parameters, "top_p", 0, 1, 1) == 0.5
    assert type(image_input.parameters["prompt"]) is str


class ScoringGrpc(EchoGrpc):
    """Answers with a semantic score."""

    def infer(self, request):
        output = Tensor("x", "BYTES", (1,), ["a"], parameters={"semantic_score": 0.25})
        return InferResponse("m", "1", request.id, [output])


@pytest.mark.parametrize("task", ["TENSOR", "acme.counting:Counting", "é", "x" * 127])
def test_the_task_is_a_parameter_as_mlserver_has_them(task):
    serving = EchoGrpc()
    serving.task = task
    request = message_class("ModelMetadataRequest")(name="m")
    metadata = called("ModelMetadata", request, serving)
    assert metadata.parameters["task"].string_param == task
    assert metadata.platform == "onnx_onnxv1"
    properties = text_properties().FromString(metadata.SerializeToString()).properties
    assert properties["task"].endswith(task)


def test_a_task_that_clients_of_the_open_protocol_could_not_read_is_left_out():
    serving = EchoGrpc()
    serving.task = "é" * 64
    metadata = called("ModelMetadata", message_class("ModelMetadataRequest")(name="m"), serving)
    assert not metadata.parameters


def text_properties():
    """Make the ModelMetadataResponse of the Open Inference Protocol, which has a map of texts."""
    pool = descriptor_pool.DescriptorPool()
    compiled = (PROTO / "open_inference.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        for message in file.message_type:
            if message.name == "ModelMetadataResponse":
                (parameters,) = (field for field in message.field if field.number == 6)
                (entry,) = (nested for nested in message.nested_type if nested.options.map_entry)
                parameters.name, parameters.json_name = "properties", "properties"
                entry.name = "PropertiesEntry"
                parameters.type_name = ".inference.ModelMetadataResponse.PropertiesEntry"
                entry.field[1].ClearField("type_name")
                entry.field[1].type = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
        pool.AddSerializedFile(file.SerializeToString())
    message = pool.FindMessageTypeByName("inference.ModelMetadataResponse")
    return message_factory.GetMessageClass(message)
