"""Where work on what is stored is done: here, or on other machines."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from quadriga.store.inferences import Inferences

Tell = Callable[[int, int | None], None]
"""Is told at every step how many answers are read, and of how many; may raise to end the work."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class Places(Protocol):
    """Where shards are read, with a store at hand."""

    def map(
        self, read: Callable[[Inferences, _Item], _Made], items: Sequence[_Item]
    ) -> Iterator[_Made]:
        """Read each of the items, and yield the shards in their order."""


class Here:
    """Reads one shard after the other, in this process."""

    def __init__(self, inferences: Inferences) -> None:
        self._inferences = inferences

    def map(
        self, read: Callable[[Inferences, _Item], _Made], items: Sequence[_Item]
    ) -> Iterator[_Made]:
        """As `Places.map`."""
        return (read(self._inferences, item) for item in items)
