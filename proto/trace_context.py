"""The context of a trace that a request is part of, as its header `traceparent` has it.

Source: W3C, Trace Context, level 1 (recommendation of 2021), section 3.2.
"""

import re

import msgspec

TRACEPARENT = "traceparent"
TRACEPARENT_HEADER = TRACEPARENT.encode()
EVENT_HEADER = b"ce-traceparent"
"""Header with the attribute of a CloudEvent (CloudEvents, extension "distributed tracing")."""

SAMPLED = 1
"""Bit of the flags: whoever made the context records the trace."""

_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_MAX_BYTES = 512


class TraceContext(msgspec.Struct, frozen=True):
    """A trace, and the span of it from which something comes."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    flags: int = 0

    @property
    def is_sampled(self) -> bool:
        """Whether the trace is recorded."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        """The context as a header has it."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags & SAMPLED:02x}"


def parse_traceparent(value: bytes | str | None) -> TraceContext | None:
    """Read a header `traceparent`; return None for one that is not valid, which counts as absent.

    Of versions after 00 the parts of 00 are read.
    """
    if not value:
        return None
    value = value.encode(errors="replace") if isinstance(value, str) else value
    match = _FORM.fullmatch(value) if len(value) <= _MAX_BYTES else None
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == b"ff" or (version == b"00" and rest is not None):
        return None
    if not trace_id.strip(b"0") or not span_id.strip(b"0"):
        return None
    return TraceContext(trace_id.decode(), span_id.decode(), int(flags, 16))
