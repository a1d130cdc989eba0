"""A gRPC service that answers with what it was asked, without the wire."""

from quadriga.proto.errors import NotFound
from quadriga.proto.grpc import service as grpc_service
from quadriga.proto.grpc.messages import (
    POOL,
    SERVICE,
    decode_message,
    message_class,
    read_model_name,
)
from quadriga.proto.messages import (
    Duration,
    InferResponse,
    ModelInfo,
    ModelStatistics,
    ModelStatus,
    TensorInfo,
)
from quadriga.proto.request import RequestContext


class EchoGrpc:
    """Answers with what it was asked; knows one model."""

    loaded: tuple = ()
    task = "TENSOR"

    def infer(self, request):
        if request.model != "m":
            raise NotFound(f"expected the model m, got {request.model!r}")
        return InferResponse("m", "1", request.id, request.inputs)

    def model_info(self, name, version):
        if name != "m":
            raise NotFound(f"expected the model m, got {name!r}")
        inputs = [TensorInfo("x", "BYTES", (-1,)), TensorInfo("y", "FP16", (2, 3))]
        return ModelInfo(
            "m",
            "1",
            ["1"],
            platform="onnx_onnxv1",
            task=self.task,
            inputs=inputs,
            outputs=inputs,
        )

    def model_unready_reason(self, name, version):
        self.model_info(name, version)

    def model_statuses(self):
        states = ("READY", "LOADING", "FAILED", "UNLOADED")
        return [ModelStatus(state.lower(), "1", state) for state in states]

    def unready_reason(self):
        return None

    def statistics(self, name, version):
        return [
            ModelStatistics(
                name=name or "all",
                version=version or "1",
                last_inference_ms=5,
                inference_count=4,
                execution_count=3,
                success=Duration(2, 2000),
                compute_output=Duration(1, 2**63),
            )
        ]

    def load_model(self, name, config, files):
        self.loaded = (name, config, files)

    def unload_model(self, name):
        self.loaded = (name,)


def called(method, request, serving=None):
    """Answer a request as the service does, without the wire."""
    service = grpc_service.GrpcService(serving or EchoGrpc(), "0")
    row = POOL.FindServiceByName(SERVICE).methods_by_name[method]
    body = request if isinstance(request, bytes) else request.SerializeToString()
    if method == "ModelInfer":
        answer, _ = service._infer(read_model_name(body), body, RequestContext(), None)
    else:
        answer = service._answer(row, body)
    return decode_message(message_class(row.output_type), answer)
