"""Errors of a source of models; their texts are for clients, so they name neither its URL nor a host."""

import errno


class SourceError(OSError):
    """A source that cannot be read now, or holds too much; `detail` is for the log."""

    def __init__(self, reason: str, number: int = errno.EIO, *, detail: str = "") -> None:
        super().__init__(number, reason)
        self.detail = detail

    def __str__(self) -> str:
        """Return the reason with the detail."""
        return f"{self.strerror} ({self.detail})" if self.detail else str(self.strerror)


class ChangingSourceError(SourceError):
    """A source that was changed while it was read: what was read may be half of a new state."""

    def __init__(self) -> None:
        super().__init__("their source was changed while it was read", errno.EAGAIN)
