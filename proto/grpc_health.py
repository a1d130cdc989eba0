"""grpc.health.v1: whether the server, its service and each model are ready.

Source: gRPC, health checking protocol.
"""

import asyncio
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListResponse,
)

from proto.errors import ModelNotReady, NotFound
from proto.grpc_messages import SERVICE
from proto.messages import Serving

HEALTH_SERVICE = "grpc.health.v1.Health"

WATCH_S = 0.1
"""How often a watched state is looked at."""


class Health:
    """Answers the health RPCs; a generic handler of grpc.

    Args:
        serving: The server behind.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._closing = asyncio.Event()

    def service(self, details: Any) -> Any:
        """Give what answers a method; None where it is of another service."""
        read, write = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
        if details.method == f"/{HEALTH_SERVICE}/Check":
            return grpc.unary_unary_rpc_method_handler(self._check, read, write)
        if details.method == f"/{HEALTH_SERVICE}/Watch":
            return grpc.unary_stream_rpc_method_handler(self._watch, read, write)
        if details.method == f"/{HEALTH_SERVICE}/List":
            write = HealthListResponse.SerializeToString
            return grpc.unary_unary_rpc_method_handler(self._list, None, write)
        return None

    def close(self) -> None:
        """End the watches."""
        self._closing.set()

    def _state(self, name: str) -> Any:
        if name in ("", SERVICE):
            ready = self._serving.unready_reason() is None
        else:
            try:
                self._serving.model_info(name, None)
                ready = True
            except ModelNotReady:
                ready = False
            except NotFound:
                return HealthCheckResponse.SERVICE_UNKNOWN
        return HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING

    async def _check(self, asked: Any, context: Any) -> Any:
        state = self._state(asked.service)
        if state == HealthCheckResponse.SERVICE_UNKNOWN:
            text = f"expected the server, {SERVICE} or a model, got {asked.service!r:.140}"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return HealthCheckResponse(status=state)

    async def _list(self, _: bytes, __: Any) -> Any:
        names = ["", SERVICE, *(found.name for found in self._serving.model_statuses())]
        states = {name: HealthCheckResponse(status=self._state(name)) for name in names}
        return HealthListResponse(statuses=states)

    async def _watch(self, asked: Any, context: Any) -> None:
        told = None
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while not closing.done():
                state = self._state(asked.service)
                if state != told:
                    await context.write(HealthCheckResponse(status=state))
                    told = state
                await asyncio.wait((closing,), timeout=WATCH_S)
        finally:
            closing.cancel()
