"""A client of the gRPC port, for tests: RPCs by the names of their methods, and requests to send."""

import grpc

from quadriga.proto.grpc.messages import POOL, SERVICE, message_class


class Client:
    """A channel, and calls by the names of the methods."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        options = {
            "grpc.max_send_message_length": -1,
            "grpc.max_receive_message_length": -1,
            "grpc.use_local_subchannel_pool": 1,
        }
        arguments = list(options.items())
        self.channel = (
            grpc.insecure_channel(address, arguments)
            if credentials is None
            else grpc.secure_channel(address, credentials, arguments)
        )

    def call(self, method, /, request=None, *, service=SERVICE, timeout=60, **fields):
        """Call an RPC with a message, bytes, or the fields of its message."""
        return self.call_whole(method, request, service=service, timeout=timeout, **fields)[0]

    def call_whole(
        self, method, /, request=None, *, service=SERVICE, timeout=60, key=None, **fields
    ):
        """Call an RPC, maybe with an idempotency key; gives the answer and the call."""
        described = POOL.FindServiceByName(service).methods_by_name.get(method)
        if request is None:
            request = message_class(described.input_type)(**fields)
        body = request if isinstance(request, bytes) else request.SerializeToString()
        read = None if described is None else message_class(described.output_type).FromString
        rpc = self.channel.unary_unary(f"/{service}/{method}", None, read)
        metadata = () if key is None else (("idempotency-key", key),)
        return rpc.with_call(body, timeout=timeout, metadata=metadata)

    def stream(self, requests, answer="ModelStreamInferResponse", metadata=None):
        """Open ModelStreamInfer."""
        rpc = self.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            message_class("ModelInferRequest").SerializeToString,
            message_class(answer).FromString,
        )
        return rpc(requests, timeout=60, metadata=metadata)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


def image_request(image, model="shapes-detector", **parameters):
    request = message_class("ModelInferRequest")(model_name=model)
    tensor = request.inputs.add(name="picture", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(image)
    for name, text in parameters.items():
        tensor.parameters[name].string_param = text
    return request


def rows_request(array, *, raw=True, model="doubling"):
    request = message_class("ModelInferRequest")(model_name=model)
    tensor = request.inputs.add(name="x", datatype="FP32", shape=array.shape)
    if raw:
        request.raw_input_contents.append(array.tobytes())
    else:
        tensor.contents.fp32_contents.extend(array.ravel().tolist())
    return request
