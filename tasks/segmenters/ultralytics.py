"""Ultralytics instance segmentation: YOLOv5, v8, v9, 11, 12, 26 with mask prototypes.

Masks are made at the resolution of the image, as the library does with `retina_masks=True`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from quadriga.tasks.decoders import Candidates, ultralytics
from quadriga.tasks.decoders.reading import class_numbers
from quadriga.tasks.geometry import clip_boxes, nms
from quadriga.tasks.predictions import OutputError, Outputs, check_finite
from quadriga.tasks.resize import Affine
from quadriga.tasks.sampling import Floats, cut, grid_of, visible
from quadriga.tasks.segmenters import MaskRegion, SegmenterOptions, pixels_of_box, region_of

_ROUNDING_CELLS = 1e-6
"""Distance from an edge between cells that counts as none."""


def raw_head(outputs: Outputs, affine: Affine, options: SegmenterOptions) -> Iterator[MaskRegion]:
    """Read a head, float (4 + classes + k, anchors), and prototypes, float (k, h, w).

    The first rows are those of a detection head; the last k are the weights of the prototypes in the mask. Overlapping boxes are suppressed before masks are made.

    Source: Ultralytics 8.4, `models/yolo/segment/predict.py` and `utils/ops.py` process_mask_native.
    """
    head, prototypes = _split(outputs)
    count = 4 + options.label_count
    if head.shape[0] != count + len(prototypes):
        raise OutputError(
            f"expected output 0 to have 4 + {options.label_count} + {len(prototypes)} rows,"
            f" for boxes, labels and prototypes, got {head.shape[0]}"
        )
    threshold = options.score_threshold
    # not `>`: NaN passes, and is reported later
    scoring = head[:, ~(head[4:count].max(axis=0) <= threshold)]
    candidates = ultralytics.raw_head({"output0": scoring[:count]}, threshold, affine.network_wh)
    selected = nms(
        candidates.boxes,
        candidates.scores,
        options.iou_threshold,
        class_ids=candidates.class_ids if options.nms == "class" else None,
        limit=options.limit,
    )
    weights = scoring[count:].T
    return _regions(candidates, selected, weights, prototypes=prototypes, affine=affine)


def objectness_head(
    outputs: Outputs, affine: Affine, options: SegmenterOptions
) -> Iterator[MaskRegion]:
    """Read a head, float (anchors, 5 + classes + k), and prototypes, float (k, h, w).

    Its columns are box, objectness, class scores and weights; the score of a class is multiplied by the objectness.

    Source: YOLOv5 7.0, `utils/general.py` non_max_suppression and `segment/predict.py`.
    """
    rows, prototypes = _split(outputs)
    rows = rows[~(rows[:, 4] <= options.score_threshold)]
    with np.errstate(over="ignore", invalid="ignore"):  # reported by `raw_head`
        rows[:, 5 : 5 + options.label_count] *= rows[:, 4:5]
    head = np.delete(rows, 4, axis=1).T
    return raw_head({"head": head, "prototypes": prototypes}, affine, options)


def end_to_end(outputs: Outputs, affine: Affine, options: SegmenterOptions) -> Iterator[MaskRegion]:
    """Read rows, float (N, 6 + k), and prototypes, float (k, h, w); each object has one row.

    A row is left, top, right, bottom in pixels of the network's input, score, class and the weights of the
    prototypes.
    """
    rows, prototypes = _split(outputs)
    if rows.shape[1] != 6 + len(prototypes):
        raise OutputError(
            f"expected output 0 to have 6 + {len(prototypes)} columns, for boxes, scores, classes"
            f" and prototypes, got {rows.shape[1]}"
        )
    rows = rows[~(rows[:, 4] <= options.score_threshold)].astype(np.float32, copy=False)
    check_finite(rows, subject="output 0")
    selected = np.argsort(-rows[:, 4], kind="stable")[: options.limit]
    candidates = Candidates(rows[:, :4], rows[:, 4], class_numbers(rows[:, 5]))
    return _regions(candidates, selected, rows[:, 6:], prototypes=prototypes, affine=affine)


def _split(outputs: Outputs) -> tuple[npt.NDArray[Any], Floats]:
    heads = [output for output in outputs.values() if output.ndim == 2]
    prototypes = [output for output in outputs.values() if output.ndim == 3]
    if len(heads) != 1 or len(prototypes) != 1:
        shapes = ", ".join(str(output.shape) for output in outputs.values())
        raise OutputError(f"expected a head of 2 axes and prototypes of 3 axes, got {shapes}")
    check_finite(prototypes[0], subject="prototypes")
    return heads[0], prototypes[0].astype(np.float32, copy=False)


def _regions(
    candidates: Candidates,
    selected: npt.NDArray[np.int64],
    weights: npt.NDArray[Any],
    prototypes: Floats,
    affine: Affine,
) -> Iterator[MaskRegion]:
    check_finite(weights, subject="output 0")
    factor = _enlargement(affine, prototypes.shape[1:])
    grid = grid_of(affine, prototypes.shape[1:])
    boxes = clip_boxes(affine.to_image(candidates.boxes), affine.width, affine.height)
    for index in selected.tolist():
        window = pixels_of_box(affine, boxes[index].tolist()).intersection(visible(affine))
        if window.empty:
            continue
        crop, crop_grid = cut(prototypes, grid, window, margin=2)
        # only the pixels of the box; not a matrix product, whose threads would cost more than they save
        logits = np.einsum("k,khw->hw", weights[index].astype(np.float32), crop)
        label_score = int(candidates.class_ids[index]), float(candidates.scores[index])
        yield from region_of(logits, crop_grid, window, *label_score, upsample=factor)


def _enlargement(affine: Affine, cells_hw: tuple[int, ...]) -> int:
    """Return the factor, 1, 2 or 4, by which prototypes are enlarged so that the letterbox border is whole cells."""
    for factor in (1, 2, 4):
        height, width = cells_hw[0] * factor, cells_hw[1] * factor
        grid = grid_of(affine, (height, width))
        right, bottom = grid.px + grid.sx * grid.width, grid.py + grid.sy * grid.height
        edges = max(grid.px, 0), max(grid.py, 0), min(right, width), min(bottom, height)
        if all(abs(edge - round(edge)) < _ROUNDING_CELLS for edge in edges):
            return factor
    return 1
