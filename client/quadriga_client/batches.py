"""Many images: a few at a time, results in order, errors in their place."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quadriga_client.errors import (
    ClientError,
    Forbidden,
    InputError,
    NotFound,
    Unauthenticated,
    Unreachable,
)
from quadriga_client.images import SUFFIXES, source_name
from quadriga_client.results import Result

MAX_CONCURRENCY = 256
_AHEAD = 2
_SHOWN_EVERY_S = 0.25
_NOT_OF_AN_IMAGE = (Unauthenticated, Forbidden, NotFound, Unreachable)
"""Errors that all further images would have, too."""


@dataclass(frozen=True, slots=True)
class FailedInference:
    """What stands in the place of the result of an image that failed."""

    source: str
    """Name of the image: its path, or its type."""
    error: ClientError
    """Why there is no result."""

    @property
    def ok(self) -> bool:
        """False; a `Result` has True."""
        return False


def images_of(images: Any) -> Iterator[Any]:
    """Yield the images of a folder, sorted by name, or those of an iterable as they are.

    Raises:
        InputError: There is no such folder, or it is one image.
    """
    if isinstance(images, str | os.PathLike):
        folder = Path(images)
        if not folder.is_dir():
            raise InputError(
                f"expected a folder of images or an iterable, got {os.fspath(images)!r}"
            )
        with os.scandir(folder) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if os.path.splitext(entry.name)[1].lower() in SUFFIXES and entry.is_file()  # noqa: PTH122
            )
        return (folder / name for name in names)
    if isinstance(images, bytes) or not isinstance(images, Iterable):
        raise InputError(f"expected a folder or an iterable of images, got {type(images).__name__}")
    return iter(images)


def check_concurrency(concurrency: int) -> None:
    """Raise an InputError for a number of requests at a time that is none."""
    if not 1 <= concurrency <= MAX_CONCURRENCY:
        raise InputError(f"expected concurrency to be 1 to {MAX_CONCURRENCY}, got {concurrency}")


def run_in_order(
    images: Iterator[Any], infer: Callable[[Any], Result], concurrency: int, progress: "Progress"
) -> Iterator[Result | FailedInference]:
    """Yield the results of images in their order; at most twice `concurrency` images are in memory."""
    pool = ThreadPoolExecutor(concurrency, "quadriga-client")
    waiting: deque[tuple[str, Future[Result]]] = deque()
    try:
        for image in images:
            if len(waiting) >= _AHEAD * concurrency:
                yield progress.note(outcome(*waiting.popleft()))
            waiting.append((source_name(image), pool.submit(infer, image)))
            del image
        while waiting:
            yield progress.note(outcome(*waiting.popleft()))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        progress.end()


def outcome(source: str, answered: "Future[Result]") -> Result | FailedInference:
    """Return a result, or what stands in its place; raise errors that all further images would have, too."""
    try:
        return answered.result()
    except ClientError as error:
        return failure(source, error)


def failure(source: str, error: ClientError) -> FailedInference:
    """Return what stands in the place of a result, or raise the error if all further images would have it, too."""
    if isinstance(error, _NOT_OF_AN_IMAGE):
        raise error
    return FailedInference(source, error)


class Progress:
    """A line about what is done, on stderr; none if it is not wanted.

    Args:
        is_shown: Whether it is wanted.
        images: The images, whose number is shown too if it is known.
    """

    def __init__(self, is_shown: bool, images: Any) -> None:  # noqa: FBT001
        self._is_shown = is_shown
        is_counted = isinstance(images, Sequence) and not isinstance(images, str)
        self._total = len(images) if is_counted else None
        self._done = self._failed = 0
        self._begun_s = time.monotonic()
        self._shown_s = 0.0

    def note(self, result: Result | FailedInference) -> Result | FailedInference:
        """Count a result, and return it."""
        self._done += 1
        self._failed += not result.ok
        now_s = time.monotonic()
        if self._is_shown and now_s - self._shown_s >= _SHOWN_EVERY_S:
            self._shown_s = now_s
            self._show(now_s, "")
        return result

    def end(self) -> None:
        """Show the last state."""
        if self._is_shown:
            self._show(time.monotonic(), "\n")

    def _show(self, now_s: float, end: str) -> None:
        rate = self._done / max(now_s - self._begun_s, 1e-9)
        of = "" if self._total is None else f"/{self._total}"
        failed = f", {self._failed} failed" if self._failed else ""
        print(f"\r{self._done}{of} images, {rate:.1f}/s{failed}", end=end, file=sys.stderr, flush=True)  # fmt: skip # noqa: T201
