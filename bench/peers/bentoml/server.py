"""BentoML: a worker for each core, as its documents advise for models on a CPU; each runs one request at a time.

`python server.py` starts `bentoml serve server:Vision`, as people do.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import bentoml
import numpy as np
import numpy.typing as npt
from bentoml.validators import DType
from peer_models import decode_base64, load_models, peer_settings


@bentoml.service(
    workers="cpu_count",
    traffic={"timeout": 60},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Vision:
    """All models; the body names the model."""

    def __init__(self) -> None:
        self.models = load_models(peer_settings()[0])

    @bentoml.api
    def predict(
        self, model: str, data: Annotated[npt.NDArray[np.float32], DType("float32")]
    ) -> dict[str, Any]:
        """Answer the scores of a tensor."""
        return {"scores": self.models[model].scores(data).tolist()}

    @bentoml.api
    def recognise(self, model: str, image: str) -> dict[str, Any]:
        """Answer what is in an image in base64."""
        result: dict[str, Any] = self.models[model].recognise(decode_base64(image))
        return result


if __name__ == "__main__":
    port = str(peer_settings()[1])
    folder = Path(__file__).parent
    words = ["serve", "server:Vision", "--host", "127.0.0.1", "--port", port]
    os.execv(
        sys.executable,
        [sys.executable, "-m", "bentoml", *words, "--working-dir", str(folder)],
    )
