"""COCO's segmentations as masks: run lengths, plain or as text, and polygons.

Source: pycocotools 2.0, `maskApi.c`: rleFrString.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated

import msgspec
import numpy as np

from monitor.evaluation.arrays import Integers, ranges
from monitor.evaluation.masks import Masks, Runs, from_runs
from monitor.evaluation.polygons import Where, from_polygons
from monitor.evaluation.state import EvaluationError

_FIRST_CHARACTER, _MOST_CHARACTERS = 48, 12


class RunLengths(msgspec.Struct, gc=False):
    """A mask as COCO writes it: pixels outside and inside by turns, down the columns."""

    size: tuple[int, int]
    """Height and width of the image."""
    counts: str | list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]]


Segmentation = list[list[float]] | RunLengths
"""Polygons x, y, x, y ..., whose union is meant, or runs."""


def masks_of(segmentations: Sequence[Segmentation | None], sizes: Integers, where: Where) -> Masks:
    """Read segmentations as masks; see `runs_of`."""
    return from_runs(runs_of(segmentations, sizes, where), sizes[:, 1])


def runs_of(segmentations: Sequence[Segmentation | None], sizes: Integers, where: Where) -> Runs:
    """Read segmentations as runs.

    Args:
        segmentations: (N,) of any number of images.
        sizes: (N, 2) width and height of the image of each.
        where: Names one.

    Raises:
        EvaluationError: One is missing, has another size than its image, or is none of COCO's.
    """
    polygons: list[list[list[float]]] = []
    of_polygons: list[int] = []
    runs: list[tuple[int, RunLengths]] = []
    for at, (one, (width, height)) in enumerate(zip(segmentations, sizes.tolist(), strict=True)):
        if isinstance(one, list):
            polygons.append(one)
            of_polygons.append(at)
        elif one is None or one.size != (height, width):
            got = "none" if one is None else f"one of {one.size[0]} x {one.size[1]}"
            raise EvaluationError(
                f"{where(at)}: expected a segmentation of {height} x {width}, height and width of"
                f" the image, got {got}"
            )
        else:
            runs.append((at, one))
    texts = [(at, one.counts) for at, one in runs if isinstance(one.counts, str)]
    plain = [(at, one.counts) for at, one in runs if isinstance(one.counts, list)]
    of = np.array([at for at, _ in texts] + [at for at, _ in plain], np.int64)
    lengths, counts = counts_of_texts(
        [text.encode() for _, text in texts], lambda at: where(texts[at][0])
    )
    given = np.fromiter(chain.from_iterable(one for _, one in plain), np.int64)
    by_counts = from_counts(
        np.concatenate([lengths, given]),
        np.concatenate([counts, np.array([len(one) for _, one in plain], np.int64)]),
        sizes[of].prod(axis=1),
        lambda at: where(of[at]),
    )
    by_polygons = from_polygons(polygons, sizes[of_polygons], lambda at: where(of_polygons[at]))
    region = np.concatenate(
        [of[by_counts.region], np.array(of_polygons, np.int64)[by_polygons.region]]
    )
    order = np.argsort(region, kind="stable")
    start, end = (
        np.concatenate([one, other])[order]
        for one, other in zip(by_counts[1:], by_polygons[1:], strict=True)
    )
    return Runs(region[order], start, end)


def counts_of_texts(texts: list[bytes], where: Where) -> tuple[Integers, Integers]:
    """Read compressed run lengths.

    Args:
        texts: (N,) each the `counts` of a mask.
        where: Names one.

    Returns:
        The run lengths of all, and how many (N,) each has.

    Raises:
        EvaluationError: A text is none that COCO writes.
    """
    codes = np.frombuffer(b"".join(texts), np.uint8) - np.uint8(_FIRST_CHARACTER)
    bounds = np.append(0, np.cumsum([len(text) for text in texts], dtype=np.int64))
    ends = np.flatnonzero(codes < 32)  # any other character goes on in the next
    counts = np.diff(np.searchsorted(ends, bounds))
    sizes = np.diff(ends, prepend=-1)
    last = bounds[1:][np.diff(bounds) > 0] - 1
    wrong = np.concatenate(
        [np.flatnonzero(codes > 63), last[codes[last] > 31], ends[sizes > _MOST_CHARACTERS]]
    )
    if wrong.size:
        at = int(np.searchsorted(bounds, wrong[0], "right")) - 1
        raise EvaluationError(f"{where(at)}: expected counts to be COCO's compressed run lengths")
    values = (codes[ends] & 31).astype(np.int64)
    values -= (values & 16) << 1
    # The last character has the highest bits.
    for nth in range(1, int(sizes.max(initial=1))):
        more = np.flatnonzero(sizes > nth)
        values[more] = values[more] << 5 | codes[ends[more] - nth] & 31
    return _from_differences(values, counts), counts


def _from_differences(values: Integers, counts: Integers) -> Integers:
    """Undo that all run lengths but the first three are written less the last but one."""
    start = np.repeat(np.cumsum(counts) - counts, counts)
    nth = np.arange(len(values)) - start
    sums = np.empty_like(values)
    sums[::2], sums[1::2] = np.cumsum(values[::2]), np.cumsum(values[1::2])
    first = np.minimum(start + 2 - nth % 2, len(values) - 1)
    return np.where(nth == 0, values, sums - sums[first] + values[first])


def from_counts(lengths: Integers, counts: Integers, pixels: Integers, where: Where) -> Runs:
    """Turn run lengths into runs.

    Args:
        lengths: Of pixels outside and inside by turns, of all regions.
        counts: (N,) how many each region has.
        pixels: (N,) of the image of each.
        where: Names a region.

    Raises:
        EvaluationError: Run lengths are negative or do not fill the image.
    """
    region, number = ranges(np.zeros_like(counts), counts)
    for at in np.flatnonzero((lengths < 0) | (lengths > pixels[region])).tolist():
        name, most = where(int(region[at])), pixels[region[at]]
        raise EvaluationError(f"{name}: expected counts of 0 to {most}, got {lengths[at]}")
    ends = np.cumsum(counts)
    sums = np.append(0, np.cumsum(lengths))
    base = sums[ends - counts]
    given = sums[ends] - base
    for at in np.flatnonzero(given != pixels).tolist():
        raise EvaluationError(
            f"{where(at)}: expected counts to sum to {pixels[at]} pixels, got {given[at]}"
        )
    inside = np.flatnonzero((number % 2 == 1) & (lengths > 0))
    end = sums[1:][inside] - base[region[inside]]
    return Runs(region[inside], end - lengths[inside], end)
