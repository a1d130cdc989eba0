"""Zip files with images beside files of text, each written page by page."""

from pathlib import Path
from typing import BinaryIO, Self
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

from quadriga.store.blobs.interface import Blobs
from quadriga.store.records import StoredInference

EXTENSIONS = {
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/webp": "webp",
    "image/tiff": "tif",
    "image/bmp": "bmp",
    "image/gif": "gif",
}

_LEVEL = 1  # of compression: higher ones take several times as long for a tenth less


class Archive:
    """A zip file that is being written, in a folder of its own; None leaves out images.

    Texts are written beside it and packed at the end: a zip takes one member at a time. What was
    written until an error is not packed.
    """

    def __init__(self, target: Path, images: Blobs | None) -> None:
        self._folder = target.parent
        self._zip = ZipFile(target, "w", ZIP_STORED)
        self._images = images
        self._texts: dict[str, BinaryIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        with self._zip:
            for file in self._texts.values():
                file.close()
            for name, file in self._texts.items() if error is None else ():
                self._zip.write(file.name, name, ZIP_DEFLATED, _LEVEL)

    def add_text_file(self, name: str) -> BinaryIO:
        """Begin a member with text."""
        self._texts[name] = (self._folder / f"{name}.part").open("wb")
        return self._texts[name]

    def add_image(self, record: StoredInference) -> str | None:
        """Pack the image of an inference and return its name; None where it was not kept.

        Where images are left out, the name says what it would be.
        """
        name = f"{record.id}.{EXTENSIONS.get(record.input.mime or '', 'bin')}"
        if self._images is None:
            return name
        data = stored_image(record, self._images)
        if data is None:
            return None
        self._zip.writestr(f"images/{name}", data)
        return name


def stored_image(record: StoredInference, images: Blobs) -> bytes | None:
    """Return the image of an inference; None where it was not kept."""
    image = record.input
    return images.get(image.hash) if image.hash and image.kept else None
