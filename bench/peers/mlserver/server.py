"""MLServer: a custom runtime behind `mlserver start`, over V2 in JSON and over gRPC.

`python server.py` writes the settings that MLServer reads, and starts it, without metrics and the log of requests. It is
measured twice: with the models in the process of the server, which takes the least CPU, and with a worker for each core, as
its documents advise for throughput.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
from mlserver import MLModel
from mlserver.codecs import Base64Codec, NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse
from peer_models import load_model, model_names, peer_settings


class Vision(MLModel):
    """One model over V2: a tensor gives scores, an image in base64 gives what is in it."""

    async def load(self) -> bool:
        """Load the graph."""
        self.model = load_model(Path(self.settings.parameters.uri))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        (tensor,) = payload.inputs
        if tensor.datatype != "BYTES":
            scores = self.model.scores(NumpyCodec.decode_input(tensor))
            outputs = [NumpyCodec.encode_output("scores", scores)]
        else:
            (jpeg,) = Base64Codec.decode_input(tensor)
            result = self.model.recognise(jpeg)
            outputs = [StringCodec.encode_output("labels", result.pop("labels"), use_bytes=False)]
            for name, values in result.items():
                outputs.append(NumpyCodec.encode_output(name, np.array(values, np.float32)))
        return InferenceResponse(model_name=self.name, outputs=outputs)


if __name__ == "__main__":
    models, http_port, grpc_port = peer_settings()
    settings = {
        "host": "127.0.0.1",
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_endpoint": None,
        "debug": False,
        "parallel_workers": int(os.environ["PEER_WORKERS"]),
    }
    Path("settings.json").write_text(json.dumps(settings))
    for name in model_names(models):
        uri = str(Path(models, name, "model.onnx").resolve())
        Path(name).mkdir()
        described = {"name": name, "implementation": "server.Vision", "parameters": {"uri": uri}}
        Path(name, "model-settings.json").write_text(json.dumps(described))
    program = Path(sys.executable).with_name("mlserver")
    os.execv(program, [str(program), "start", "."])
