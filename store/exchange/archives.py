"""Zip files with images beside files of text, each written page by page."""

import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Self, cast

from quadriga.store.blobs.interface import Blobs
from quadriga.store.records.records import StoredInference

_LEVEL = 1  # of compression: higher ones take several times as long for a tenth less
_STORED, _DEFLATED = 0, 8
_UTF_8 = 0x800  # flag: names are UTF-8
_VERSION = 45  # the first with sizes beyond 4 GiB
_MADE_BY_UNIX = 3 << 8 | _VERSION
_REGULAR_FILE = 0o100644 << 16
_DATE = 1 << 5 | 1  # 1980-01-01: the same inferences are the same file
_MAX_16, _MAX_32 = 0xFFFF, 0xFFFFFFFF
_CHUNK = 1 << 20


class ZipStream:
    """A zip file that is being written.

    Args:
        file: The zip file, seekable, empty.
        directory: A temporary file for the directory, seekable, empty.
    """

    def __init__(self, file: BinaryIO, directory: BinaryIO) -> None:
        self._file = file
        self._directory = directory
        self._count = 0

    def write(self, name: str, data: bytes, *, compress: bool = False) -> None:
        """Write a member whose bytes are in memory."""
        self._write(name, iter((data,)), compress=compress)

    def write_file(self, name: str, source: BinaryIO) -> None:
        """Write a member, compressed, whose bytes are those of a file from its position on."""
        self._write(name, iter(lambda: source.read(_CHUNK), b""), compress=True)

    def close(self) -> None:
        """Write the directory; the file itself stays open."""
        start = self._file.tell()
        self._directory.seek(0)
        shutil.copyfileobj(self._directory, self._file)
        end = self._file.tell()
        size, count = end - start, self._count
        if count >= _MAX_16 or size >= _MAX_32 or start >= _MAX_32:
            fields = (44, _MADE_BY_UNIX, _VERSION, 0, 0, count, count, size, start)
            self._file.write(b"PK\6\6" + struct.pack("<QHHIIQQQQ", *fields))
            self._file.write(b"PK\6\7" + struct.pack("<IQI", 0, end, 1))
        counts = min(count, _MAX_16), min(count, _MAX_16)
        places = min(size, _MAX_32), min(start, _MAX_32)
        self._file.write(b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, *counts, *places, 0))

    def _write(self, name: str, chunks: Iterator[bytes], *, compress: bool) -> None:
        """Write a member with room for its sizes in front, which are filled in once they are known."""
        encoded, method = name.encode(), _DEFLATED if compress else _STORED
        if len(encoded) > _MAX_16:
            raise ValueError(f"expected a name of at most {_MAX_16} bytes, got {len(encoded)}")
        start = self._file.tell()
        self._file.write(_local_header(encoded, method, crc=0, packed=0, size=0))
        begin, crc, size = self._file.tell(), 0, 0
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS) if compress else None
        for chunk in chunks:
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
            self._file.write(chunk if packer is None else packer.compress(chunk))
        if packer is not None:
            self._file.write(packer.flush())
        end = self._file.tell()
        packed = end - begin
        self._file.seek(start)
        self._file.write(_local_header(encoded, method, crc=crc, packed=packed, size=size))
        self._file.seek(end)
        fields = (_MADE_BY_UNIX, _VERSION, _UTF_8, method, 0, _DATE, crc, _MAX_32, _MAX_32)
        lengths = (len(encoded), 28, 0, 0, 0, _REGULAR_FILE, _MAX_32)
        self._directory.write(b"PK\1\2" + struct.pack("<HHHHHHIIIHHHHHII", *fields, *lengths))
        self._directory.write(encoded + struct.pack("<HHQQQ", 1, 24, size, packed, start))
        self._count += 1


def _local_header(name: bytes, method: int, *, crc: int, packed: int, size: int) -> bytes:
    fields = (_VERSION, _UTF_8, method, 0, _DATE, crc, _MAX_32, _MAX_32, len(name), 20)
    header = b"PK\3\4" + struct.pack("<HHHHHIIIHH", *fields)
    return header + name + struct.pack("<HHQQ", 1, 16, size, packed)


EXTENSIONS = {
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/webp": "webp",
    "image/tiff": "tif",
    "image/bmp": "bmp",
    "image/gif": "gif",
}


class Archive:
    """A zip file that is being written, in a folder of its own.

    Long texts are written beside it and packed at the end: a zip takes one member at a time. What was
    written until an error is not packed.
    """

    def __init__(self, target: Path) -> None:
        self._folder = target.parent
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


_WORTH_PACKING = 200  # characters: what is shorter gets no smaller


def image_name(record: StoredInference) -> str:
    """Return the name of the file of an image: the id of its inference, which no other has."""
    return f"{record.id}.{EXTENSIONS.get(record.input.mime or '', 'bin')}"


def stored_image(record: StoredInference, images: Blobs) -> bytes | None:
    """Return the image of an inference; None where it was not kept."""
    image = record.input
    return images.get(image.hash) if image.hash and image.kept else None
