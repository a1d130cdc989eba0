"""Many images: a few at a time, results in order, errors in their place."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from glob import glob, has_magic
from itertools import takewhile
from pathlib import Path
from typing import Any

from .errors import (
    ClientError,
    Forbidden,
    InputError,
    NotFound,
    Unauthenticated,
    Unreachable,
)
from .images import SUFFIXES, source_name
from .progress import ProgressLine
from .results import Result
from .transport.calls import encode_json

MAX_CONCURRENCY = 256
_AHEAD = 2
_NOT_OF_AN_IMAGE = (Unauthenticated, Forbidden, NotFound, Unreachable)
"""Errors that all further images would have, too."""


@dataclass(frozen=True, slots=True)
class FailedInference:
    """What stands in the place of the result of an image that failed: `ok` is False, and `id` is None."""

    source: str
    """Name of the image: its path, or its type."""
    error: ClientError
    """Why there is no result."""

    @property
    def ok(self) -> bool:
        """False; a `Result` has True."""
        return False

    @property
    def id(self) -> None:
        """None: the client has no id of it."""


Metadata = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | Callable[[Any], Any] | None
"""Metadata of all images, of each in a sequence as long as the images, or what a function returns for an image."""


def find_images(images: Any) -> tuple[Iterable[Any], str | None]:
    """Return the images of a folder or of a pattern, sorted by name, or those of an iterable as they are.

    The second value is the folder that names of files are relative to; None for that of each file.

    Raises:
        InputError: There is no such folder, nothing matches the pattern, or it is one image.
    """
    if isinstance(images, str | os.PathLike):
        return _find_paths(os.fspath(images))
    # An array of one dimension, or a column of pandas, has a path in each place.
    is_array = getattr(images, "ndim", 1) in (2, 3)
    is_image = isinstance(images, bytes) or hasattr(images, "read") or is_array
    if is_image or not isinstance(images, Iterable):
        raise InputError(
            f"expected a folder or an iterable of images, got {type(images).__name__}: infer takes one image"
        )
    return images, None


def _find_paths(text: Any) -> tuple[list[Path], str]:
    folder = Path(text)
    if os.path.isdir(text):  # noqa: PTH112 - no error of a text that is no path at all
        with os.scandir(folder) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if os.path.splitext(entry.name)[1].lower() in SUFFIXES and entry.is_file()  # noqa: PTH122
            )
        return [folder / name for name in names], str(text)
    expected = f"expected a folder of images, a pattern or an iterable, got {text!r:.200}"
    if os.path.exists(text):  # noqa: PTH110
        raise InputError(f"{expected}: infer takes one image")
    if not has_magic(text) or "\0" in text:
        raise InputError(f"{expected}, which does not exist")
    paths = [Path(name) for name in sorted(glob(text, recursive=True)) if os.path.isfile(name)]  # noqa: PTH113, PTH207
    if not paths:
        raise InputError(f"{expected}, which no file matches")
    fixed = takewhile(lambda part: not has_magic(part), folder.parts)
    return paths, os.path.join(*fixed, "")  # noqa: PTH118


class Batch:
    """The images of a call with the metadata of each.

    Args:
        images: As for `find_images`.
        metadata: Metadata of the images.
        path_key: Key of the metadata that gets the name of an image's file; None for none.

    Raises:
        InputError: The images or the metadata cannot be used, or differ in number.
    """

    def __init__(self, images: Any, metadata: Metadata, path_key: str | None) -> None:
        self._images, self._folder = find_images(images)
        self._path_key = path_key
        self.total = len(self._images) if isinstance(self._images, Sized) else None
        """Number of images; None if nobody knows."""
        self._metadata_of: Callable[[Any], Any] = lambda _: metadata
        self._listed: Sequence[Any] | None = None
        if callable(metadata):
            self._metadata_of = metadata
        elif metadata is None or isinstance(metadata, Mapping):
            encode_json(metadata, "metadata")  # what all images would have is said at once
        else:
            self._listed = _checked_list(metadata, self.total)

    def __iter__(self) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
        """Yield each image with its metadata.

        Raises:
            InputError: There are more or fewer images than metadata, or a function returns something else.
        """
        number = 0
        for image in self._images:
            if self._listed is None:
                metadata = self._metadata_of(image)
                _check_mapping(metadata, f"the metadata of {source_name(image)}")
            elif number < len(self._listed):
                metadata = self._listed[number]
            else:
                raise _wrong_number(len(self._listed), None)
            yield image, self._named(image, metadata)
            number += 1
            del image  # no more than are needed are in memory
        if self._listed is not None and number != len(self._listed):
            raise _wrong_number(len(self._listed), number)

    def _named(self, image: Any, metadata: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Add the name of the image's file, unless the metadata have the key already."""
        name = _file_name(image, self._folder)
        if self._path_key is None or name is None or self._path_key in (metadata or {}):
            return metadata
        return {**(metadata or {}), self._path_key: name}


def _checked_list(metadata: Any, total: int | None) -> Sequence[Any]:
    if isinstance(metadata, str | bytes) or not isinstance(metadata, Sequence):
        raise InputError(
            "expected metadata to be a dict, a list with one for each image, or a function, got "
            f"{type(metadata).__name__}"
        )
    if total is not None and len(metadata) != total:
        raise _wrong_number(len(metadata), total)
    for number, row in enumerate(metadata):
        _check_mapping(row, f"metadata[{number}]")
    return metadata


def _check_mapping(row: Any, place: str) -> None:
    if row is not None and not isinstance(row, Mapping):
        raise InputError(f"expected {place} to be a dict, got {type(row).__name__}")


def _wrong_number(metadata: int, images: int | None) -> InputError:
    there = "more images" if images is None else f"{images} images"
    return InputError(f"expected metadata for each image, got {metadata} for {there}")


def _file_name(image: Any, folder: str | None) -> str | None:
    """Return the name of an image's file, with / on every system; None if it has none, as bytes and URLs."""
    name = source_name(image)
    has_path = isinstance(image, str | os.PathLike) or name != type(image).__name__
    if not has_path or "://" in name:
        return None
    path = Path(name)
    shown = path.relative_to(folder).as_posix() if folder is not None else path.name
    return os.fsencode(shown).decode(errors="replace") or None  # JSON has no bytes that are no text


def check_concurrency(concurrency: int) -> None:
    """Raise an InputError for a number of requests at a time that is none."""
    if not 1 <= concurrency <= MAX_CONCURRENCY:
        raise InputError(f"expected concurrency to be 1 to {MAX_CONCURRENCY}, got {concurrency}")


def until_fault(batch: Batch) -> Iterator[tuple[Any, Mapping[str, Any] | None] | Exception]:
    """Yield the images of a batch with their metadata; last the error that ends it, if one does.

    What was sent before is stored by then: its results come before the error.
    """
    try:
        yield from batch
    except Exception as error:  # noqa: BLE001 - of the caller's iterable or function, to whom it is raised
        yield error


def run_in_order(
    batch: Batch, infer: Callable[..., Result], concurrency: int, progress: "BatchProgress"
) -> Iterator[Result | FailedInference]:
    """Yield the results of images in their order; at most twice `concurrency` images are in memory."""
    pool = ThreadPoolExecutor(concurrency, "quadriga-client")
    waiting: deque[tuple[str, Future[Result]]] = deque()
    fault: Exception | None = None
    try:
        for pair in until_fault(batch):
            if isinstance(pair, Exception):
                fault = pair
                break
            if len(waiting) >= _AHEAD * concurrency:
                yield progress.note(outcome(*waiting.popleft()))
            waiting.append((source_name(pair[0]), pool.submit(infer, *pair)))
            del pair  # no more images than are needed are in memory
        while waiting:
            yield progress.note(outcome(*waiting.popleft()))
        if fault is not None:
            raise fault
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        progress.end()


def outcome(source: str, answered: "Future[Result]") -> Result | FailedInference:
    """Return a result, or what stands in its place; raise errors that all further images would have, too."""
    try:
        return answered.result()
    except _NOT_OF_AN_IMAGE:
        raise
    except ClientError as error:
        return FailedInference(source, error)


class BatchProgress:
    """The number of images that are done, shown as a line on stderr.

    Args:
        is_shown: As for `ProgressLine`.
        total: Number of images; None if nobody knows.
    """

    def __init__(self, is_shown: bool | None, total: int | None) -> None:  # noqa: FBT001
        self._line = ProgressLine(is_shown)
        self._total = total
        self._done = self._failed = 0
        self._begun_s = time.monotonic()

    def note(self, result: Result | FailedInference) -> Result | FailedInference:
        """Count a result, and return it."""
        self._done += 1
        self._failed += not result.ok
        self._line.show(self._text)
        return result

    def end(self) -> None:
        """Show the last state."""
        self._line.end(self._text)

    def _text(self) -> str:
        rate = self._done / max(time.monotonic() - self._begun_s, 1e-9)
        of = "" if self._total is None else f"/{self._total}"
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._done}{of} images, {rate:.1f}/s{failed}"
