"""LitServe: a worker for each core, and its queue over ZeroMQ.

Its documents advise several workers a device, and `fast_queue` for many small requests. Each worker reads the body, runs the
model and writes the answer, one request at a time; before them stand as many processes for HTTP, its default.
"""

from typing import Any

import litserve
from fastapi import Request
from peer_models import CORES, answer, load_models, peer_settings


class Vision(litserve.LitAPI):
    """All models behind one path; the body names the model."""

    def setup(self, device: str) -> None:
        """Load the models in a worker."""
        del device
        self.models = load_models(peer_settings()[0])

    def decode_request(self, request: Request) -> Any:
        """Leave the body as it is."""
        return request

    def predict(self, body: Any) -> Any:
        """Run a model."""
        return answer(self.models, body)

    def encode_response(self, output: Any) -> Any:
        """Leave the answer as it is."""
        return output


if __name__ == "__main__":
    server = litserve.LitServer(
        Vision(), accelerator="cpu", workers_per_device=CORES, fast_queue=True, timeout=60
    )
    server.run(
        host="127.0.0.1",
        port=peer_settings()[1],
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
