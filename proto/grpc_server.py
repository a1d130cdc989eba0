"""gRPC server of one worker: V2, health and reflection on one port, on the worker's event loop."""

import asyncio
import math
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse, HealthListResponse
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from quadriga.proto.access import Gate, OpenGate, admit, current_caller
from quadriga.proto.audit import Audit
from quadriga.proto.errors import Forbidden, KeysNotRead, NotFound, Unauthenticated
from quadriga.proto.grpc_access import HEALTH_SERVICE, AccessHandler, CallServices
from quadriga.proto.grpc_arrival import MAX_STRANGERS
from quadriga.proto.grpc_messages import POOL, REPOSITORY_SERVICE, SERVICE
from quadriga.proto.grpc_service import GrpcService, StreamForm
from quadriga.proto.grpc_tls import TlsTexts, server_credentials
from quadriga.proto.intake import Intake
from quadriga.proto.messages import Serving
from quadriga.proto.outcomes import RequestCounter
from quadriga.proto.request_facts import RequestObserver
from quadriga.proto.sockets import listening_sockets
from quadriga.quoting import MAX_MODEL_NAME, quoted

WATCH_INTERVAL_S = 0.1
"""Seconds between two checks of a watched state."""

IDLE_TIMEOUT_S = 75.0
"""Seconds after which a connection without calls is closed, as over HTTP; clients open another by themselves."""

MAX_STREAMS = 100
"""Calls of a connection at a time (RFC 9113, section 6.5.2, recommends no fewer); further ones wait in the client. Answers
that a client does not read stay in memory for a while, refusals of strangers among them."""

_IDENTITY_ALONE = 1
"""Bits of the encodings of messages that are taken: none but the plain one."""

KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 60, 20
"""Seconds between two keepalive pings to a client with calls, and the time that it has to answer each."""

HOLD_S, SENT_S = 0.1, 0.02
"""Time for which answers are held before a GOAWAY, and that the GOAWAY has to leave before them."""

MIN_PING_INTERVAL_MS = 4000
"""Shortest time between two keepalive pings of a client: every 5 s are welcome, and a ping may be early by the jitter of
the network. grpc itself ends connections whose pings come more often than every 5 minutes."""


class GrpcServer:
    """Accepts connections on a port shared with the other workers.

    Requests larger than `max_message_bytes` and more than `max_connections` calls at once of callers with a key are refused
    with RESOURCE_EXHAUSTED; responses have no limit. A connection has at most `MAX_STREAMS` calls at a time. Connections
    are closed that do not begin to speak in `handshake_timeout_s`, have no calls for `idle_timeout_s`, or whose client reads no
    answer or is gone without a word. grpc offers no limit of the bytes of messages that are still arriving: what arrived is
    counted by the intake, which has their time, too.
    """

    def __init__(
        self,
        serving: Serving,
        *,
        server_version: str,
        max_message_bytes: int,
        max_connections: int,
        intake: Intake,
        stream_form: StreamForm = "triton",
        request_timeout_s: float = math.inf,
        max_connection_age_s: float = 0.0,
        allows_compression: bool = True,
        handshake_timeout_s: float = 15.0,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        gate: Gate | None = None,
        audit: Audit | None = None,
        counter: RequestCounter | None = None,
        observer: RequestObserver | None = None,
    ) -> None:
        shared = self._shared = CallServices(
            intake, max_connections, audit=audit, counter=counter, observer=observer
        )
        self._departures = shared.departures
        self._service = GrpcService(
            serving,
            server_version,
            stream_form,
            shared=shared,
            request_timeout_s=request_timeout_s,
        )
        self._health = Health(serving)
        options = {
            "grpc.so_reuseport": 1,
            "grpc.max_receive_message_length": max_message_bytes,
            "grpc.max_send_message_length": -1,
            "grpc.max_concurrent_streams": min(max_connections, MAX_STREAMS),
            "grpc.max_allowed_incoming_connections": max_connections,
            "grpc.server_handshake_timeout_ms": math.ceil(handshake_timeout_s * 1000),
            "grpc.max_connection_idle_ms": math.ceil(idle_timeout_s * 1000),
            "grpc.keepalive_time_ms": KEEPALIVE_S * 1000,
            "grpc.keepalive_timeout_ms": KEEPALIVE_TIMEOUT_S * 1000,
            "grpc.keepalive_permit_without_calls": 1,
            "grpc.http2.min_ping_interval_without_data_ms": MIN_PING_INTERVAL_MS,
        }
        # Compressed calls end with UNIMPLEMENTED then, before a message is decompressed.
        if not allows_compression:
            options["grpc.compression_enabled_algorithms_bitset"] = _IDENTITY_ALONE
        if max_connection_age_s:  # grpc varies it by a tenth; calls under way are finished
            options["grpc.max_connection_age_ms"] = round(max_connection_age_s * 1000)
        services = AccessHandler(gate or OpenGate(), shared)
        self._server: Any = grpc.aio.server(options=list(options.items()))
        self._server.add_generic_rpc_handlers((services,))
        services.add_generic_rpc_handlers((self._service,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, services)
        _add_reflection(services)

    async def start(self, address: str, tls: Callable[[], TlsTexts] | None = None) -> None:
        """Listen on `host:port`, with TLS if `tls` returns its texts; raises RuntimeError if the port is in use."""
        if tls is None:
            self._port = self._server.add_insecure_port(address)
        else:
            self._port = self._server.add_secure_port(address, server_credentials(tls))
        self._departures.port = self._port
        await self._server.start()

    def refuse_connections(self) -> None:
        """Take no more connections, so that clients that open one find another server; open ones go on.

        grpc itself does so only together with its end, from which on calls that arrive are cancelled.
        """
        for listener in listening_sockets(self._port):
            with listener, suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)

    async def stop(self, grace_s: float) -> None:
        """End the streams, tell clients to go elsewhere, and finish running calls within `grace_s` seconds.

        From its GOAWAY on, grpc cancels calls that still arrive. So answers are held for a moment before it: clients that
        wait for one send nothing meanwhile, and read the GOAWAY first. Calls that a client sends without waiting for others
        may still be cancelled in the millisecond that the GOAWAY travels.

        Source: RFC 9113, section 6.8.
        """
        self._service.close()
        self._health.close()
        released = self._shared.released = asyncio.Event()
        await asyncio.sleep(min(HOLD_S, grace_s / 2))
        ending = asyncio.ensure_future(self._server.stop(grace_s))
        await asyncio.sleep(min(SENT_S, grace_s / 2))
        released.set()
        await ending


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
