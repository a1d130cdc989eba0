"""What limits the requests of one key, as the wire sees it; the texts of headers for it.

Source: draft-ietf-httpapi-ratelimit-headers-10 (`RateLimit-Policy`, `RateLimit`), RFC 6585, section 4 (429), RFC 9110,
section 10.2.3 (`Retry-After`).
"""

from collections.abc import Sequence
from typing import Protocol

RateHeaders = Sequence[tuple[bytes, bytes]]


UNKNOWN_SIZE = -1
"""Size of a body that is not announced."""


class Quota(Protocol):
    """The limits of a key, and what it has used of them; methods are safe to call from any thread."""

    @property
    def is_limited(self) -> bool:
        """Whether anything is limited; else requests are counted only."""

    def check(self) -> None:
        """Check, without counting anything, that a request may begin now; raises LimitReached if not."""

    def begin(self, body_bytes: int = 0) -> RateHeaders:
        """Count a request that begins; return headers for its answer.

        Args:
            body_bytes: Bytes of its body; `UNKNOWN_SIZE` if they are counted as they arrive.

        Raises:
            LimitReached: The key has used up what it has, and nothing was counted.
            TooLarge: The body alone is larger than what the key has for a whole period.
        """

    def end(self) -> None:
        """Count the end of a request that had begun."""

    def resume(self) -> None:
        """Count a request that had ended as one at once with others again, up to its next end: its answer has not left."""

    def add_message(self, body_bytes: int) -> None:
        """Count a further request within one that has begun, as in a stream; raises as `begin`."""

    def take_bytes(self, count: int) -> None:
        """Count the bytes of a message that came after its request had begun; raises as `begin`."""

    def add_bytes(self, count: int) -> None:
        """Count bytes of a body that arrived without being announced."""

    def check_storing(self) -> None:
        """Check that a request may store anything now; raises LimitReached if not."""

    def add_stored(self, count: int) -> None:
        """Count bytes of images and records that were stored."""

    def check_export(self) -> None:
        """Check that the key may export anything now; raises LimitReached if not."""

    def take_export(self, count: int) -> None:
        """Count the bytes of an export that is downloaded; raises as `begin`."""

    def check_jobs(self, unfinished: int) -> None:
        """Check that the key may submit a job, given its jobs that wait or run; raises LimitReached if not."""
