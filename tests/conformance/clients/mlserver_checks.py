"""MLServer's codecs and types as the client: what they encode is sent, what is answered they decode."""

import json
from collections.abc import Callable
from http.client import HTTPConnection

import numpy as np
import pandas as pd
from checks import ARRAYS, A, B, Checks, equal

checks = Checks()

import grpc
from mlserver import types
from mlserver.codecs import (
    Base64Codec,
    NumpyCodec,
    NumpyRequestCodec,
    PandasCodec,
    StringCodec,
    StringRequestCodec,
)
from mlserver.grpc import converters, dataplane_pb2, dataplane_pb2_grpc

SERVER = checks.server


def http(method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    connection = HTTPConnection(SERVER["http"], timeout=60)
    try:
        connection.request(method, path, None if body is None else body.encode())
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def by_rest(model: str, request: types.InferenceRequest) -> types.InferenceResponse:
    """Send with every field that is not set as null, as pydantic writes it."""
    status, answer = http("POST", f"/v2/models/{model}/infer", request.model_dump_json())
    assert status == 200, answer
    return types.InferenceResponse.model_validate_json(answer)


def by_grpc(model: str, request: types.InferenceRequest) -> types.InferenceResponse:
    message = converters.ModelInferRequestConverter.from_types(request, model_name=model)
    with grpc.insecure_channel(SERVER["grpc"]) as channel:
        stub = dataplane_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(message, timeout=20)
    return converters.ModelInferResponseConverter.to_types(answer)


Wire = Callable[[str, types.InferenceRequest], types.InferenceResponse]
WIRES: dict[str, tuple[Wire, tuple[str, ...]]] = {
    "rest": (by_rest, ()),
    "grpc": (by_grpc, ("grpc",)),
}


def numpy_codec(wire: Wire, datatype: str, array: np.ndarray) -> None:
    request_input = NumpyCodec.encode_input("x", array)
    equal(str(getattr(request_input.datatype, "value", request_input.datatype)), datatype)
    response = wire(f"identity-{datatype.lower()}", types.InferenceRequest(inputs=[request_input]))
    equal(NumpyCodec.decode_output(response.outputs[0]), array)


def numpy_request(wire: Wire) -> None:
    """One array alone; the response is decoded whole."""
    request = NumpyRequestCodec.encode_request(A)
    request.inputs[0].name = "x"
    request.id = "night-7"
    response = wire("identity-fp32", request)
    equal(response.id, "night-7")
    equal(NumpyRequestCodec.decode_response(response), A)


def one_dimension(wire: Wire) -> None:
    """Its codec sends [N] as [N, 1], whatever the model wants."""
    request_input = NumpyCodec.encode_input("x", np.array([1, 2, 5], np.float32))
    response = wire("half_plus_three", types.InferenceRequest(inputs=[request_input]))
    equal(response.outputs[0].shape, [3])
    equal(NumpyCodec.decode_output(response.outputs[0]), np.array([3.5, 4, 5.5], np.float32))


def outputs(wire: Wire) -> None:
    inputs = [NumpyCodec.encode_input("a", A), NumpyCodec.encode_input("b", B)]
    requested = [types.RequestOutput(name=name) for name in ("difference", "total")]
    response = wire("sum", types.InferenceRequest(inputs=inputs, outputs=requested))
    equal([output.name for output in response.outputs], ["difference", "total"])
    equal(NumpyCodec.decode_output(response.outputs[1]), A + B)


def strings(wire: Wire, use_bytes: bool) -> None:  # noqa: FBT001 - as the codec calls it
    texts = ["a b", "ä€😀"]
    request_input = StringCodec.encode_input("x", texts, use_bytes=use_bytes)
    response = wire("identity-bytes", types.InferenceRequest(inputs=[request_input]))
    equal(StringCodec.decode_output(response.outputs[0]), texts)
    equal(StringRequestCodec.decode_response(response), texts)


def base64_texts(wire: Wire, use_bytes: bool) -> None:  # noqa: FBT001 - as the codec calls it
    request_input = Base64Codec.encode_input("x", ["ä€".encode(), b"b"], use_bytes=use_bytes)
    equal(request_input.parameters.content_type, "base64")
    response = wire("identity-bytes", types.InferenceRequest(inputs=[request_input]))
    equal(StringCodec.decode_output(response.outputs[0]), ["ä€", "b"])


def base64_image(wire: Wire, task: str, model: str, use_bytes: bool) -> None:  # noqa: FBT001 - as above
    request_input = Base64Codec.encode_input("image", [checks.image(task)], use_bytes=use_bytes)
    response = wire(model, types.InferenceRequest(inputs=[request_input]))
    (predictions,) = response.outputs[0].data
    predictions = json.loads(predictions) if isinstance(predictions, str | bytes) else predictions
    equal(predictions, SERVER["predictions"][task])


def frame(wire: Wire) -> None:
    """A data frame: each column an input."""
    columns = pd.DataFrame(
        {"p": np.array([1, 2, 3], np.float32), "q": np.array([4, 5, 6], np.float32)}
    )
    response = wire("columns", PandasCodec.encode_request(columns))
    equal(response.outputs[0].shape, [3, 1])
    data_frame = PandasCodec.decode_response(response)
    equal(data_frame["s"].tolist(), [5, 7, 9])


for name, (wire, features) in WIRES.items():
    for datatype, array in ARRAYS.items():
        if datatype not in ("BYTES", "FP16" if name == "grpc" else ""):  # its gRPC has no FP16
            checks.add(
                f"{name}: np, {datatype}",
                lambda w=wire, d=datatype, a=array: numpy_codec(w, d, a),
                *features,
            )
    use_bytes = name == "grpc"
    checks.add(f"{name}: np, a request", lambda w=wire: numpy_request(w), *features)
    checks.add(f"{name}: np, one dimension", lambda w=wire: one_dimension(w), *features)
    checks.add(f"{name}: outputs asked for", lambda w=wire: outputs(w), *features)
    checks.add(f"{name}: str", lambda w=wire, u=use_bytes: strings(w, u), *features)
    checks.add(f"{name}: base64", lambda w=wire, u=use_bytes: base64_texts(w, u), *features)
    checks.add(f"{name}: pd", lambda w=wire: frame(w), *features)
    for task, model in SERVER["models"].items():
        checks.add(
            f"{name}: base64, image, {task}",
            lambda w=wire, t=task, m=model, u=use_bytes: base64_image(w, t, m, u),
            *features,
        )


@checks("rest: metadata in its types")
def metadata() -> None:
    status, body = http("GET", "/v2")
    equal(status, 200)
    equal(types.MetadataServerResponse.model_validate_json(body).name, "quadriga")
    for model in ("sum", "identity-bytes", "shapes-detector"):
        status, body = http("GET", f"/v2/models/{model}")
        equal(status, 200)
        metadata_response = types.MetadataModelResponse.model_validate_json(body)
        equal(metadata_response.name, model)
        assert metadata_response.inputs, "expected inputs"


@checks("rest: errors in its types")
def errors() -> None:
    for path, status in (("/v2/models/none", 404), ("/v2/none", 404)):
        error_status, body = http("GET", path)
        equal(error_status, status)
        assert types.InferenceErrorResponse.model_validate_json(body).error, body
    error_status, body = http("POST", "/v2/models/sum/infer", "{")
    equal(error_status, 400)
    assert types.InferenceErrorResponse.model_validate_json(body).error, body


@checks("rest: repository index in its types", "repository")
def index() -> None:
    for body in ("", "{}", '{"ready": true}'):
        status, answer = http("POST", "/v2/repository/index", body)
        equal(status, 200)
        rows = types.RepositoryIndexResponse.model_validate_json(answer)
        states = {row.name: getattr(row.state, "value", row.state) for row in rows}
        equal(states["sum"], "READY")
        equal("broken" in states, body != '{"ready": true}')


@checks("grpc: health and metadata", "grpc")
def grpc_metadata() -> None:
    with grpc.insecure_channel(SERVER["grpc"]) as channel:
        stub = dataplane_pb2_grpc.GRPCInferenceServiceStub(channel)
        equal(stub.ServerLive(dataplane_pb2.ServerLiveRequest(), timeout=20).live, True)
        equal(stub.ModelReady(dataplane_pb2.ModelReadyRequest(name="sum"), timeout=20).ready, True)
        answer = stub.ModelMetadata(dataplane_pb2.ModelMetadataRequest(name="sum"), timeout=20)
    metadata_response = converters.ModelMetadataResponseConverter.to_types(answer)
    equal([tensor.name for tensor in metadata_response.inputs], ["a", "b"])
    equal(answer.parameters["task"].string_param, "TENSOR")


@checks("grpc: a fraction is a text, as its messages have none", "grpc")
def grpc_fraction() -> None:
    counts = []
    for wire, threshold in ((by_rest, 0.5), (by_rest, 0.99), (by_grpc, "0.5"), (by_grpc, "0.99")):
        use_bytes = wire is by_grpc
        image = Base64Codec.encode_input("image", [checks.image("detection")], use_bytes=use_bytes)
        parameters = types.Parameters(content_type="base64", score_threshold=threshold)
        image.parameters = parameters
        answer = wire("shapes-detector", types.InferenceRequest(inputs=[image]))
        (element,) = answer.outputs[0].data
        counts.append(len(json.loads(element) if isinstance(element, str | bytes) else element))
    equal(counts[:2], counts[2:])
    assert counts[0] > counts[1], counts


checks.run()
