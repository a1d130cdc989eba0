"""The DETR families with raw outputs: a fixed number of queries, each with class logits and one box.

Boxes are centre x, centre y, width, height as fractions of the input; none needs suppression.
"""

import numpy as np

from quadriga.tasks.activations import sigmoid, softmax
from quadriga.tasks.decoders import Candidates
from quadriga.tasks.decoders.reading import above, centred_to_pixels, finished, named
from quadriga.tasks.geometry import Floats
from quadriga.tasks.predictions import Outputs, Size, check_finite


def softmax_queries(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `logits`, float (queries, classes + 1), whose last column is "no object", and `pred_boxes`.

    DETR, YOLOS and Table Transformer. Each query gives its best class.

    Source: transformers 4.57, DetrImageProcessor.post_process_object_detection.
    """
    logits = named(outputs, "logits", "queries", "1 + classes")
    boxes = named(outputs, "pred_boxes", len(logits), 4)
    scores = softmax(logits)[:, :-1]
    best = scores.argmax(axis=1).astype(np.float32)
    return finished(centred_to_pixels(boxes, size_wh), scores.max(axis=1), best, score_threshold)


def sigmoid_queries(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `logits`, float (queries, classes), and `pred_boxes`, float (queries, 4).

    RT-DETR, RT-DETRv2 and D-FINE of transformers. The best pairs of query and class are read, as many as
    there are queries, so that a query may give several labels.

    Source: transformers 4.57, RTDetrImageProcessor.post_process_object_detection.
    """
    logits = named(outputs, "logits", "queries", "classes")
    boxes = named(outputs, "pred_boxes", len(logits), 4)
    return _best_pairs(logits, centred_to_pixels(boxes, size_wh), score_threshold, len(logits))


def sigmoid_queries_100(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read the outputs of `sigmoid_queries`, but the best 100 pairs: Deformable and Conditional DETR, DETA.

    Source: transformers 4.57, DeformableDetrImageProcessor.post_process_object_detection.
    """
    logits = named(outputs, "logits", "queries", "classes")
    boxes = named(outputs, "pred_boxes", len(logits), 4)
    return _best_pairs(logits, centred_to_pixels(boxes, size_wh), score_threshold, 100)


def rf_detr(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `dets`, float (queries, 4), and `labels`, float (queries, classes): logits, not labels.

    Source: RF-DETR 1.3, `models/lwdetr.py` PostProcess, with as many pairs as queries.
    """
    boxes = named(outputs, "dets", "queries", 4)
    logits = named(outputs, "labels", len(boxes), "classes")
    return _best_pairs(logits, centred_to_pixels(boxes, size_wh), score_threshold, len(boxes))


def _best_pairs(logits: Floats, boxes: Floats, score_threshold: float, count: int) -> Candidates:
    """Select the best pairs of query and class; boxes are float32 (queries, 4), xyxy, pixels."""
    scores = sigmoid(logits.ravel()).astype(np.float32, copy=False)
    pairs = above(scores, score_threshold)
    check_finite(logits.ravel()[pairs])
    pairs = pairs[np.argsort(-scores[pairs], kind="stable")[:count]]
    queries, class_ids = np.divmod(pairs, logits.shape[1])
    check_finite(boxes[queries])
    return Candidates(boxes[queries], scores[pairs], class_ids, suppress=False)
