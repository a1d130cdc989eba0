"""Zip files with images beside files of text, each written page by page."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Self, cast

from quadriga.store.blobs.interface import Blobs
from quadriga.store.exchange.zip_stream import ZipStream
from quadriga.store.records.records import StoredInference

EXTENSIONS = {
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/webp": "webp",
    "image/tiff": "tif",
    "image/bmp": "bmp",
    "image/gif": "gif",
}


class Archive:
    """A zip file that is being written, in a folder of its own; None leaves out images.

    Long texts are written beside it and packed at the end: a zip takes one member at a time. What was
    written until an error is not packed.
    """

    def __init__(self, target: Path, images: Blobs | None) -> None:
        self._folder = target.parent
        self._images = images
        self._texts: dict[str, BinaryIO] = {}
        self._open_files = ExitStack()
        self._zip = ZipStream(self._open_files.enter_context(target.open("w+b")), self.side_file())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        with self._open_files:
            for name, file in self._texts.items() if error is None else ():
                file.seek(0)
                self._zip.write_file(name, file)
            if error is None:
                self._zip.close()

    def side_file(self) -> BinaryIO:
        """Return a temporary file, empty, which is gone with the archive's end."""
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed at the end
        return cast("BinaryIO", self._open_files.enter_context(file))

    def add_text_file(self, name: str) -> BinaryIO:
        """Begin a member with text."""
        self._texts[name] = self.side_file()
        return self._texts[name]

    def write_text(self, name: str, text: str) -> None:
        """Write a short member with text."""
        self._zip.write(name, text.encode(errors="replace"), compress=len(text) > _WORTH_PACKING)

    def write_image(self, name: str, data: bytes) -> None:
        """Write an image."""
        self._zip.write(name, data)

    def add_image(self, record: StoredInference, folder: str = "images/") -> str | None:
        """Pack the image of an inference and return its name; None where it was not kept.

        Where images are left out, the name says what it would be.
        """
        name = image_name(record)
        if self._images is None:
            return name
        data = stored_image(record, self._images)
        if data is None:
            return None
        self.write_image(f"{folder}{name}", data)
        return name


_WORTH_PACKING = 200  # characters: what is shorter gets no smaller


def image_name(record: StoredInference) -> str:
    """Return the name of the file of an image: the id of its inference, which no other has."""
    return f"{record.id}.{EXTENSIONS.get(record.input.mime or '', 'bin')}"


def stored_image(record: StoredInference, images: Blobs) -> bytes | None:
    """Return the image of an inference; None where it was not kept."""
    image = record.input
    return images.get(image.hash) if image.hash and image.kept else None
