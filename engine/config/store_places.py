"""The places of a data folder's store: its server notes them, so that commands beside it use the same database and images."""

import re
from pathlib import Path

import msgspec

from quadriga.engine.config.settings import FILE_SUFFIX, PREFIX, Settings, SettingsError
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.redaction import HIDDEN, without_secrets

STORE_FILE = "store.json"
"""File of a data folder with the places of the database and the images that its server runs with; see `StorePlaces`."""


class StorePlaces(msgspec.Struct, frozen=True):
    """The places in which a server keeps what is not in its data folder, without users, passwords and parameters."""

    database: str = ""
    """URL of the database; empty for `store.db` of the folder."""
    blobs: str = ""
    """URL or folder of the images; empty for `blobs` of the folder."""


def note_places(settings: Settings) -> None:
    """Note in the data folder where its server keeps its store, for commands that work on the folder.

    Raises:
        OSError: The file cannot be written.
    """
    path = Path(settings.data) / STORE_FILE
    places = _places(settings)
    if _noted_places(path) != places:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(places), indent=1), 0o600)


def check_places(settings: Settings, *, reads_images: bool) -> None:
    """Check that a command uses the store that the server of its data folder uses.

    Raises:
        SettingsError: It would use another database, or, where it reads images, other images.
    """
    path = Path(settings.data) / STORE_FILE
    noted, own = _noted_places(path), _places(settings)
    if noted is None:
        return
    for name, shown in (("database", "store.db"), ("blobs", "blobs")):
        expected, present = getattr(noted, name), getattr(own, name)
        if expected == present or (name == "blobs" and not reads_images):
            continue
        folder = f"{shown} of the folder"
        raise SettingsError(
            f"expected the setting {name} to be that of the server of {settings.data}, {expected or folder}, got "
            f"{present or folder}: set {PREFIX}{name.upper()}, {PREFIX}{name.upper()}{FILE_SUFFIX} or --config as for the "
            f"server; or remove {path} if it is out of date"
        )


def _noted_places(path: Path) -> StorePlaces | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=StorePlaces)
    except (OSError, msgspec.MsgspecError):  # a folder of an earlier version has none
        return None


def _places(settings: Settings) -> StorePlaces:
    return StorePlaces(
        database=_place(settings.database, Path(settings.data) / "store.db"),
        blobs=_place(settings.blobs, Path(settings.data) / "blobs"),
    )


def _place(location: str, default: Path) -> str:
    """Return a URL or path so that equal places are equal texts; empty for the default one."""
    scheme, separator, rest = location.partition("://")
    driver = scheme.partition("+")[0]
    if not separator or driver == "sqlite":
        path = Path(rest.removeprefix("/").partition("?")[0] if separator else location).absolute()
        return "" if not location or path == default.absolute() else str(path)
    shown = without_secrets(f"{driver}://{rest}").rstrip("/")
    socket = re.search(r"[?&]host=([^&]*)", rest.rpartition("@")[2])
    if driver == "postgresql" and socket and HIDDEN not in shown:
        return f"{shown}?host={socket[1]}"
    return shown.replace(":5432/", "/") if driver == "postgresql" else shown
