"""kserve's clients: V1, V2 as JSON and binary, gRPC; CloudEvents as its cloudevents package makes them."""

import asyncio
import base64
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import httpx
import numpy as np
from checks import ARRAYS, LARGE, NOT_FINITE, A, B, Checks, equal, within

checks = Checks()  # takes the arguments away before kserve reads them

from cloudevents.conversion import to_binary, to_structured
from cloudevents.http import CloudEvent, from_http
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)
from kserve.protocol.infer_type import RequestedOutput

SERVER = checks.server
URL = f"http://{SERVER['http']}"
LOOP = asyncio.new_event_loop()


async def clients() -> tuple[Any, Any, Any]:
    """Make the clients, which belong to a loop."""
    v1, v2 = (InferenceRESTClient(RESTConfig(protocol=name, timeout=120)) for name in ("v1", "v2"))
    return v1, v2, InferenceGRPCClient(SERVER["grpc"], timeout=120) if SERVER["grpc"] else None


V1, V2, GRPC = LOOP.run_until_complete(clients())


def wait(answer: Awaitable[Any]) -> Any:
    return LOOP.run_until_complete(answer)


def tensor(name: str, array: np.ndarray, datatype: str, *, binary: bool = True) -> InferInput:
    infer_input = InferInput(name=name, shape=list(array.shape), datatype=datatype)
    infer_input.set_data_from_numpy(array, binary_data=binary)
    return infer_input


def by_rest(request: InferRequest) -> Any:
    return wait(V2.infer(URL, request, model_name=request.model_name))


def by_grpc(request: InferRequest) -> Any:
    return wait(GRPC.infer(request))


def request(model: str, *inputs: InferInput, binary: bool = True, **options: Any) -> InferRequest:
    parameters = {"binary_data_output": True} if binary else None
    return InferRequest(
        model, list(inputs), request_id=str(uuid.uuid4()), parameters=parameters, **options
    )


def answers(wire: str, datatype: str, array: np.ndarray) -> None:
    """Send a tensor to the identity and demand it back."""
    infer_input = tensor("x", array, datatype, binary=wire != "json")
    infer_request = request(f"identity-{datatype.lower()}", infer_input, binary=wire == "binary")
    response = by_grpc(infer_request) if wire == "grpc" else by_rest(infer_request)
    equal(response.id, infer_request.id)
    (output,) = response.outputs
    equal((output.name, output.datatype, list(output.shape)), ("y", datatype, list(array.shape)))
    equal(output.as_numpy(), array)


for wire, features in (("json", ()), ("binary", ()), ("grpc", ("grpc",))):
    for datatype, array in ARRAYS.items():
        if wire != "json" or datatype != "FP16":  # its JSON has no FP16
            checks.add(
                f"{wire}: {datatype}",
                lambda w=wire, d=datatype, a=array: answers(w, d, a),
                *features,
            )
    if wire != "json":
        checks.add(f"{wire}: not finite", lambda w=wire: answers(w, "FP32", NOT_FINITE), *features)
        checks.add(f"{wire}: 32 MiB", lambda w=wire: answers(w, "FP32", LARGE), *features)


@checks("v2: health")
def health() -> None:
    equal(wait(V2.is_server_live(URL)), True)
    equal(wait(V2.is_server_ready(URL)), True)
    equal(wait(V2.is_model_ready(URL, "sum")), True)
    equal(wait(V2.is_model_ready(URL, "none")), False)
    equal(wait(V2.is_model_ready(URL, "broken")), False)


def sum_request(*names: str, binary: bool = True) -> InferRequest:
    requested = [RequestedOutput(name, {"binary_data": binary}) for name in names]
    inputs = [tensor("a", A, "FP32", binary=binary), tensor("b", B, "FP32", binary=binary)]
    return request("sum", *inputs, binary=binary, request_outputs=requested)


@checks("v2: outputs asked for, in their order")
def subset() -> None:
    for binary in (True, False):
        response = by_rest(sum_request("difference", "total", binary=binary))
        equal([output.name for output in response.outputs], ["difference", "total"])
        equal(response.get_output_by_name("total").as_numpy(), A + B)
    response = by_rest(sum_request("difference"))
    equal([output.name for output in response.outputs], ["difference"])


@checks("grpc: outputs asked for, in their order", "grpc")
def grpc_subset() -> None:
    response = by_grpc(sum_request("difference", "total"))
    equal([output.name for output in response.outputs], ["difference", "total"])
    equal(response.get_output_by_name("total").as_numpy(), A + B)


def image(wire: Callable[[InferRequest], Any], task: str, model: str) -> None:
    array = np.array([checks.image(task)], dtype=object)
    response = wire(request(model, tensor("image", array, "BYTES")))
    (output,) = response.outputs
    equal(json.loads(output.as_numpy()[0]), SERVER["predictions"][task])


for task, model in SERVER["models"].items():
    checks.add(f"binary: image, {task}", lambda t=task, m=model: image(by_rest, t, m))
    checks.add(f"grpc: image, {task}", lambda t=task, m=model: image(by_grpc, t, m), "grpc")


@checks("v2: images as base64 in JSON")
def image_json() -> None:
    encoded = base64.b64encode(checks.image("detection")).decode()
    infer_input = tensor("image", np.array([encoded], dtype=object), "BYTES", binary=False)
    response = by_rest(request("shapes-detector", infer_input, binary=False))
    equal(response.outputs[0].data, [SERVER["predictions"]["detection"]])


def refused(call: Callable[[], Any], status: int, text: str) -> None:
    try:
        call()
    except httpx.HTTPStatusError as error:
        equal(error.response.status_code, status)
        assert text in str(error), error
    else:
        raise AssertionError("expected an HTTPStatusError")


ERRORS: dict[str, tuple[Callable[[], Any], int, str]] = {
    "unknown model": (lambda: by_rest(request("none", tensor("x", A, "FP32"))), 404, "'none'"),
    "a missing input": (lambda: by_rest(request("sum", tensor("a", A, "FP32"))), 400, "the inputs a, b"),
    "the wrong datatype": (lambda: by_rest(request("identity-fp64", tensor("x", A, "FP32"))), 400, "FP64"),
    "an unknown output": (lambda: by_rest(sum_request("z")), 400, "got z"),
    "a failed model": (lambda: by_rest(request("broken", tensor("x", A, "FP32"))), 503, "failed to load"),
    "no tensor at all": (lambda: wait(V2.infer(URL, {"inputs": []}, model_name="sum")), 400, "at least one"),
}  # fmt: skip
for name, row in ERRORS.items():
    checks.add(f"v2: error, {name}", lambda row=row: refused(*row))


@checks("grpc: health", "grpc")
def grpc_health() -> None:
    equal(wait(GRPC.is_server_live()), True)
    equal(wait(GRPC.is_server_ready()), True)
    equal(wait(GRPC.is_model_ready("sum")), True)
    equal(wait(GRPC.is_model_ready("none")), False)


@checks("grpc: errors", "grpc")
def grpc_errors() -> None:
    for infer_request, code, text in (
        (request("none", tensor("x", A, "FP32")), "NOT_FOUND", "'none'"),
        (request("sum", tensor("a", A, "FP32")), "INVALID_ARGUMENT", "the inputs a, b"),
        (request("broken", tensor("x", A, "FP32")), "UNAVAILABLE", "failed to load"),
    ):
        try:
            by_grpc(infer_request)
        except grpc.RpcError as error:
            equal(error.code().name, code)
            assert text in error.details(), error.details()
        else:
            raise AssertionError("expected an error")


@checks("v1: health", "v1")
def v1_health() -> None:
    equal(wait(V1.is_server_live(URL)), True)
    equal(wait(V1.is_model_ready(URL, "sum")), True)
    equal(wait(V1.is_model_ready(URL, "broken")), False)
    refused(lambda: wait(V1.is_model_ready(URL, "none")), 404, "none")


@checks("v1: rows", "v1")
def v1_rows() -> None:
    response = wait(V1.infer(URL, {"instances": [1.0, 2.0, 5.0]}, model_name="half_plus_three"))
    equal(response["predictions"], [3.5, 4.0, 5.5])
    rows = [{"a": [1, 2, 3, 4], "b": [1, 1, 1, 1]}]
    response = wait(V1.infer(URL, {"instances": rows}, model_name="sum"))
    equal(response["predictions"], [{"total": [2, 3, 4, 5], "difference": [0, 1, 2, 3]}])


def v1_image(task: str, model: str) -> None:
    instance = {"b64": base64.b64encode(checks.image(task)).decode()}
    response = wait(V1.infer(URL, {"instances": [instance, instance]}, model_name=model))
    equal(response["predictions"], [SERVER["predictions"][task]] * 2)


for task, model in SERVER["models"].items():
    checks.add(f"v1: images, {task}", lambda t=task, m=model: v1_image(t, m), "v1")


@checks("v1: errors", "v1")
def v1_errors() -> None:
    for body, model, status, text in (
        ({"instances": [1.0]}, "none", 404, "none"),
        ({}, "half_plus_three", 400, "instances"),
        ({"instances": ["x"]}, "half_plus_three", 400, ""),
        ({"instances": [1.0]}, "broken", 503, "broken"),
    ):
        refused(lambda b=body, m=model: wait(V1.infer(URL, b, model_name=m)), status, text)


def event(make: Callable[[CloudEvent], tuple[Any, Any]], content_type: str) -> None:
    """A CloudEvent is answered by one of the same mode."""
    attributes = {"type": "io.example.rows", "source": "camera-7", "id": "night-7"}
    if make is to_binary:
        attributes["datacontenttype"] = "application/json"
    headers, body = make(CloudEvent(attributes, {"instances": [1.0, 2.0, 5.0]}))
    answer = httpx.post(f"{URL}/v1/models/half_plus_three:predict", content=body, headers=headers)
    equal(answer.status_code, 200)
    assert answer.headers["content-type"].startswith(content_type), answer.headers
    cloud_event = from_http(dict(answer.headers), answer.content)
    equal(cloud_event["type"], "io.kserve.inference.response")
    equal(cloud_event["source"], "io.kserve.inference.half_plus_three")
    assert cloud_event["id"] != "night-7", "expected an id of its own"
    data = cloud_event.data if isinstance(cloud_event.data, dict) else json.loads(cloud_event.data)
    equal(data["predictions"], [3.5, 4.0, 5.5])


checks.add("v1: CloudEvent, binary", lambda: event(to_binary, "application/json"), "v1")
checks.add(
    "v1: CloudEvent, structured", lambda: event(to_structured, "application/cloudevents+json"), "v1"
)


@checks("v1: CloudEvent with an encoding of its own", "v1")
def odd_event() -> None:
    headers = {
        "ce-specversion": "1.0",
        "ce-source": "camera-7",
        "ce-type": "io.example.rows",
        "ce-id": "ä",
        "ce-contenttype": "application/json",
        "content-type": "application/json",
    }
    encoded = {name: text.encode() for name, text in headers.items()}
    answer = httpx.post(
        f"{URL}/v1/models/half_plus_three:predict", content=b'{"instances": [1.0]}', headers=encoded
    )
    equal(answer.status_code, 200)


@checks("v2: repository, as its servers answer", "repository")
def repository() -> None:
    for verb in ("unload", "load"):
        answer = httpx.post(f"{URL}/v2/repository/models/spare/{verb}")
        equal(answer.status_code, 200)
    within(lambda: wait(V2.is_model_ready(URL, "spare")))


checks.run()
wait(V1.close())
wait(V2.close())
if GRPC is not None:
    wait(GRPC.close())
