"""Small copies of images in a folder beside the images, each there for no longer than its image.

A copy is written before it is looked whether its image is still there, and an image goes before its copies go. So whichever of
the two comes last sees what the other did, and no copy outlives its image.
"""

import logging
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from quadriga.store.records.disk import folder_entries, write_atomically

WIDTHS = (128, 256, 512, 1024)
"""Sizes of the copies, in pixels of the longer side."""

MAX_BYTES = 1 << 30
"""Limit of the bytes of all copies; beyond it those go that were asked for least recently."""

_FOLDERS = 256  # by the first two digits of the hash, which fill evenly
_KEPT_SHARE = 0.9  # of a full folder
_LEFTOVER_S = 3600.0  # age of a temporary file whose process is dead
_JPEG_END = b"\xff\xd9"
_log = logging.getLogger(__name__)


class ThumbnailFiles:
    """Copies of images as JPEG files.

    Args:
        directory: Folder of the copies, which is made when the first is written.
        has_image: Tells whether the image with some digits is there.
        max_bytes: See `MAX_BYTES`.
    """

    def __init__(
        self, directory: Path, has_image: Callable[[str], bool], max_bytes: int = MAX_BYTES
    ) -> None:
        self._directory = directory
        self._has_image = has_image
        self._folder_bytes = max_bytes // _FOLDERS

    def get(self, digits: str, width: int) -> bytes | None:
        """Return a copy, or None if there is none that is whole."""
        path = self._path(digits, width)
        try:
            data = path.read_bytes()
            os.utime(path)  # from now on it is the last to go
        except OSError:
            return None
        return data if data.endswith(_JPEG_END) else None

    def put(self, digits: str, width: int, data: bytes) -> None:
        """Keep a copy if there is room and its image is still there; without room nothing happens."""
        path = self._path(digits, width)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data, 0o600)
            self._limit(path.parent)
        except OSError as error:
            _log.debug("a thumbnail is not kept: %s", error.strerror)
        if not self._has_image(digits):
            path.unlink(missing_ok=True)

    def remove(self, digits: str) -> None:
        """Remove the copies of an image that is gone."""
        for width in WIDTHS:
            self._path(digits, width).unlink(missing_ok=True)

    def erase(self, folder: str, digits: Collection[str]) -> None:
        """Remove the copies of images that are gone, all of one folder, with what is left of writing them."""
        for entry in folder_entries(self._directory / folder):
            if entry.name.lstrip(".").partition("-")[0] in digits:
                Path(entry.path).unlink(missing_ok=True)

    def sweep(self, folder: str) -> None:
        """Remove copies whose images are gone, and what crashes left, in one folder."""
        now_s = time.time()
        for entry in folder_entries(self._directory / folder):
            with suppress(FileNotFoundError):
                if entry.name.startswith("."):
                    is_needed = now_s - entry.stat().st_mtime < _LEFTOVER_S
                else:
                    is_needed = self._has_image(entry.name.partition("-")[0])
                if not is_needed:
                    Path(entry.path).unlink()

    def _limit(self, folder: Path) -> None:
        """Remove the copies that were asked for least recently from a folder that is full."""
        files = []
        for entry in folder_entries(folder):
            with suppress(FileNotFoundError):
                status = entry.stat()
                files.append((status.st_mtime, status.st_size, Path(entry.path)))
        excess = sum(size for _, size, _ in files) - self._folder_bytes
        if excess > 0:
            excess += int(self._folder_bytes * (1 - _KEPT_SHARE))
            for _, size, path in sorted(files):
                if excess <= 0:
                    break
                path.unlink(missing_ok=True)
                excess -= size

    def _path(self, digits: str, width: int) -> Path:
        return self._directory / digits[:2] / f"{digits}-{width}.jpg"
