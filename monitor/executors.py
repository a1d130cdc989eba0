"""Executors that read shards of stored inferences: in this process, or on other machines."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from quadriga.store.query.inferences import InferenceReader

OnProgress = Callable[[int, int | None], None]
"""Called at every step with the number of images read, and of all images, if known; may raise to cancel the work."""

_Item = TypeVar("_Item")
_Shard = TypeVar("_Shard")


class ShardExecutor(Protocol):
    """Runs functions that read a shard of the store."""

    def map(
        self, read: Callable[[InferenceReader, _Item], _Shard], items: Sequence[_Item]
    ) -> Iterator[_Shard]:
        """Read the shard of each item, and yield the shards in the order of the items."""


class LocalExecutor:
    """Reads one shard after the other, in this process."""

    def __init__(self, reader: InferenceReader) -> None:
        self._reader = reader

    def map(
        self, read: Callable[[InferenceReader, _Item], _Shard], items: Sequence[_Item]
    ) -> Iterator[_Shard]:
        """Read the shard of each item, as in `ShardExecutor.map`."""
        return (read(self._reader, item) for item in items)
