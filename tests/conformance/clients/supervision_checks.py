"""quadriga-client's results in supervision, pandas and polars: what they read is what the server answered."""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "client"))

import numpy as np
import pandas as pd
import polars as pl
import supervision as sv
from checks import Checks, equal

from quadriga_client import Client

checks = Checks()
SERVER = checks.server
CLIENT = Client(f"http://{SERVER['http']}", key="")
ANNOTATORS = {
    "detection": [sv.BoxAnnotator(), sv.LabelAnnotator(), sv.DotAnnotator()],
    "oriented": [sv.OrientedBoxAnnotator(), sv.LabelAnnotator()],
    "segmentation": [sv.MaskAnnotator(), sv.PolygonAnnotator(), sv.BoxAnnotator()],
}


def infer(task):
    return CLIENT.infer(SERVER["models"][task], SERVER["images"][task], {"task": task, "number": 1})


def annotated(task):
    result = infer(task)
    detections = result.to_supervision()
    assert len(detections) > 0
    equal(list(detections["class_name"]), result.labels)
    np.testing.assert_allclose(detections.confidence, result.scores)
    picture = np.asarray(result.draw()).copy()
    for annotator in ANNOTATORS[task]:
        scene = annotator.annotate(picture.copy(), detections)
        assert scene.shape == picture.shape
        assert (scene != picture).any(), f"{type(annotator).__name__} draws nothing"


for name in ANNOTATORS:
    checks.add(f"supervision draws {name}", partial(annotated, name))


def boxes_are_those_of_the_server():
    detections = infer("detection").to_supervision()
    rows = SERVER["predictions"]["detection"]
    expected = [[row[side] for side in ("xmin", "ymin", "xmax", "ymax")] for row in rows]
    np.testing.assert_allclose(detections.xyxy, np.asarray(expected, np.float32), rtol=1e-5)


def masks_are_filled():
    result = infer("segmentation")
    detections = result.to_supervision()
    width, height = result.image_size
    equal(detections.mask.shape, (len(result.regions), height, width))
    for mask, (left, top, right, bottom) in zip(detections.mask, detections.xyxy, strict=True):
        rows, columns = np.nonzero(mask)
        equal(
            (columns.min(), rows.min(), columns.max(), rows.max()),
            (int(left), int(top), int(right), int(bottom)),
        )


def rotated_boxes_have_their_corners():
    result = infer("oriented")
    corners = result.to_supervision().data["xyxyxyxy"]
    equal(corners.shape, (len(result.predictions), 4, 2))
    drawn = CLIENT.infer(
        SERVER["models"]["oriented"],
        SERVER["images"]["oriented"],
        parameters={"corners": True},
    )
    server = np.asarray([row["corners"] for row in drawn.predictions], np.float32)
    for ours, theirs in zip(corners, server, strict=True):
        distances = np.linalg.norm(ours[:, None] - theirs[None], axis=2)
        assert distances.min(axis=1).max() < 0.01, f"{ours} and {theirs}"


def nothing_found_is_drawn():
    result = CLIENT.infer(
        SERVER["models"]["detection"],
        SERVER["images"]["detection"],
        parameters={"score_threshold": 1.0},
    )
    equal(result.predictions, [])
    detections = result.to_supervision()
    equal(len(detections), 0)
    picture = np.zeros((10, 10, 3), np.uint8)
    equal(sv.BoxAnnotator().annotate(picture.copy(), detections).tolist(), picture.tolist())


def tables_have_the_rows():
    infer("detection")
    infer("oriented")
    query = CLIENT.query("meta.number=1", consistency="journal", order="ts")
    ids = [inference.id for inference in query]
    frame = query.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    equal(frame["id"].tolist(), ids)
    assert pd.api.types.is_datetime64_any_dtype(frame["created_at"])
    table = query.to_polars()
    equal(table["id"].to_list(), ids)
    equal(table["labels"].dtype, pl.List(pl.String))
    equal(query.to_arrow().column("id").to_pylist(), ids)
    equal(set(frame["meta.task"]), {"detection", "oriented", "segmentation"})


checks.add("boxes", boxes_are_those_of_the_server)
checks.add("masks", masks_are_filled)
checks.add("corners", rotated_boxes_have_their_corners)
checks.add("nothing found", nothing_found_is_drawn)
checks.add("tables", tables_have_the_rows)
checks.run()
