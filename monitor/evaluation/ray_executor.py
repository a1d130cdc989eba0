"""Reads shards on the machines of a Ray cluster, an extra; each has to have Quadriga, and reach the data."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any, TypeVar

from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.store.blobs.files import open_blobs
from quadriga.store.inferences import Inferences
from quadriga.store.jobs import QUERY_S

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before it is imported: it calls nobody

try:
    import ray
except ImportError as error:
    raise EvaluationError(
        "expected Ray for evaluation on many machines, got none; pip install quadriga[ray]"
    ) from error

AHEAD = 4
"""Shards that wait or are read, for each processor of the cluster."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class Cluster:
    """A Ray cluster.

    Args:
        address: `ray` for one on this machine, for the time being; else as `ray.init` takes it, such as
            `ray://head:10001` or `auto`.

    Raises:
        EvaluationError: There is no cluster at this address.
    """

    def __init__(self, address: str) -> None:
        own = address == "ray"
        try:
            ray.init(
                None if own else address,
                include_dashboard=False if own else None,
                log_to_driver=False,
                ignore_reinit_error=True,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise EvaluationError(
                f"expected a Ray cluster at {address!r:.80}, got: {error}"
            ) from error
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # it has no types
        self._most = AHEAD * max(int(resources.get("CPU", 1)), 1)
        self._do: Any = ray.remote(lambda work, item: work(item))

    def map(self, work: Callable[[_Item], _Made], items: Iterable[_Item]) -> Iterator[_Made]:
        """Do some work for each item, and yield what comes of it in their order, as the built-in `map`."""
        waiting: deque[Any] = deque()
        for item in items:
            if len(waiting) == self._most:
                yield ray.get(waiting.popleft())
            waiting.append(self._do.remote(work, item))
        while waiting:
            yield ray.get(waiting.popleft())

    def close(self) -> None:
        """Leave the cluster; one that was for the time being ends."""
        ray.shutdown()


class StoredOnCluster:
    """Reads shards of what is stored on a cluster, whose machines reach the database by this address."""

    def __init__(self, cluster: Cluster, database_url: str) -> None:
        self._cluster = cluster
        self._url = database_url

    def map(
        self, read: Callable[[Inferences, _Item], _Made], items: Iterable[_Item]
    ) -> Iterator[_Made]:
        """As `quadriga.monitor.executors.Places.map`."""
        return self._cluster.map(partial(_read, self._url, read), items)


def _read(url: str, read: Callable[[Inferences, _Item], _Made], item: _Item) -> _Made:
    return read(_opened(url), item)


@cache
def _opened(url: str) -> Inferences:
    """Open the database once in a process of the cluster; there is neither journal nor blobs."""
    nowhere = Path(gettempdir()) / "quadriga-no-data"
    return Inferences(url, nowhere, open_blobs(nowhere), timeout_s=QUERY_S)
