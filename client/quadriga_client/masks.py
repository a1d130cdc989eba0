"""Masks of classes as ground truth: each class becomes an annotation with the rings around its pixels.

The points of a ring are centres of pixels. A region has the pixels that lie on a ring or inside an odd number of them, so
the server fills exactly the pixels of the mask again.
"""

import io
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .errors import InputError, load_package

Labels = str | Mapping[int, str] | Sequence[str]
"""Label of each value of a mask: by value, or as a list whose first label is that of 0; or one for all pixels that are not 0."""

_CHANNELS = {"1", "L", "P", "I", "I;16", "I;16B", "I;16L"}
"""Modes of Pillow with one channel of whole numbers; that of a palette has the numbers of its colours."""


def mask_annotations(
    mask: Any,
    labels: Labels,
    *,
    ignore: Collection[int] = (),
    size: tuple[int, int] | None = None,
) -> list[dict[str, Any]]:
    """Return the annotations of a mask, for `Truth.state` and `Truth.bulk`: one for each label that it has.

    Args:
        mask: PNG with one channel or a palette, as a path, bytes, file object or Pillow image; or an array (height, width) of whole
            numbers or booleans.
        labels: Label of each value. A value 0 without a label is the background, and not stated.
        ignore: Further values that are not stated, such as 255 for pixels that nobody knows.
        size: Width and height that the mask has to have, such as the `image_size` of a result; None takes any.

    Raises:
        InputError: It is no such mask, is of another size, or has a value without a label.
        MissingPackage: numpy, or for a file Pillow, is not installed.
    """
    numpy = load_package("numpy", "a mask")
    values = _values(mask, numpy)
    height, width = values.shape
    if size is not None and (width, height) != tuple(size):
        is_turned = (height, width) == tuple(size)
        hint = "; an image counts as its EXIF orientation turns it" if is_turned else ""
        raise InputError(
            f"expected a mask of {size[0]} x {size[1]} pixels, got {width} x {height}{hint}"
        )
    if isinstance(labels, str):
        is_stated = (values != 0) & ~numpy.isin(values, list(ignore))
        values, labels, ignore = is_stated.astype(numpy.uint8), {1: labels}, ()
    by_value = dict(labels) if isinstance(labels, Mapping) else dict(enumerate(labels))
    stated: dict[str, list[int]] = {}  # several values may be one label
    unknown = []
    present, counts = numpy.unique(values, return_counts=True)
    for value, count in zip(present.tolist(), counts.tolist(), strict=True):
        if value in by_value and value not in ignore:
            stated.setdefault(by_value[value], []).append(value)
        elif value not in ignore and value != 0:
            unknown.append(f"{value} ({count} pixels)")
    if unknown:
        raise InputError(
            f"expected a label for each value of the mask, got none for {', '.join(unknown[:10])}: name what nobody knows in ignore"
        )
    return [
        {"label": label, "contour": mask_rings(numpy.isin(values, numbers))}
        for label, numbers in stated.items()
    ]


def _values(mask: Any, numpy: Any) -> Any:
    """Return the values of a mask, whole numbers (height, width)."""
    if isinstance(mask, str | os.PathLike | bytes | bytearray | memoryview) or (
        hasattr(mask, "read") and not hasattr(mask, "getexif")
    ):
        pillow = load_package("PIL.Image", "a mask")
        is_bytes = isinstance(mask, bytes | bytearray | memoryview)
        try:
            with pillow.open(io.BytesIO(mask) if is_bytes else mask) as opened:
                mask = opened.copy()
        except Exception as error:  # Pillow raises errors of many kinds
            name = "the bytes" if is_bytes else f"{getattr(mask, 'name', mask)!r:.200}"
            raise InputError(f"cannot read a mask from {name}: {error}") from error
    if hasattr(mask, "getexif") and mask.mode not in _CHANNELS:
        raise InputError(
            f"expected a mask with one channel or a palette, whose values are classes, got an image of mode {mask.mode}"
        )
    values = numpy.asarray(mask)
    if values.ndim != 2 or values.dtype.kind not in "biu" or not values.size:
        raise InputError(
            f"expected a mask of whole numbers (height, width), got {values.dtype} {values.shape}"
        )
    return values.astype(numpy.uint8) if values.dtype.kind == "b" else values


def mask_rings(mask: Any) -> list[list[dict[str, float]]]:
    """Return the rings around the pixels of a mask and around its holes, each a list of points `{"x", "y"}`.

    Pixels that touch at a corner belong together. Points in the middle of a straight run are left out. A ring around a single
    pixel, or a line of them, has one or two points.

    Args:
        mask: bool (height, width).

    Source: Suzuki and Abe, Topological structural analysis of digitized binary images by border following, 1985.
    """
    numpy = load_package("numpy", "a mask")
    rows, columns = numpy.flatnonzero(mask.any(axis=1)), numpy.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return []
    top, left = int(rows[0]), int(columns[0])
    padded = numpy.pad(mask[top : rows[-1] + 1, left : columns[-1] + 1], 1)
    width = padded.shape[1]
    rings = []
    # Pixels, in order, beside which there is nothing on the left, or on the right.
    flat = padded.ravel()
    opens, ends = flat.copy(), flat.copy()
    opens[1:] &= ~flat[:-1]
    ends[:-1] &= ~flat[1:]
    positions = numpy.flatnonzero(opens | ends)
    starts = (positions.tolist(), opens[positions].tolist(), ends[positions].tolist())
    for ring in _Borders(padded.tobytes(), width).rings(zip(*starts, strict=True)):
        points = (divmod(position, width) for position in ring)
        rings.append([{"x": left + x - 1.0, "y": top + y - 1.0} for y, x in points])
    return rings


class _Borders:
    """The borders of a mask as positions in its bytes.

    Args:
        filled: The mask row by row, with an empty border; not 0 where a pixel is.
        width: Length of a row.
    """

    def __init__(self, filled: bytes, width: int) -> None:
        self._filled = filled
        # Clockwise from the right, as y grows downwards.
        self._around = (1, width + 1, width, width - 1, -1, -width - 1, -width, 1 - width)
        self._directions = {offset: number for number, offset in enumerate(self._around)}
        self._followed: set[int] = set()
        """Pixels on a border that was followed."""
        self._ended: set[int] = set()
        """Those of which the border passed the empty pixel on the right."""

    def rings(self, starts: Iterable[tuple[int, bool, bool]]) -> Iterator[list[int]]:
        """Yield the corners of each border, those around the pixels and those of holes as they are met."""
        for position, opens, ends in starts:
            if opens and position not in self._followed:
                yield self._follow(position, 4)
            elif ends and position not in self._ended:
                yield self._follow(position, 0)

    def _follow(self, start: int, empty: int) -> list[int]:
        """Follow a border from a pixel, beside which there is none in the direction `empty`; return its corners."""
        filled, around = self._filled, self._around
        clockwise = (around[(empty + turn) % 8] for turn in range(1, 8))
        first = next((start + offset for offset in clockwise if filled[start + offset]), None)
        if first is None:
            self._followed.add(start)
            self._ended.add(start)
            return [start]
        path, steps = [], []
        before, here = first, start
        while True:
            direction = self._directions[before - here]
            passed_right = False
            for _ in range(8):
                direction = (direction - 1) % 8
                if filled[here + around[direction]]:
                    break
                passed_right |= direction == 0
            self._followed.add(here)
            if passed_right:
                self._ended.add(here)
            path.append(here)
            steps.append(direction)
            if here == first and here + around[direction] == start:
                return [
                    position
                    for number, position in enumerate(path)
                    if steps[number] != steps[number - 1]
                ]
            before, here = here, here + around[direction]
