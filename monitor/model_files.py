"""Files that are kept beside the store: a reader finds the old one or the new one, whole."""

from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from quadriga.store.disk import write_whole
from quadriga.store.errors import QueryError

MOST_NAME_BYTES = 200
_Kept = TypeVar("_Kept", bound=msgspec.Struct)


def path_of(directory: Path, model: str, suffix: str) -> Path:
    """Return the file of a model.

    Raises:
        QueryError: That cannot be the name of a model.
    """
    name = quote(model, safe="")
    if not 0 < len(name) <= MOST_NAME_BYTES:
        raise QueryError(
            f"expected the name of a model to have 1 to {MOST_NAME_BYTES} bytes, got {len(name)}"
        )
    return directory / f"{name}.{suffix}"


def read(path: Path, kind: type[_Kept]) -> _Kept | None:
    """Return what a file keeps; None where it is not there, or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write(path: Path, kept: Any) -> None:
    """Keep something as JSON, readable by its owner alone, as it may hold secrets."""
    write_whole(path, msgspec.json.encode(kept), 0o600)
