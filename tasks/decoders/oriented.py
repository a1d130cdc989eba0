"""Families of rotated boxes: centre x, centre y, width, height, pixels; radians, clockwise on the screen."""

import msgspec
import numpy as np

from tasks.decoders import Candidates
from tasks.decoders.reading import above, finished, first, named
from tasks.predictions import Outputs, check_finite


def ultralytics(outputs: Outputs, score_threshold: float, size_wh: tuple[int, int]) -> Candidates:
    """Read `output0`, float (4 + classes + 1, anchors): box, class scores, and the angle as the last.

    YOLOv8-obb, 11-obb and 26-obb; else as `tasks.decoders.ultralytics.raw_head`.

    Source: Ultralytics 8.4, `utils/nms.py` non_max_suppression with `rotated=True`.
    """
    head = first(outputs, "4 + classes + 1", "anchors")
    best = head[4:-1].max(axis=0)
    kept = above(best, score_threshold)
    candidates = head[:, kept]
    check_finite(candidates)
    return Candidates(
        boxes=np.concatenate([candidates[:4], candidates[-1:]]).T,
        scores=best[kept],
        class_ids=candidates[4:-1].argmax(axis=0),
        suppress="probiou",
    )


def ultralytics_end_to_end(
    outputs: Outputs, score_threshold: float, size_wh: tuple[int, int]
) -> Candidates:
    """Read `output0`, float (detections, 7): box, score, class, angle.

    26-obb exported end to end, and every such model exported with `nms=True`.

    Source: Ultralytics 8.4, `models/yolo/obb/predict.py` OBBPredictor.construct_result.
    """
    rows = first(outputs, "detections", 7)
    return finished(rows[:, [0, 1, 2, 3, 6]], rows[:, 4], rows[:, 5], score_threshold)


def mmdeploy(outputs: Outputs, score_threshold: float, size_wh: tuple[int, int]) -> Candidates:
    """Read `dets`, float (detections, 6): box, angle, score, and `labels`, int, of MMRotate's models.

    Suppression follows, as in MMRotate. Most graphs have done it already, at a lower overlap; then
    nothing more falls.

    Source: MMDeploy 1.3, `docs/en/04-supported-codebases/mmrotate.md`.
    """
    rows = named(outputs, "dets", "detections", 6)
    labels = named(outputs, "labels", len(rows))
    found = finished(rows[:, :5], rows[:, 5], labels, score_threshold)
    return msgspec.structs.replace(found, suppress=True)
