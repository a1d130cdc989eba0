"""Files of models beside the store, written atomically: a reader sees the old content or the new one."""

from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from quadriga.store.disk import write_atomically
from quadriga.store.errors import QueryError

MAX_NAME_BYTES = 200
"""Maximum length of a quoted model name; file systems allow 255 bytes, suffixes included."""
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def model_file_path(directory: Path, model: str, suffix: str) -> Path:
    """Return the path of a model's file.

    Raises:
        QueryError: The name is empty or too long.
    """
    name = quote(model, safe="")
    if not 0 < len(name) <= MAX_NAME_BYTES:
        raise QueryError(
            f"expected the name of a model to have 1 to {MAX_NAME_BYTES} bytes, got {len(name)}"
        )
    return directory / f"{name}.{suffix}"


def model_folder(directory: Path, model: str) -> Path:
    """Return the path of a model's folder.

    Raises:
        QueryError: The name is empty, too long, or only dots.
    """
    name = quote(model, safe="")
    if not 0 < len(name) <= MAX_NAME_BYTES or not name.strip("."):
        raise QueryError(f"expected the name of a model, got {model!r:.80}")
    return directory / name


def read_model_file(path: Path, type_: type[_Struct]) -> _Struct | None:
    """Return the content of a file; None if it does not exist, or is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_model_file(path: Path, content: Any) -> None:
    """Write a file as JSON, readable by its owner alone, as it may hold secrets."""
    write_atomically(path, msgspec.json.encode(content), 0o600)
