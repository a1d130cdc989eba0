"""gRPC server of one worker: V2, health and reflection on one port, on the worker's event loop."""

import asyncio
import math
import ssl
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse, HealthListResponse
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from quadriga.proto.access import Gate, OpenGate, admit
from quadriga.proto.errors import Forbidden, KeysNotRead, NotFound, Unauthenticated
from quadriga.proto.grpc.http2 import Http2Server, Limits
from quadriga.proto.grpc.messages import POOL, REPOSITORY_SERVICE, SERVICE
from quadriga.proto.grpc.service import (
    HEALTH_SERVICE,
    MAX_STRANGERS,
    AccessHandler,
    CallServices,
    GrpcService,
)
from quadriga.proto.http.intake import Intake
from quadriga.proto.messages import Serving
from quadriga.proto.request import Accounting, current_caller
from quadriga.quoting import MAX_MODEL_NAME, quoted

WATCH_INTERVAL_S = 0.1
"""Seconds between two checks of a watched state."""

IDLE_TIMEOUT_S = 75.0
"""Seconds after which a connection without calls is closed, as over HTTP; clients open another by themselves."""


class GrpcServer:
    """Accepts connections on a port shared with the other workers.

    Requests larger than `max_message_bytes` and more than `max_connections` calls at once of callers with a key are refused
    with RESOURCE_EXHAUSTED; responses have no limit. A connection has at most `quadriga.proto.grpc.http2.MAX_STREAMS` calls at a time. Connections
    are closed that do not begin to speak in `handshake_timeout_s`, have no calls for `idle_timeout_s`, or whose client reads no
    answer or is gone without a word. What arrived of messages is counted by the intake, which has their time, too.
    """

    def __init__(
        self,
        serving: Serving,
        *,
        server_version: str,
        max_message_bytes: int,
        max_connections: int,
        intake: Intake,
        request_timeout_s: float = math.inf,
        max_connection_age_s: float = 0.0,
        handshake_timeout_s: float = 15.0,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        gate: Gate | None = None,
        accounting: Accounting | None = None,
    ) -> None:
        shared = CallServices(intake, max_connections, accounting)
        self._service = GrpcService(
            serving, server_version, shared=shared, request_timeout_s=request_timeout_s
        )
        self._health = Health(serving)
        limits = Limits(
            max_message_bytes=max_message_bytes,
            max_connections=max_connections,
            handshake_timeout_s=handshake_timeout_s,
            idle_timeout_s=idle_timeout_s,
            max_age_s=max_connection_age_s,
        )
        services = AccessHandler(gate or OpenGate(), shared)
        self._server = Http2Server(services, limits, intake)
        for name, handlers in self._service.handlers.items():
            services.add_registered_method_handlers(name, handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, services)
        _add_reflection(services)

    async def start(self, address: str, tls: ssl.SSLContext | None = None) -> int:
        """Listen on `host:port`, with TLS if there is a context of it; return the port.

        Raises:
            OSError: The address cannot be bound.
        """
        return await self._server.start(address, tls)

    def refuse_connections(self) -> None:
        """Take no more connections, so that clients that open one find another server; open ones go on."""
        self._server.close_listener()

    async def stop(self, grace_s: float) -> None:
        """End the streams, tell clients to go elsewhere, and finish running calls within `grace_s` seconds."""
        self._service.close()
        self._health.close()
        await self._server.stop(grace_s)


def _add_reflection(services: AccessHandler) -> None:
    """Let clients ask for the descriptors of all services."""
    reflected = [SERVICE, REPOSITORY_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME]
    for module in (health_pb2, reflection_pb2):
        POOL.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
        reflection.aio.ReflectionServicer(reflected, pool=POOL), services
    )


class Health:
    """RPCs of grpc.health.v1: whether the server, its service and each model are ready.

    Source: gRPC, health checking protocol.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._closing = asyncio.Event()
        self._strangers = 0

    def close(self) -> None:
        """End the watches."""
        self._closing.set()

    def _state(self, name: str) -> Any:
        if len(name) > MAX_MODEL_NAME:
            return HealthCheckResponse.SERVICE_UNKNOWN
        if name in ("", SERVICE):
            ready = self._serving.unready_reason() is None
        else:
            try:  # whoever may not use a model does not learn whether it is there
                admit(current_caller(), "infer")
                ready = self._serving.model_unready_reason(name, None) is None
            except KeysNotRead:
                ready = False
            except (NotFound, Unauthenticated, Forbidden):
                return HealthCheckResponse.SERVICE_UNKNOWN
        return HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the RPC
        """Return the state of the server, its service or a model."""
        name = request.service
        state = self._state(name)
        if state == HealthCheckResponse.SERVICE_UNKNOWN:
            text = f"expected the server, {SERVICE} or a model, got {quoted(name, 140)}"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return HealthCheckResponse(status=state)

    async def List(self, _: Any, __: Any) -> Any:  # noqa: N802 - the name of the RPC
        """Return the states of the server, its service and all models."""
        names = ["", SERVICE, *(status.name for status in self._serving.model_statuses())]
        states = {name: HealthCheckResponse(status=self._state(name)) for name in names}
        return HealthListResponse(statuses=states)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - the name of the RPC
        """Stream a state: at once, and whenever it changes."""
        is_stranger = not current_caller().rights
        if is_stranger and self._strangers >= MAX_STRANGERS:
            text = f"expected at most {MAX_STRANGERS} watches without a key, got more: use Check"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._strangers += is_stranger
        name = request.service  # a copy, each time that it is asked for
        published = None
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while not closing.done():
                state = self._state(name)
                if state != published:
                    await context.write(HealthCheckResponse(status=state))
                    published = state
                await asyncio.wait((closing,), timeout=WATCH_INTERVAL_S)
        finally:
            closing.cancel()
            self._strangers -= is_stranger
