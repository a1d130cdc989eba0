"""A model in Triton's Python backend: a tensor gives scores, an image in base64 gives what is in it."""

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton
from peer_models import decode_base64, load_model, peer_settings


class TritonPythonModel:
    """One instance of a model, in a process of its own."""

    def initialize(self, described: dict[str, str]) -> None:
        """Load the graph."""
        name = described["model_name"].removesuffix("-image")
        self.takes_images = described["model_name"].endswith("-image")
        self.model = load_model(Path(peer_settings()[0], name, "model.onnx"))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer requests."""
        return [triton.InferenceResponse(self._answer(request)) for request in requests]

    def _answer(self, request: Any) -> list[Any]:
        tensor = triton.get_input_tensor_by_name(request, "image").as_numpy()
        if not self.takes_images:
            return [triton.Tensor("scores", self.model.scores(tensor))]
        result = self.model.recognise(decode_base64(tensor[0]))
        return [
            triton.Tensor(name, np.array(values, object if name == "labels" else np.float32))
            for name, values in result.items()
        ]
