"""What each RPC needs, and the interceptor that admits the callers of all of them, health and reflection included."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from quadriga.proto.access import Gate, Need, admit, set_current_caller
from quadriga.proto.errors import ProtocolError
from quadriga.proto.grpc_messages import REPOSITORY_SERVICE, SERVICE

HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_SERVICE = "grpc.reflection.v1alpha.ServerReflection"

_NEEDS_BY_SERVICE: dict[str, dict[str, Need]] = {
    SERVICE: {
        "ServerLive": "nothing",
        "ServerReady": "nothing",
        "ServerMetadata": "key",
        "ModelReady": "infer",
        "ModelMetadata": "infer",
        "ModelInfer": "infer",
        "ModelStreamInfer": "infer",
        "ModelConfig": "infer",
        "ModelStatistics": "infer",
        "RepositoryIndex": "key",
        "RepositoryModelLoad": "operate",
        "RepositoryModelUnload": "operate",
    },
    REPOSITORY_SERVICE: {
        "RepositoryIndex": "key",
        "RepositoryModelLoad": "operate",
        "RepositoryModelUnload": "operate",
    },
    HEALTH_SERVICE: {"Check": "nothing", "Watch": "nothing", "List": "key"},
    REFLECTION_SERVICE: {"ServerReflectionInfo": "key"},
}

NEEDS: dict[str, Need] = {
    f"/{service}/{name}": need
    for service, methods in _NEEDS_BY_SERVICE.items()
    for name, need in methods.items()
}
"""What a caller must have, by the full name of an RPC; an RPC that is not listed needs the rights of an administrator."""


class AccessInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Refuses calls whose caller has not what the RPC needs, before their message is read."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the handler of a call: the RPC's, or one that refuses the call."""
        metadata = {
            name: value if isinstance(value, bytes) else value.encode()
            for name, value in handler_call_details.invocation_metadata or ()
        }
        caller = self._gate.identify(lambda name: metadata.get(name.decode()))
        try:
            admit(caller, NEEDS.get(handler_call_details.method, "admin"))
        except ProtocolError as error:
            refusal = error

            async def refuse(_: object, context: Any) -> None:
                await context.abort(grpc.StatusCode[refusal.grpc_code], str(refusal))

            return grpc.stream_stream_rpc_method_handler(refuse)
        set_current_caller(caller)
        return await continuation(handler_call_details)
