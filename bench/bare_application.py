"""The least that serves a model: a bare ASGI application and grpc.aio, the yardstick of `path_cost.py`.

uvicorn with httptools and uvloop, no framework; V2 as binary tensors, as JSON, over gRPC, and as a JPEG in base64. It
trusts its clients: it checks, limits, measures and stores nothing. It does not change with the engine, and
shares nothing with it but the messages of gRPC.

python bench/bare_application.py MODELS THREADS prints its two ports; 0 threads runs the model on the event loop.
"""

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import uvicorn
import uvloop
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from peer_models import Classifier, decode_base64

SERVICE = "inference.GRPCInferenceService"
DESCRIPTORS = Path(__file__).parents[1] / "proto" / "open_inference.binpb"


@cache
def message_class(name: str) -> Any:
    """Make the class of a message of V2 over gRPC."""
    pool: Any = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{name}"))


class Input(msgspec.Struct):
    """Input of a request in JSON."""

    name: str
    shape: list[int]
    datatype: str
    data: list[float | str] | None = None


class Body(msgspec.Struct):
    """Request in JSON."""

    inputs: list[Input]


_decode = msgspec.json.Decoder(Body).decode
_encode = msgspec.json.Encoder().encode


class BareModel:
    """One model with the bodies of V2, as little as can be."""

    def __init__(self, path: Path) -> None:
        self._model = Classifier(path)
        self.name = path.parent.name
        self.scores = self._model.scores

    def answer_binary(self, body: bytes, json_bytes: int) -> tuple[bytes, int]:
        """Answer a request whose tensor follows its JSON; return the body, and the length of its JSON."""
        shape = _decode(body[:json_bytes]).inputs[0].shape
        tensor = np.frombuffer(body, np.float32, offset=json_bytes).reshape(shape)
        scores = self.scores(tensor)
        raw = scores.tobytes()
        output = {"parameters": {"binary_data_size": len(raw)}}
        text = self._json(scores.shape, "scores", "FP32", output)
        return text + raw, len(text)

    def answer_json(self, body: bytes) -> bytes:
        """Answer a request with a tensor of numbers, or with an image in base64."""
        tensor = _decode(body).inputs[0]
        data: Any = tensor.data
        if tensor.datatype == "BYTES":
            best = self._model.recognise(decode_base64(data[0]))
            prediction = {"label": best["labels"][0], "score": best["scores"][0]}
            return self._json((1,), tensor.name, "BYTES", {"data": [[prediction]]})
        scores = self.scores(np.array(data, np.float32).reshape(tensor.shape))
        return self._json(scores.shape, "scores", "FP32", {"data": scores.ravel().tolist()})

    def answer_message(self, request: Any, response: Any) -> bytes:
        """Answer a request over gRPC with raw bytes."""
        shape = request.inputs[0].shape
        tensor = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(shape)
        scores = self.scores(tensor)
        response.model_name, response.model_version = self.name, "1"
        output = response.outputs.add(name="scores", datatype="FP32")
        output.shape.extend(scores.shape)
        response.raw_output_contents.append(scores.tobytes())
        return bytes(response.SerializeToString())

    def _json(
        self, shape: tuple[int, ...], output: str, datatype: str, rest: Mapping[str, Any]
    ) -> bytes:
        outputs = [{"name": output, "datatype": datatype, "shape": shape, **rest}]
        return _encode({"model_name": self.name, "model_version": "1", "outputs": outputs})


class BareApplication:
    """The application; with threads, each request runs in one of them."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._models = {path.parent.name: BareModel(path) for path in folder.glob("*/model.onnx")}
        self._pool = ThreadPoolExecutor(threads) if threads else None
        self._request_class = message_class("ModelInferRequest")
        self._response_class = message_class("ModelInferResponse")

    async def _run(self, task: Callable[..., Any], *arguments: Any) -> Any:
        if self._pool is None:
            return task(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._pool, task, *arguments)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer POST /v2/models/{name}/infer."""
        model = self._models[scope["path"].split("/")[3]]
        message = await receive()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        json_bytes = dict(scope["headers"]).get(b"inference-header-content-length")
        headers = [(b"content-type", b"application/json")]
        if json_bytes is None:
            answer = await self._run(model.answer_json, body)
        else:
            answer, length = await self._run(model.answer_binary, body, int(json_bytes))
            headers = [
                (b"content-type", b"application/octet-stream"),
                (b"inference-header-content-length", b"%d" % length),
            ]
        headers.append((b"content-length", b"%d" % len(answer)))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def service(self, details: Any) -> Any:
        """Return the handler of ModelInfer."""
        if details.method != f"/{SERVICE}/ModelInfer":
            return None
        return grpc.unary_unary_rpc_method_handler(self._infer)

    async def _infer(self, body: bytes, _: Any) -> Any:
        return await self._run(self._answer_message, body)

    def _answer_message(self, body: bytes) -> bytes:
        request = self._request_class.FromString(body)
        return self._models[request.model_name].answer_message(request, self._response_class())


def main() -> None:
    """Serve until killed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)

    async def serve() -> None:
        application = BareApplication(Path(sys.argv[1]), int(sys.argv[2]))
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((application,))
        grpc_port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        config = uvicorn.Config(
            application,
            http="httptools",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=600,
        )
        print(listener.getsockname()[1], grpc_port, flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])

    uvloop.run(serve())


if __name__ == "__main__":
    main()
