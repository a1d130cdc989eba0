"""How shards of stored inferences are read: in this process, or on other machines."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from quadriga.store.query.inferences import InferenceReader

OnProgress = Callable[[int, int | None], None]
"""Called at every step with the number of images read, and of all images, if known; may raise to cancel the work."""

MapShards = Callable[[Callable[[InferenceReader, Any], Any], Sequence[Any]], Iterator[Any]] | None
"""Calls a function with a reader and each item, and yields the shards in the order of the items; None: in this process."""
