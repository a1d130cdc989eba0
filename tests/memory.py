"""How much memory work takes, which does not depend on how fast or busy the machine is."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def taking_at_most(limit_bytes: int) -> Iterator[None]:
    """Fail if what happens in the block holds more memory at a time than before it."""
    tracemalloc.start()
    try:
        yield
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes <= limit_bytes
