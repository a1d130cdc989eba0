"""Reads shards on the machines of a Ray cluster; each needs Quadriga and access to the data. Ray is an extra."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any, TypeVar

from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.monitor.executors import MapShards
from quadriga.store.blobs.files import open_blobs
from quadriga.store.jobs.runner import QUERY_TIMEOUT_S
from quadriga.store.query.inferences import InferenceReader

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before it is imported: it calls nobody

try:
    import ray
except ImportError as error:
    raise EvaluationError(
        "evaluation on many machines needs Ray: pip install 'quadriga[ray]'"
    ) from error

SHARDS_PER_CPU = 4
"""Maximum number of shards that wait or are read for each processor of the cluster."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class RayCluster:
    """A Ray cluster.

    Args:
        address: `ray` for one on this machine that ends with this process; else as `ray.init` takes it, such as
            `ray://head:10001` or `auto`.

    Raises:
        EvaluationError: There is no cluster at this address.
    """

    def __init__(self, address: str) -> None:
        is_own = address == "ray"
        try:
            ray.init(
                None if is_own else address,
                include_dashboard=False if is_own else None,
                log_to_driver=False,
                ignore_reinit_error=True,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise EvaluationError(
                f"expected a Ray cluster at {address!r:.80}, got: {error}"
            ) from error
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # it has no types
        self._max_waiting = SHARDS_PER_CPU * max(int(resources.get("CPU", 1)), 1)
        self._remote: Any = ray.remote(lambda call, item: call(item))

    def map(self, call: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Call a function for each item, and yield the results in the order of the items, as the built-in `map`."""
        waiting: deque[Any] = deque()
        for item in items:
            if len(waiting) == self._max_waiting:
                yield ray.get(waiting.popleft())
            waiting.append(self._remote.remote(call, item))
        while waiting:
            yield ray.get(waiting.popleft())

    def close(self) -> None:
        """Leave the cluster; one that this process started ends."""
        ray.shutdown()


def map_on(cluster: RayCluster, database_url: str) -> MapShards:
    """Return what reads shards of stored inferences on a cluster, whose machines reach the database at this address."""
    return lambda read, items: cluster.map(partial(_read, database_url, read), items)


def _read(url: str, read: Callable[[InferenceReader, _Item], _Result], item: _Item) -> _Result:
    return read(_opened(url), item)


@cache
def _opened(url: str) -> InferenceReader:
    """Open the database once in a process of the cluster; there is neither journal nor blobs."""
    nowhere = Path(gettempdir()) / "quadriga-no-data"
    return InferenceReader(url, nowhere, open_blobs(nowhere), timeout_s=QUERY_TIMEOUT_S)
