"""Ultralytics detection heads: YOLOv5u, v8, v9, 11, 12, and v10, 26 exported without end-to-end."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.decoders import Candidates
from tasks.geometry import xywh_to_xyxy
from tasks.predictions import OutputError


def raw_head(
    outputs: Mapping[str, npt.NDArray[Any]],
    score_threshold: float,
    size_wh: tuple[int, int],  # noqa: ARG001 - this head answers pixels
) -> Candidates:
    """Read `output0`, float (4 + classes, anchors): centre x, centre y, width, height, class scores.

    Boxes are in pixels of the network's input, scores are probabilities already. Each anchor gives one
    candidate, of its best class; of equal classes, the first.

    Raises:
        OutputError: The output has another shape, or holds values that are not finite.

    Source: Ultralytics 8.4, `utils/nms.py` non_max_suppression with `multi_label=False`.
    """
    head = next(iter(outputs.values()))
    if head.ndim != 2 or head.shape[0] < 5:
        raise OutputError(
            f"expected output 0 to have the shape (4 + classes, anchors), got {head.shape}"
        )
    # the best score first and its class for the kept alone: 7 times faster than both for all
    best = head[4:].max(axis=0)
    kept = np.flatnonzero(~(best <= score_threshold))  # NaN passes, to be reported
    candidates = head[:, kept].astype(np.float32, copy=False)
    if not np.isfinite(candidates).all():
        raise OutputError("expected output 0 to hold finite numbers, got NaN or infinity")
    return Candidates(
        boxes=xywh_to_xyxy(candidates[:4].T),
        scores=best[kept].astype(np.float32, copy=False),
        class_ids=candidates[4:].argmax(axis=0),
    )
