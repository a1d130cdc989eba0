"""Files of models beside the store, written atomically: a reader sees the old content or the new one."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from quadriga.quoting import quoted
from quadriga.store.query.names import find_model_name
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import QueryError

MAX_NAME_BYTES = 200
"""Maximum length of a quoted model name; file systems allow 255 bytes, suffixes included."""
TEAMS_FOLDER = ".teams"
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def team_folder(directory: Path, team: str) -> Path:
    """Return the folder of a team's files within that of all; that of all for no team.

    No model has a folder beside those of teams, as their names begin with no dot there.
    """
    return directory / TEAMS_FOLDER / quote(team, safe="") if team else directory


def teams_with_files(directory: Path) -> list[str]:
    """Return the teams that have a folder of their own, sorted; the empty name of none comes first."""
    return ["", *sorted(unquote(path.name) for path in directory.glob(f"{TEAMS_FOLDER}/*/"))]


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
        raise QueryError(f"expected the name of a model, got {quoted(model, 80)}")
    return directory / name


def rename_aliases(directory: Path, names: Collection[str]) -> None:
    """Give the files of models that were saved under another spelling of a name the name itself.

    Args:
        directory: Folder of the files and folders, which begin with the quoted name of their model.
        names: Names of the models; a name among them is never changed.
    """
    paths = [*directory.glob("*"), *directory.glob(f"{TEAMS_FOLDER}/*/*")]
    for path in sorted(paths):
        quoted, dot, suffix = path.name.partition(".")
        name = unquote(quoted)
        if path.name.startswith(".") or name in names:
            continue
        model = find_model_name(name, names)
        target = (
            path.parent / f"{quote(model, safe='')}{dot}{suffix}" if model is not None else path
        )
        if not target.exists():
            with suppress(FileNotFoundError):  # another process did it
                path.rename(target)


def read_model_file(path: Path, type_: type[_Struct]) -> _Struct | None:
    """Return the content of a file; None if it does not exist, or is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_model_file(path: Path, content: Any) -> None:
    """Write a file as JSON, readable by its owner alone, as it may hold secrets; its folder is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(content), 0o600)
