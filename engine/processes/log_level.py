"""The level of the log while a server runs: each process follows what an administrator sets."""

import logging

from quadriga.engine.config.server_settings import LogLevel
from quadriga.engine.measures.readiness import ProcessStates


class FollowedLevel:
    """The level of a process.

    Args:
        states: Where the level of all processes is set.
        configured: The level of the settings.
    """

    def __init__(self, states: ProcessStates, configured: LogLevel) -> None:
        self._states = states
        self._configured = configured
        self._current = configured

    def look(self) -> None:
        """Take the level that is set now; called twice a second or more often."""
        level = self._states.log_level or self._configured
        if level != self._current:
            self._current = level
            logging.getLogger().setLevel(level.upper())
