"""The gRPC server of one worker: V2, health and reflection on one port, on the worker's event loop."""

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from proto.grpc_health import HEALTH_SERVICE, Health
from proto.grpc_messages import POOL, REPOSITORY_SERVICE, SERVICE
from proto.grpc_service import GrpcService, StreamForm
from proto.messages import Serving

REFUSING_S = 0.2
"""How long requests are refused before the port is closed: those that grpc has not handed over by then, it
answers with CANCELLED, which clients do not take for a reason to go elsewhere."""


class GrpcServer:
    """Accepts connections beside the other workers, who listen on the same port.

    Args:
        serving: The server behind.
        server_version: Of the server's metadata.
        max_message_bytes: Larger requests are refused with RESOURCE_EXHAUSTED; answers have no limit.
        stream_form: Whose messages ModelStreamInfer answers.
    """

    def __init__(
        self,
        serving: Serving,
        *,
        server_version: str,
        max_message_bytes: int,
        stream_form: StreamForm = "triton",
    ) -> None:
        self._service = GrpcService(serving, server_version, stream_form)
        self._health = Health(serving)
        options = {
            "grpc.so_reuseport": 1,
            "grpc.max_receive_message_length": max_message_bytes,
            "grpc.max_send_message_length": -1,
        }
        self._server: Any = grpc.aio.server(options=list(options.items()))
        self._server.add_generic_rpc_handlers((self._service, self._health))
        reflected = [SERVICE, REPOSITORY_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(reflected, self._server, _reflection_pool())

    async def start(self, address: str) -> None:
        """Listen.

        Args:
            address: `host:port`, of which no other program may hold the port.

        Raises:
            RuntimeError: It cannot be bound.
        """
        self._server.add_insecure_port(address)
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, and finish what runs within `grace_s` seconds."""
        self._service.close()
        self._health.close()
        await asyncio.sleep(REFUSING_S)
        await self._server.stop(grace_s)


def _reflection_pool() -> Any:
    """Give our messages, and those of the services beside."""
    for module in (health_pb2, reflection_pb2):
        POOL.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    return POOL
