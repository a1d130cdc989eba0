"""HTTP routes of the level of the log, which an administrator may change while the server runs."""

import logging
from collections.abc import Callable

import msgspec
from litestar import get, put
from litestar.handlers import HTTPRouteHandler

from quadriga.engine.api.caller_scope import check_sees_everything
from quadriga.engine.api.responses import error_response
from quadriga.engine.readiness import ProcessStates
from quadriga.engine.server_settings import LogLevel
from quadriga.proto.audit import note_target


class LogLevelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Level to set for all processes of the server, until it ends; null for that of the settings."""

    level: LogLevel | None


class LogLevelState(msgspec.Struct, frozen=True):
    """Level of the log of all processes."""

    level: LogLevel
    configured: LogLevel
    """Level of the settings, which the server has again after its next start."""


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

    @get("/api/log-level", sync_to_thread=False, need="admin")
    def read_log_level() -> LogLevelState:
        """Return the level of the server's log."""
        return state()

    @put(
        "/api/log-level",
        sync_to_thread=False,
        responses={400: error_response("There is no such level")},
        need="admin",
    )
    def set_log_level(data: LogLevelRequest) -> LogLevelState:
        """Set the level of the log of all processes of this server, until it ends."""
        check_sees_everything("the log is")
        level = data.level or configured
        note_target(level)
        if (states := read_states()) is not None:
            states.log_level = data.level
        logging.getLogger().setLevel(level.upper())  # the others follow within half a second
        return state()

    return [read_log_level, set_log_level]
