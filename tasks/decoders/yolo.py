"""YOLO families outside of Ultralytics' package: YOLOv5, v6, v7, YOLOX and DAMO-YOLO."""

import numpy as np

from quadriga.tasks.decoders import Candidates
from quadriga.tasks.decoders.reading import above, first
from quadriga.tasks.geometry import Floats, xywh_to_xyxy
from quadriga.tasks.predictions import OutputError, Outputs, Size, check_finite


def objectness(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read the first output, float (anchors, 5 + classes): box, objectness, class scores.

    The box is centre x, centre y, width, height in pixels; a score is objectness times that of the class,
    both probabilities already. Each anchor gives one candidate, of its best class.

    Source: YOLOv5 7.0, `utils/general.py` non_max_suppression; YOLOv7 and YOLOv6 do the same; YOLOX,
    `utils/boxes.py` postprocess, for files exported with `--decode_in_inference`.
    """
    return _scored(first(outputs, "anchors", "5 + classes"), score_threshold)


def yolox_undecoded(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read the first output as `objectness` does, with boxes relative to their cell of the grid.

    Centres are in strides from the corner of the cell, sizes are logarithms of strides. Cells of the
    strides 8, 16 and 32 follow each other, row by row; models for large images add the stride 64.

    Source: YOLOX 0.3, `utils/demo_utils.py` demo_postprocess.
    """
    head = first(outputs, "anchors", "5 + classes")
    grids = [_grid(stride, size_wh) for stride in (8, 16, 32, 64)]
    for count in (3, 4):
        cells = np.concatenate(grids[:count])
        if len(cells) == len(head):
            break
    else:
        raise OutputError(
            f"expected output 0 to have {sum(map(len, grids[:3]))} anchors, the cells of {size_wh[0]} x"
            f" {size_wh[1]} at strides of 8, 16 and 32, or {sum(map(len, grids))} with 64,"
            f" got {len(head)}"
        )
    stride = cells[:, 2:]
    centres = (head[:, :2] + cells[:, :2]) * stride
    with np.errstate(over="ignore"):  # infinity is reported only above the threshold
        sizes = np.exp(head[:, 2:4]) * stride
    return _scored(np.concatenate([centres, sizes, head[:, 4:]], axis=1), score_threshold)


def _grid(stride: int, size_wh: Size) -> Floats:
    """Return the cells of one stride, row by row: float32 (cells, 3), column, row, stride."""
    columns, rows = size_wh[0] // stride, size_wh[1] // stride
    y, x = np.mgrid[:rows, :columns]
    grid = np.stack([x, y, np.full_like(x, stride)], axis=-1)
    return grid.reshape(-1, 3).astype(np.float32)


def _scored(head: Floats, score_threshold: float) -> Candidates:
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # infinity is reported only above the threshold
        scores = head[:, 4] * head[:, 5:].max(axis=1)
    anchors = above(scores, score_threshold)
    candidates = head[anchors]
    check_finite(candidates)
    boxes, class_ids = xywh_to_xyxy(candidates[:, :4]), candidates[:, 5:].argmax(axis=1)
    return Candidates(boxes, scores[anchors], class_ids)


def damo_yolo(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read the scores, float (anchors, classes), then the boxes, float (anchors, 4), xyxy, pixels.

    The outputs come in this order, or in any order if the number of classes is not 4. Every class of an anchor
    that scores above the threshold gives a candidate.

    Source: DAMO-YOLO 0.3, `damo/utils/boxes.py` multiclass_nms.
    """
    arrays = list(outputs.values())
    if len(arrays) != 2:
        raise OutputError(f"expected 2 outputs, scores and boxes, got {len(arrays)}")
    if arrays[0].shape[-1:] == (4,) != arrays[1].shape[-1:]:
        arrays.reverse()
    scores = first({"scores": arrays[0]}, "anchors", "classes")
    boxes = first({"boxes": arrays[1]}, len(scores), 4)
    flat = above(scores.ravel(), score_threshold)
    anchors, class_ids = np.divmod(flat, scores.shape[1])
    check_finite(boxes[anchors], scores[anchors, class_ids])
    return Candidates(boxes[anchors], scores[anchors, class_ids], class_ids)
