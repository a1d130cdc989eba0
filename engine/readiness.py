"""The readiness of all workers: one byte per worker, in memory that they share.

A server of several workers is ready when all are, for a request may come to any of them.
"""

import mmap
import os

_LOADING, _LOADED = 0, 1


class ReadinessFlags:
    """One flag per worker: whether its models are loaded."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self.descriptor = descriptor
        self._workers = workers
        self._bytes = mmap.mmap(descriptor, workers)

    @classmethod
    def create(cls, workers: int) -> "ReadinessFlags":
        """Create flags with no worker ready; child processes inherit their descriptor."""
        descriptor = os.memfd_create("quadriga-readiness", 0)
        os.ftruncate(descriptor, workers)
        return cls(descriptor, workers)

    def mark(self, worker: int, *, loaded: bool) -> None:
        """Set the flag of a worker."""
        self._bytes[worker] = _LOADED if loaded else _LOADING

    def unready_reason(self) -> str | None:
        """Name the workers that are not ready; None when all are."""
        loading = ", ".join(
            str(worker) for worker in range(self._workers) if self._bytes[worker] != _LOADED
        )
        return f"expected every worker to be ready, not yet: {loading}" if loading else None
