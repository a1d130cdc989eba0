"""Zip files with images beside files of text, each written page by page."""

from pathlib import Path
from typing import BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

from store.blobs.interface import Blobs
from store.records import StoredInference

EXTENSIONS = {
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/webp": "webp",
    "image/tiff": "tif",
    "image/bmp": "bmp",
    "image/gif": "gif",
}

_LEVEL = 1
"""Of compression: higher ones take several times as long for a tenth less."""


class Archive:
    """A zip file that is being written.

    Texts are written beside it and packed at the end: a zip takes one member at a time.

    Args:
        target: The file; its folder is the archive's alone.
        images: Where the images are; None leaves them out.
    """

    def __init__(self, target: Path, images: Blobs | None) -> None:
        self._folder = target.parent
        self._zip = ZipFile(target, "w", ZIP_STORED)
        self._images = images
        self._texts: dict[str, BinaryIO] = {}

    def text(self, name: str) -> BinaryIO:
        """Begin a member with text, or go on with it."""
        if name not in self._texts:
            self._texts[name] = (self._folder / f"{name}.part").open("wb")
        return self._texts[name]

    def image(self, record: StoredInference) -> str | None:
        """Pack the image of an inference and return its name; None where it was not kept.

        Where images are left out, the name says what it would be.
        """
        name = f"{record.id}.{EXTENSIONS.get(record.input.mime or '', 'bin')}"
        if self._images is None:
            return name
        image = record.input
        data = self._images.get(image.hash) if image.hash and image.kept else None
        if data is None:
            return None
        self._zip.writestr(f"images/{name}", data)
        return name

    def close(self, *, is_whole: bool) -> None:
        """Pack the texts, unless the export was ended before; close the file."""
        with self._zip:
            for file in self._texts.values():
                file.close()
            for name, file in self._texts.items() if is_whole else ():
                self._zip.write(file.name, name, ZIP_DEFLATED, _LEVEL)
