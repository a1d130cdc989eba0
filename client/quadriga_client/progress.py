"""A line on stderr that says how far a long call is."""

import sys
import time
from collections.abc import Callable

FIRST_SHOWN_S = 0.5
"""Time that a call takes before its line appears, unless it was asked for."""

_SHOWN_EVERY_S = 0.25


class ProgressLine:
    """A line that is written over itself.

    Args:
        is_shown: Whether it is shown; None for a call that takes long while stderr is a terminal.
    """

    def __init__(self, is_shown: bool | None) -> None:  # noqa: FBT001 - as the argument of the calls
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._is_shown = is_terminal if is_shown is None else is_shown
        self._is_wanted = is_shown is True
        self._next_s = time.monotonic() + (0.0 if self._is_wanted else FIRST_SHOWN_S)
        self._has_text = False

    def show(self, text: Callable[[], str]) -> None:
        """Show a text, a few times a second at most."""
        if self._is_shown and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _SHOWN_EVERY_S
            self._write(text(), "")

    def end(self, text: Callable[[], str]) -> None:
        """Show the last text, and end the line."""
        if self._is_wanted or self._has_text:
            self._write(text(), "\n")

    def _write(self, text: str, end: str) -> None:
        self._has_text = True
        print(f"\r{text}   ", end=end, file=sys.stderr, flush=True)  # noqa: T201
