"""tritonclient over HTTP, blocking and with asyncio."""

import asyncio
import json
from typing import Any

import numpy as np
import tritonclient.http
import tritonclient.http.aio
from checks import ARRAYS, NOT_FINITE, A, B, equal
from tritonclient.utils import InferenceServerException
from tritonclient_wire import (
    LOOP,
    SERVER,
    Blocking,
    Wire,
    add_common,
    checks,
    identity,
    image_as_json,
)


async def connect() -> tuple[Any, Any]:
    """Make the clients, one of which belongs to a loop."""
    client = tritonclient.http.InferenceServerClient(
        SERVER["http"], concurrency=4, network_timeout=120, connection_timeout=120
    )
    return client, Blocking(tritonclient.http.aio.InferenceServerClient(SERVER["http"]))


CLIENT, AIO_CLIENT = LOOP.run_until_complete(connect())
http = Wire("http", tritonclient.http, CLIENT)
http_aio = Wire("http-aio", tritonclient.http.aio, AIO_CLIENT)


def add_http(wire: Wire) -> None:
    """Add what HTTP alone has."""
    for datatype, array in ARRAYS.items():
        checks.add(
            f"{wire.name}: {datatype} as JSON",
            lambda d=datatype, a=array: identity(wire, d, a, binary_data=False),
        )
    checks.add(
        f"{wire.name}: not finite as JSON",
        lambda: identity(wire, "FP32", NOT_FINITE, binary_data=False),
    )
    checks.add(f"{wire.name}: image, its predictions as JSON", lambda: image_as_json(wire))

    def compression(request: str | None, response: str | None) -> None:
        array = np.tile(np.arange(1000, dtype=np.float32), (3, 1))
        result = wire.client.infer(
            "identity-fp32",
            [wire.input("x", array, "FP32")],
            request_compression_algorithm=request,
            response_compression_algorithm=response,
        )
        equal(result.as_numpy("y"), array)

    for request in (None, "gzip", "deflate"):
        for response in (None, "gzip", "deflate"):
            if request or response:
                label = (
                    f"{wire.name}: compression {request or 'none'} and back {response or 'none'}"
                )
                checks.add(label, lambda q=request, r=response: compression(q, r))

    def unserved() -> None:
        for call in (
            wire.client.get_trace_settings,
            wire.client.get_system_shared_memory_status,
            lambda: wire.client.register_system_shared_memory("r", "/k", 16),
        ):
            try:
                call()
            except InferenceServerException as error:
                assert "expected" in error.message(), error.message()
                assert error.status() in ("404", "501"), error.status()
            else:
                raise AssertionError("expected an error for what is not offered")

    checks.add(f"{wire.name}: what is not offered", unserved)

    def too_large() -> None:
        array = np.zeros((1, SERVER["max_body_bytes"] // 4), np.float32)
        infer_input = wire.input("x", array, "FP32")
        wire.refused(lambda: wire.client.infer("identity-fp32", [infer_input]), "413", "at most")

    checks.add(f"{wire.name}: error, too large", too_large)


for module in (http, http_aio):
    add_common(module)
    add_http(module)


@checks("http: async_infer")
def async_infer() -> None:
    pending = [
        http.client.async_infer("sum", [http.input("a", A * n, "FP32"), http.input("b", B, "FP32")])
        for n in range(8)
    ]
    for n, request in enumerate(pending):
        equal(request.get_result().as_numpy("total"), A * n + B)


@checks("http: body made and read apart from the client")
def body_apart() -> None:
    client = tritonclient.http.InferenceServerClient
    infer_inputs = [http.input("a", A, "FP32"), http.input("b", B, "FP32")]
    body, length = client.generate_request_body(infer_inputs)
    answer = http.client._post(
        "v2/models/sum/infer", body, {"Inference-Header-Content-Length": length}, None
    )
    result = client.parse_response_body(
        answer.read(), header_length=int(answer["Inference-Header-Content-Length"])
    )
    equal(result.as_numpy("total"), A + B)


@checks("http: a request that is one raw tensor, header length 0")
def raw_tensor() -> None:
    headers = {"Inference-Header-Content-Length": 0}
    answer = http.client._post("v2/models/identity-fp32/infer", A.tobytes(), headers, None)
    result = tritonclient.http.InferResult(answer, verbose=False)
    equal(result.as_numpy("y"), A)


@checks("http: a request that is one raw image, header length 0")
def raw_image() -> None:
    headers = {"Inference-Header-Content-Length": 0}
    answer = http.client._post(
        "v2/models/shapes-detector/infer", checks.image("detection"), headers, None
    )
    result = tritonclient.http.InferResult(answer, verbose=False)
    equal(json.loads(result.as_numpy("image")[0]), SERVER["predictions"]["detection"])


@checks("http-aio: many at once")
def many_at_once() -> None:
    async def ask() -> list[Any]:
        client = http_aio.client._client
        return await asyncio.gather(
            *(
                client.infer("sum", [http.input("a", A * n, "FP32"), http.input("b", B, "FP32")])
                for n in range(8)
            )
        )

    for n, result in enumerate(LOOP.run_until_complete(ask())):
        equal(result.as_numpy("total"), A * n + B)


checks.run()
http.client.close()
LOOP.run_until_complete(http_aio.client._client.close())
