"""Ultralytics detection heads: YOLOv5u, v8, v9, v10, 11, 12, 26 and RT-DETR, in every export form.

The form of a file shows in its metadata and shapes, not in the family's name: v10 and 26 come raw or end to
end, and any model may have its suppression in the graph.
"""

import numpy as np
import numpy.typing as npt

from quadriga.tasks.decoders import Candidates
from quadriga.tasks.decoders.reading import above, centred_to_pixels, finished, first
from quadriga.tasks.geometry import Floats, xywh_to_xyxy
from quadriga.tasks.predictions import Outputs, Size, check_finite


def raw_head(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `output0`, float (4 + classes, anchors): centre x, centre y, width, height, class scores.

    Boxes are in pixels of the network's input, scores are probabilities already. Each anchor gives one
    candidate, of its best class, or the first of equal ones.

    Source: Ultralytics 8.4, `utils/nms.py` non_max_suppression with `multi_label=False`.
    """
    head = first(outputs, "4 + classes", "anchors")
    candidates, scores, class_ids = _above_threshold(head, None, score_threshold)
    return Candidates(xywh_to_xyxy(candidates[:4].T), scores, class_ids)


def transposed_head(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `output0`, float (anchors, 4 + classes): `raw_head` with its axes swapped, as converters leave it."""
    head = first(outputs, "anchors", "4 + classes")
    return raw_head({"output0": np.ascontiguousarray(head.T)}, score_threshold, size_wh)


def _above_threshold(
    head: Floats, stop: int | None, score_threshold: float
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Return the anchors whose best class, in rows 4 to `stop`, scores above the threshold.

    Returns:
        Their columns of the head, scores and class ids.
    """
    # argmax only for the anchors that remain: 7 times faster than for all
    best = head[4:stop].max(axis=0)
    anchors = above(best, score_threshold)
    candidates = head[:, anchors]
    check_finite(candidates)
    return candidates, best[anchors], candidates[4:stop].argmax(axis=0)


def obb(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `output0`, float (4 + classes + 1, anchors): as `raw_head`, and the angle as the last.

    YOLOv8-obb, 11-obb and 26-obb: rotated boxes, radians, clockwise on the screen.

    Source: Ultralytics 8.4, `utils/nms.py` non_max_suppression with `rotated=True`.
    """
    head = first(outputs, "4 + classes + 1", "anchors")
    candidates, scores, class_ids = _above_threshold(head, -1, score_threshold)
    boxes = np.concatenate([candidates[:4], candidates[-1:]]).T
    return Candidates(boxes, scores, class_ids, suppress="probiou")


def rtdetr_raw(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `output0`, float (queries, 4 + classes): box as fractions, class scores.

    Releases before 8.4. Scores are probabilities; each query gives its best class.

    Source: Ultralytics 8.3, `models/rtdetr/predict.py` RTDETRPredictor.postprocess.
    """
    rows = first(outputs, "queries", "4 + classes")
    boxes = centred_to_pixels(rows[:, :4], size_wh)
    best = rows[:, 4:].argmax(axis=1).astype(np.float32)
    return finished(boxes, rows[:, 4:].max(axis=1), best, score_threshold)
