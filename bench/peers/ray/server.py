"""Ray Serve: a replica for each core, in the set-up that its documents name for throughput.

`RAY_SERVE_THROUGHPUT_OPTIMIZED` runs the handler on the replica's own event loop and buffers its log, which took less CPU a
request in each of four pairs. The dashboard and usage statistics are off: they would take CPU that no request asked for.
"""

import os
import signal
from typing import Any

os.environ.setdefault("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from peer_models import CORES, answer, load_models, peer_settings
from ray import serve
from ray.serve.schema import LoggingConfig
from starlette.requests import Request


@serve.deployment(num_replicas=CORES, ray_actor_options={"num_cpus": 1}, max_ongoing_requests=64)
class Vision:
    """All models; the body names the model."""

    def __init__(self) -> None:
        self.models = load_models(peer_settings()[0])

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Answer one request."""
        return answer(self.models, await request.json())


if __name__ == "__main__":
    ray.init(
        num_cpus=CORES, include_dashboard=False, log_to_driver=False, object_store_memory=256 << 20
    )
    serve.start(
        http_options={"host": "127.0.0.1", "port": peer_settings()[1]},
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    )
    serve.run(Vision.bind(), route_prefix="/")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()
