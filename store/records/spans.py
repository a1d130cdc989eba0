"""Spans of traces, as jobs and alerts see them: what records them stands above the store, and may be absent."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol

_carried: ContextVar[str] = ContextVar("traceparent", default="")


class Spans(Protocol):
    """Records spans of traces; contexts are values of `traceparent`, empty for none."""

    def job(self, kind: str, job_id: str, traceparent: str) -> AbstractContextManager[None]:
        """Record a job while the block runs."""

    def delivery(self, host: str, model: str, traceparent: str) -> AbstractContextManager[str]:
        """Record a delivery while the block runs, to which the context for its receiver is handed."""


class NoSpans:
    """Records nothing; what is delivered carries the context on that it came with."""

    def job(self, _: str, __: str, traceparent: str) -> AbstractContextManager[None]:
        """Carry the context on."""
        return carry_traceparent(traceparent)

    def delivery(self, _: str, __: str, traceparent: str) -> AbstractContextManager[str]:
        """Return a block to which the context is handed."""
        return nullcontext(traceparent)


@contextmanager
def carry_traceparent(traceparent: str) -> Iterator[None]:
    """Let what this thread makes within the block be part of a trace."""
    token = _carried.set(traceparent)
    try:
        yield
    finally:
        _carried.reset(token)


def carried_traceparent() -> str:
    """Return the context that this thread's work is part of; empty for none."""
    return _carried.get()
