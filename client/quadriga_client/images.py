"""Images in every form that people have them in, as the bytes of an image file."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .errors import InputError, load_package

MAX_DOWNLOAD_BYTES = 256 << 20
"""Maximum bytes of an image that is fetched from a URL."""

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif"}
"""Endings of the files of a folder that are images."""

Image = Any
"""A path, bytes, a file object, a Pillow image, an array (height, width, 3) of uint8 in RGB, or a URL."""


def image_bytes(image: Image, *, allow_urls: bool = False, timeout_s: float = 60.0) -> bytes:
    """Return an image as the bytes of a file; files are sent as they are, arrays and Pillow images as PNG.

    Args:
        image: Path (str or `os.PathLike`), bytes, binary file object, Pillow image, uint8 array (H, W, 3) in RGB or
            (H, W) in grey, or `http://` and `https://` URL.
        allow_urls: Whether a URL is fetched by this process. Never allow it for texts that strangers wrote: they would
            reach what this machine reaches.
        timeout_s: Maximum wait for each step of a download.

    Raises:
        InputError: It is none of these, or cannot be read.
        MissingPackage: Pillow is not installed, and needed.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return _not_empty(bytes(image), "the bytes of an image")
    if isinstance(image, str) and urlsplit(image).scheme in {"http", "https"}:
        if not allow_urls:
            raise InputError(f"expected a file, got the URL {image!r}: Client(allow_urls=True)")
        return _download(image, timeout_s)
    if isinstance(image, str | os.PathLike):
        if os.path.isdir(image):  # noqa: PTH112 - no error of a text that is no path at all
            raise InputError(
                f"expected an image file, got the folder {os.fspath(image)!r}: infer_many takes folders"
            )
        try:
            return _not_empty(Path(image).read_bytes(), f"the file {os.fspath(image)!r}")
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the image {os.fspath(image)!r}: {error}") from error
    if hasattr(image, "getexif") and hasattr(image, "save"):
        return _png(image)
    if hasattr(image, "dtype") and hasattr(image, "__array_interface__"):
        return _png(_pillow_of_array(image))
    if hasattr(image, "read"):
        return _read_file(image)
    several = ": infer_many takes several images" if isinstance(image, list | tuple | set) else ""
    raise InputError(
        "expected a path, bytes, a file, a Pillow image, a uint8 array (height, width, 3) or a URL, got "
        f"{type(image).__name__}{several}"
    )


def source_name(image: Image) -> str:
    """Return a name of an image for messages and progress: its path or URL, or its type."""
    if isinstance(image, str | os.PathLike):
        return os.fsdecode(image)
    name = getattr(image, "filename", "") or getattr(image, "name", "")
    return name if isinstance(name, str) and name else type(image).__name__


def open_image(data: bytes) -> Any:
    """Return a Pillow image, RGB, turned as its EXIF data say, as the server sees it.

    Raises:
        InputError: It cannot be read.
        MissingPackage: Pillow is not installed.
    """
    ops = load_package("PIL.ImageOps", "to draw")
    with _opened(data, "to draw") as picture:
        return ops.exif_transpose(picture).convert("RGB")


def image_size(data: bytes) -> tuple[int, int]:
    """Return width and height of an image file, turned as its EXIF data say; only its header is read.

    Raises:
        InputError: It cannot be read.
        MissingPackage: Pillow is not installed.
    """
    with _opened(data, "the size of an image") as picture:
        width, height = picture.size
        is_turned = picture.getexif().get(0x0112, 1) in {5, 6, 7, 8}
    return (height, width) if is_turned else (width, height)


@contextmanager
def _opened(data: bytes, purpose: str) -> Iterator[Any]:
    """Open an image file by Pillow; whatever is wrong with it is an `InputError`."""
    pillow = load_package("PIL.Image", purpose)
    try:
        with pillow.open(io.BytesIO(data)) as picture:
            yield picture
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise InputError(f"cannot read the image: {error}") from error


def _read_file(file: Any) -> bytes:
    try:
        data = file.read()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the image: {error}") from error
    if not isinstance(data, bytes):
        raise InputError(f"expected a file opened as binary ('rb'), got {type(data).__name__}")
    return _not_empty(data, "an image file (was it read before?)")


def _not_empty(data: bytes, subject: str) -> bytes:
    if not data:
        raise InputError(f"expected {subject} to have bytes, got none")
    return data


def _pillow_of_array(array: Any) -> Any:
    shape, dtype = tuple(array.shape), str(array.dtype)
    is_colour = len(shape) == 3 and shape[2] == 3
    if dtype != "uint8" or not (is_colour or len(shape) == 2) or 0 in shape:
        raise InputError(
            "expected an array of uint8 (height, width, 3) in RGB, or (height, width) in grey, got "
            f"{dtype} {shape}"
        )
    return load_package("PIL.Image", "to send an array").fromarray(array)


def _png(picture: Any) -> bytes:
    file = io.BytesIO()
    try:
        if picture.mode not in {"RGB", "L", "RGBA", "I;16"}:
            picture = picture.convert("RGB")
        picture.save(file, "PNG", compress_level=1)
    except (OSError, ValueError, SyntaxError) as error:  # its file is cut, or closed
        raise InputError(f"cannot read the Pillow image: {error}") from error
    return file.getvalue()


def _download(url: str, timeout_s: float) -> bytes:
    """Fetch an image; nothing of the client's key is sent."""
    from urllib.request import urlopen  # a tenth of the time that importing the client takes

    try:
        # redirects go to http, https and ftp alone
        with urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - the scheme is checked
            data: bytes = response.read(MAX_DOWNLOAD_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot fetch the image {url!r}: {error}") from error
    if len(data) > MAX_DOWNLOAD_BYTES:
        raise InputError(f"expected an image of at most {MAX_DOWNLOAD_BYTES} bytes at {url!r}")
    return _not_empty(data, f"the image {url!r}")
