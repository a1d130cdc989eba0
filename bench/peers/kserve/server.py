"""KServe's Python SDK: custom models behind its server, over V2 in JSON, in binary, and over gRPC.

A worker for each core, as its documents offer for HTTP; gRPC stays in the first process. The models run on the event loop, as
those of its own runtimes do. Without latency logging, which would write a line for each request.
"""

from pathlib import Path
from typing import Any

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.utils.utils import generate_uuid
from peer_models import CORES, decode_base64, load_model, model_names, peer_settings


class Vision(Model):
    """One model over V2: a tensor gives scores, an image in base64 gives what is in it."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name)
        self._path = path
        self._model: Any = None
        self.ready = True

    async def predict(
        self, payload: InferRequest, headers: Any = None, response_headers: Any = None
    ) -> InferResponse:
        """Answer one request."""
        del headers, response_headers
        if self._model is None:  # workers get a copy of this object, and no session can be copied
            self._model = load_model(self._path)
        (tensor,) = payload.inputs
        if tensor.datatype != "BYTES":
            scores = self._model.scores(tensor.as_numpy())
            output = InferOutput("scores", list(scores.shape), "FP32")
            output.set_data_from_numpy(scores, binary_data=payload.use_binary_outputs)
            return InferResponse(
                generate_uuid(),
                self.name,
                [output],
                use_binary_outputs=payload.use_binary_outputs,
                requested_outputs=payload.request_outputs,
            )
        outputs = []
        for name, values in self._model.recognise(decode_base64(tensor.data[0])).items():
            array = np.array(values, object if name == "labels" else np.float32)
            datatype = "BYTES" if name == "labels" else "FP32"
            outputs.append(InferOutput(name, list(array.shape), datatype))
            outputs[-1].set_data_from_numpy(array, binary_data=False)
        return InferResponse(generate_uuid(), self.name, outputs)


if __name__ == "__main__":
    folder, http_port, grpc_port = peer_settings()
    models = [Vision(name, Path(folder, name, "model.onnx")) for name in model_names(folder)]
    ModelServer(
        http_port=http_port,
        grpc_port=grpc_port,
        workers=CORES,
        enable_latency_logging=False,
    ).start(models)
