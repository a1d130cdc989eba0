"""HTTP routes of the level of the log, which an administrator may change while the server runs."""

import logging
from collections.abc import Callable

import msgspec
from litestar import get, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import RawBody

from quadriga.engine.api.caller_scope import check_sees_everything
from quadriga.engine.api.openapi_bodies import json_body
from quadriga.engine.api.responses import TOO_LARGE, error_response, options_route
from quadriga.engine.config.server_settings import LogLevel
from quadriga.engine.measures.readiness import ProcessStates
from quadriga.proto.audit import note_target
from quadriga.proto.errors import InvalidRequest
from quadriga.store.errors import JSON_ERRORS


class LogLevelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Level to set for all processes of the server, until it ends; null for that of the settings."""

    level: LogLevel | None


class LogLevelState(msgspec.Struct, frozen=True):
    """Level of the log of all processes."""

    level: LogLevel
    configured: LogLevel
    """Level of the settings, which the server has again after its next start."""


_PATH = "/api/log-level"
_BODY = json_body(
    LogLevelRequest, level="debug, info, warning, error, or null for that of the settings"
)
_UNREADABLE = error_response("There is no such level")


def log_level_routes(
    configured: LogLevel, read_states: Callable[[], ProcessStates | None]
) -> list[HTTPRouteHandler]:
    """Return the handlers that read and set the level.

    Args:
        configured: Level of the settings.
        read_states: Returns where all processes find it; None for a process without others.
    """

    def state() -> LogLevelState:
        check_sees_everything("the log is")
        states = read_states()
        return LogLevelState((states and states.log_level) or configured, configured)

    @get(_PATH, sync_to_thread=False, need="admin")
    def read_log_level() -> LogLevelState:
        """Return the level of the server's log."""
        return state()

    @put(
        _PATH,
        operation_class=_BODY,
        sync_to_thread=False,
        responses={400: _UNREADABLE, 413: TOO_LARGE},
        need="admin",
    )
    def set_log_level(body: RawBody) -> LogLevelState:
        """Set the level of the log of all processes of this server, until it ends."""
        check_sees_everything("the log is")
        try:
            request = msgspec.json.decode(body, type=LogLevelRequest)
        except JSON_ERRORS as error:
            raise InvalidRequest(
                f"expected the body to be a JSON object with level, got: {error}"
            ) from error
        level = request.level or configured
        note_target(level)
        if (states := read_states()) is not None:
            states.log_level = request.level
        logging.getLogger().setLevel(level.upper())  # the others follow within half a second
        return state()

    return [options_route(_PATH, "GET", "PUT"), read_log_level, set_log_level]
