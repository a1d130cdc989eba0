"""tritonclient over gRPC, blocking and with asyncio, and messages made with its stubs."""

import json
import queue
import uuid
from collections.abc import Callable
from typing import Any

import grpc as grpc_core
import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
from checks import ARRAYS, LARGE, A, B, equal, within
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient_wire import LOOP, SERVER, Blocking, Wire, add_common, checks


async def connect() -> tuple[Any, Any]:
    """Make the clients, one of which belongs to a loop; None where there is no gRPC."""
    if not SERVER["grpc"]:
        return None, None
    client = tritonclient.grpc.InferenceServerClient(SERVER["grpc"])
    return client, Blocking(tritonclient.grpc.aio.InferenceServerClient(SERVER["grpc"]))


CLIENT, AIO_CLIENT = LOOP.run_until_complete(connect())
grpc = Wire("grpc", tritonclient.grpc, CLIENT)
grpc_aio = Wire("grpc-aio", tritonclient.grpc.aio, AIO_CLIENT)


def add_grpc(wire: Wire) -> None:
    """Add what gRPC alone has."""

    def compression(algorithm: str) -> None:
        infer_inputs = [wire.input("x", LARGE[:, :4096], "FP32")]
        result = wire.client.infer("identity-fp32", infer_inputs, compression_algorithm=algorithm)
        equal(result.as_numpy("y"), LARGE[:, :4096])

    for algorithm in ("gzip", "deflate"):
        checks.add(f"{wire.name}: {algorithm}", lambda a=algorithm: compression(a), "grpc")


for module in (grpc, grpc_aio):
    add_common(module)
    add_grpc(module)


@checks("grpc: async_infer", "grpc")
def grpc_async_infer() -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    grpc.client.async_infer(
        "sum",
        [grpc.input("a", A, "FP32"), grpc.input("b", B, "FP32")],
        callback=lambda result, error: answers.put((result, error)),
    )
    result, error = answers.get(timeout=20)
    assert error is None, error
    equal(result.as_numpy("total"), A + B)


@checks("grpc: stream", "grpc")
def stream() -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    grpc.client.start_stream(callback=lambda result, error: answers.put((result, error)))
    try:
        for n in range(5):
            infer_inputs = [grpc.input("a", A * n, "FP32"), grpc.input("b", B, "FP32")]
            grpc.client.async_stream_infer("sum", infer_inputs, request_id=str(n))
        for n in range(5):
            result, error = answers.get(timeout=20)
            assert error is None, error
            equal(result.get_response().id, str(n))
            equal(result.as_numpy("total"), A * n + B)
        grpc.client.async_stream_infer("none", infer_inputs)
        result, error = answers.get(timeout=20)
        assert "none" in str(error), f"expected an error that names the model, got {error}"
        grpc.client.async_stream_infer("sum", infer_inputs)  # an error ends its request alone
        result, error = answers.get(timeout=20)
        assert error is None, error
    finally:
        grpc.client.stop_stream()


@checks("grpc-aio: stream", "grpc")
def aio_stream() -> None:
    async def ask() -> list[Any]:
        async def requests() -> Any:
            for n in range(3):
                yield {"model_name": "sum", "request_id": str(n), "inputs": [grpc.input("a", A * n, "FP32"), grpc.input("b", B, "FP32")]}  # fmt: skip

        answers = []
        async for result, error in grpc_aio.client._client.stream_infer(requests()):
            assert error is None, error
            answers.append(result)
        return answers

    results = LOOP.run_until_complete(ask())
    equal([result.get_response().id for result in results], ["0", "1", "2"])
    equal(results[2].as_numpy("total"), A * 2 + B)


def typed_request(model: str, name: str, array: np.ndarray, datatype: str, field: str) -> Any:
    contents = service_pb2.InferTensorContents(**{field: array.ravel().tolist()})
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=array.shape, contents=contents
    )
    return service_pb2.ModelInferRequest(model_name=model, id=str(uuid.uuid4()), inputs=[tensor])


def call(request: Any) -> Any:
    with grpc_core.insecure_channel(SERVER["grpc"]) as channel:
        return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=20)


FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "UINT64": "uint64_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def typed(datatype: str, field: str) -> None:
    """Typed contents are answered by typed contents, and nothing raw."""
    array = ARRAYS[datatype]
    if datatype == "BYTES":
        array = np.array([[text.encode() for text in array[0]]], dtype=object)
    answer = call(
        typed_request(f"identity-{datatype.lower()}", "x", array, datatype=datatype, field=field)
    )
    equal(len(answer.raw_output_contents), 0)
    (output,) = answer.outputs
    equal((output.datatype, [*output.shape]), (datatype, [*array.shape]))
    equal([*getattr(output.contents, field)], array.ravel().tolist())


for datatype, field in FIELDS.items():
    checks.add(f"grpc: typed contents, {datatype}", lambda d=datatype, f=field: typed(d, f), "grpc")


@checks("grpc: an image in typed contents", "grpc")
def typed_image() -> None:
    array = np.array([checks.image("classification")], dtype=object)
    answer = call(
        typed_request("shapes-classifier", "image", array, datatype="BYTES", field="bytes_contents")
    )
    (output,) = answer.outputs
    equal(json.loads(output.contents.bytes_contents[0]), SERVER["predictions"]["classification"])


def wrong(change: Callable[[Any], Any], code: str, text: str) -> None:
    request = typed_request("identity-fp32", "x", A, datatype="FP32", field="fp32_contents")
    change(request)
    try:
        call(request)
    except grpc_core.RpcError as error:
        equal(error.code().name, code)
        assert text in error.details(), error.details()
    else:
        raise AssertionError("expected an error")


WRONG: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "too few elements": (lambda r: r.inputs[0].contents.fp32_contents.pop(), "INVALID_ARGUMENT", "'x'"),
    "typed and raw": (lambda r: r.raw_input_contents.append(A.tobytes()), "INVALID_ARGUMENT", "raw"),
    "a negative shape": (lambda r: r.inputs[0].shape.__setitem__(0, -2), "INVALID_ARGUMENT", "shape"),
    "an unknown datatype": (lambda r: setattr(r.inputs[0], "datatype", "TEXT"), "INVALID_ARGUMENT", "TEXT"),
    "no inputs": (lambda r: r.inputs.pop(), "INVALID_ARGUMENT", "input"),
}  # fmt: skip
for name, row in WRONG.items():
    checks.add(f"grpc: error, {name}", lambda row=row: wrong(*row), "grpc")


@checks("grpc: health service", "grpc")
def health_service() -> None:
    with grpc_core.insecure_channel(SERVER["grpc"]) as channel:
        ask = channel.unary_unary("/grpc.health.v1.Health/Check")
        equal(ask(b"", timeout=20), b"\x08\x01")  # SERVING


@checks("grpc: reflection", "grpc")
def reflection() -> None:
    list_services = b"\x3a\x01*"
    with grpc_core.insecure_channel(SERVER["grpc"]) as channel:
        ask = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        (answer,) = list(ask(iter([list_services]), timeout=20))
    assert b"inference.GRPCInferenceService" in answer, answer


@checks("grpc: KServe's form of load, the name in the first field", "grpc", "repository")
def kserve_form_of_load() -> None:
    name = b"\x0a\x05spare"  # field 1, where Triton has repository_name
    with grpc_core.insecure_channel(SERVER["grpc"]) as channel:
        for method in ("RepositoryModelUnload", "RepositoryModelLoad"):
            answer = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(
                name, timeout=20
            )
            equal(answer, name + b"\x10\x01")
    within(lambda: grpc.client.is_model_ready("spare"))


checks.run()
if SERVER["grpc"]:
    grpc.client.close()
    LOOP.run_until_complete(grpc_aio.client._client.close())
