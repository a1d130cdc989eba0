"""What the server needs of a place that its models come from, and the record of which state of each is served."""

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from quadriga.store.disk import write_atomically

SETTLE_S = 2.0
"""Seconds for which a source must stay as it is before a new state is taken without a request."""

Models = Mapping[str, Mapping[str, Path]]
"""Versions of models by name, each with its path, the highest version first."""


States = Mapping[str, str]
"""States of models by name: a hash of the files of each."""


class ModelSource(Protocol):
    """A place that models come from; safe to use from several threads and processes.

    Its newest states are what the last look saw; what is served follows model by model, by `keep`.
    """

    def look(self, deadline_s: float, settle_s: float = 0.0) -> None:
        """Look for a new state; a look of another process is awaited until a time of the monotonic clock.

        Raises:
            OSError: The source does not answer, changes, or cannot be kept; the newest states stay.
        """

    def newest(self) -> dict[str, str]:
        """Return the newest state of each model."""

    def served(self) -> dict[str, str]:
        """Return the served state of each model."""

    def find(self, states: States) -> Models:
        """Return models in some states; the files of these stay until `release`."""

    def keep(self, states: States) -> None:
        """Note the states of all models that are served from now on, also after a restart."""

    def is_kept(self) -> bool:
        """Check whether all that is served is there, for a worker that starts again."""

    def begin(self) -> dict[str, str]:
        """Check what was served before a start, forget what is no more, and return the rest."""

    def release(self, paths: Collection[Path]) -> None:
        """Let go of all but what some paths of models lie in, and remove what nothing needs."""

    def seen_at(self) -> float:
        """Return when the source was last seen as it is, in seconds since 1970; 0 if never."""


class ServedRecord:
    """The record of the served states, in a file that only a change of models writes.

    Args:
        path: The file.
        source: Id of the source; a record of another one is no record.
    """

    def __init__(self, path: Path, source: str) -> None:
        self._path = path
        self._source = source

    def read(self) -> dict[str, str]:
        """Return the served state of each model by name."""
        try:
            record = msgspec.json.decode(self._path.read_bytes(), type=_Record)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}
        return record.models if record.source == self._source else {}

    def write(self, states: States) -> None:
        """Replace the record."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = msgspec.json.encode(_Record(self._source, dict(states)))
        write_atomically(self._path, data, 0o600, is_synced=True)


class _Record(msgspec.Struct, frozen=True):
    source: str
    models: dict[str, str]


def settled(
    read: Callable[[], Mapping[str, str]], settle_s: float
) -> tuple[dict[str, str], set[str]]:
    """Read twice, some seconds apart; return what was read last, and the keys whose values differ."""
    first = read()
    time.sleep(settle_s)
    last = dict(read())
    return last, {key for key in {*first, *last} if first.get(key) != last.get(key)}
