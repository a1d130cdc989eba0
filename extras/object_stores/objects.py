"""The objects below a URL of an object store: listed within bounds, and fetched piece by piece.

Names come from whoever may write there, so they are checked before they become paths.
"""

import errno
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

import msgspec
import obstore
from blake3 import blake3
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from quadriga.engine.models.model import ONNX_NAMES
from quadriga.extras.object_stores.source import ChangingSourceError, SourceError
from quadriga.store.blobs.objects import connect
from quadriga.store.records.redaction import redact

MAX_FILES = 10_000
"""Maximum number of files of a source."""

MAX_FILE_BYTES = 32 << 30
"""Maximum size of a file of a source."""

PIECE_BYTES = 8 << 20
"""Bytes that one request fetches, as a request has a time limit, whatever the size of the file."""

_MAX_DEPTH = 16  # names in a path
_PATH_NAME = re.compile(r"[^\x00-\x1f\x7f\\/]{1,255}")
_UNNEEDED = re.compile(
    r"(^|/)\.|\.(safetensors|h5|msgpack|pt|pth|ckpt|pkl|pickle|tflite)$|(^|/)pytorch_model[^/]*\.bin$"
)
"""Paths that no model here reads: hidden files, and weights of other formats, which may be code."""

_log = logging.getLogger("quadriga.models")


class SourceObject(msgspec.Struct, frozen=True):
    """An object as its store lists it; two equal ones have the same content."""

    size: int
    modified: int
    """Seconds since 1970; answers with the content have no fractions."""
    etag: str | None = None
    """Its tag without quotes, which not all stores list."""


Listing = dict[str, SourceObject]
"""Objects by their paths below the URL."""


class ObjectFolder:
    """The objects below a URL such as `s3://bucket/models`; safe to use from several threads.

    Args:
        url: URL of s3, gs or az.
        max_bytes: Maximum size of all files together.

    Raises:
        quadriga.store.records.errors.StoreError: The URL is none of an object store.
    """

    def __init__(self, url: str, max_bytes: int) -> None:
        self._url = url
        self._max_bytes = max_bytes
        self._store: Any = connect(url)
        self._ignored: set[str] = set()
        """Paths whose refusal is in the log."""

    @property
    def name(self) -> str:
        """Name of the folder: the last name of the URL."""
        parts = urlsplit(self._url)
        return PurePosixPath(parts.path).name or parts.netloc

    def list(self) -> Listing:
        """List the files.

        Raises:
            SourceError: The store does not answer, or there is too much.
        """
        listing: Listing = {}
        with self._translated_errors("list"):
            for chunk in obstore.list(self._store, chunk_size=1000):
                for entry in chunk:
                    path = entry["path"]
                    if _UNNEEDED.search(path) or not self._is_allowed(path):
                        continue
                    listing[path] = _listed(entry)
                    if len(listing) > MAX_FILES:
                        raise SourceError(
                            f"its source has more than {MAX_FILES} files", errno.EFBIG
                        )
        needed = _without_variants(_without_folders(listing))
        self._check_sizes(needed)
        return needed

    def fetch(self, path: str, listed: SourceObject, file: IO[bytes]) -> str:
        """Write the content of an object into a file; return its hash.

        Raises:
            ChangingSourceError: It is not the listed one any more.
            SourceError: The store does not answer.
            OSError: The file cannot be written.
        """
        digest = blake3()
        for start in range(0, listed.size, PIECE_BYTES):
            piece = self._piece(path, listed, start, min(start + PIECE_BYTES, listed.size))
            digest.update(piece)
            file.write(piece)
        return digest.hexdigest()

    def _piece(self, path: str, listed: SourceObject, start: int, end: int) -> bytes:
        options: Any = {"range": (start, end)}
        with self._translated_errors("read"):
            try:
                result = obstore.get(self._store, path, options=options)
                piece = bytes(result.bytes())
            except (PreconditionError, FileNotFoundError) as error:
                raise ChangingSourceError from error
        if _listed(result.meta) != listed or len(piece) != end - start:
            raise ChangingSourceError
        return piece

    def _is_allowed(self, path: str) -> bool:
        names = path.split("/")
        if (
            len(names) <= _MAX_DEPTH
            and {".", ".."}.isdisjoint(names)
            and all(_PATH_NAME.fullmatch(name) for name in names)
        ):
            return True
        if path not in self._ignored and len(self._ignored) < MAX_FILES:
            self._ignored.add(path)
            _log.error(
                "%.200r in the source is ignored: expected a relative path of at most %d plain names",
                path, _MAX_DEPTH,
            )  # fmt: skip
        return False

    def _check_sizes(self, listing: Listing) -> None:
        for path, listed in listing.items():
            if listed.size > MAX_FILE_BYTES:
                _log.error("%.200r in the source has %d bytes", path, listed.size)
                raise SourceError(
                    f"a file in their source has more than {MAX_FILE_BYTES} bytes", errno.EFBIG
                )
        total = sum(listed.size for listed in listing.values())
        if total > self._max_bytes:
            raise SourceError(
                f"their source has {total} bytes, more than extras.object_stores.max_bytes, {self._max_bytes}",
                errno.EFBIG,
            )

    @contextmanager
    def _translated_errors(self, action: str) -> Iterator[None]:
        """Raise the errors of the library as a `SourceError`, with its text for the log alone."""
        try:
            yield
        except (SourceError, ChangingSourceError):
            raise
        except (BaseError, OSError, ValueError) as error:
            reasons: dict[type[Exception], str] = {
                InvalidPathError: "it has an object whose name is no path",
                PermissionDeniedError: "it refuses this server",
                UnauthenticatedError: "it refuses this server",
            }
            reason = reasons.get(type(error), "it does not answer")
            detail = redact(str(error).partition("\n")[0])
            raise SourceError(
                f"cannot {action} their source: {reason}",
                detail=f"{type(error).__name__}: {detail}",
            ) from None


def _listed(meta: Any) -> SourceObject:
    etag = meta["e_tag"]
    return SourceObject(
        meta["size"],
        int(meta["last_modified"].timestamp()),
        None if etag is None else etag.removeprefix("W/").strip('"'),
    )


def _without_folders(listing: Listing) -> Listing:
    """Return the objects but those whose names are folders of others, as consoles of stores make them."""
    folders = {str(parent) for path in listing for parent in PurePosixPath(path).parents}
    return {path: listed for path, listed in listing.items() if path not in folders}


def _without_variants(listing: Listing) -> Listing:
    """Return the objects but other precisions of a graph, and their weights, beside its `model.onnx`."""
    folders = {
        path.removesuffix(ONNX_NAMES[0]) for path in listing if path.endswith(f"/{ONNX_NAMES[0]}")
    }
    if ONNX_NAMES[0] in listing:
        folders.add("")
    return {
        path: listed
        for path, listed in listing.items()
        if not any(
            path.removeprefix(folder).startswith(name)
            for folder in _folder_of(path, folders)
            for name in ONNX_NAMES[1:]
        )
    }


def _folder_of(path: str, folders: set[str]) -> list[str]:
    folder = path[: path.rfind("/") + 1]
    return [folder] if folder in folders else []
