"""What a filter is about, and ranges of time; objects as crops: those that a filter is about, cut out with what is around them, whatever the predictions are."""

from datetime import date
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from quadriga.engine.console import cards as module
from quadriga.engine.console.cards import (
    Meant,
    card,
    find_meant,
    meant_labels,
    object_cards,
)
from quadriga.engine.console.filter_line import FilterLinks, filter_from_url
from quadriga.engine.console.frame import Frame
from quadriga.engine.console.pages.inferences import time_links
from quadriga.monitor.evaluation.stored import CellItems
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.records import InputReference, ModelReference, StoredInference

TIMES = "\N{MULTIPLICATION SIGN}"


def inference(predictions: Any, *, kept: bool = True, size: tuple[int, int] = (200, 100)):
    return StoredInference(
        id="700",
        request_id="",
        image_no=0,
        model=ModelReference("ships", "1", ""),
        task="OBJECT_DETECTION",
        action="",
        created_at="2027-01-01T00:00:00.000Z",
        latency_ms=1,
        input=InputReference("image", "blake3:0", *size, "image/jpeg", kept=kept),
        predictions=msgspec.Raw(msgspec.json.encode(predictions)),
        metadata=msgspec.Raw(b"{}"),
        status=200,
        standard_metadata=msgspec.Raw(b"{}"),
    )


def box(label: str, score: float | None, corners=(20, 20, 60, 40)) -> dict[str, Any]:
    names = ("xmin", "ymin", "xmax", "ymax")
    return {"label": label, "score": score, **dict(zip(names, corners, strict=True))}


def names(line: str, predictions: list[Any]) -> list[str]:
    return [card.name for card in object_cards([inference(predictions)], find_meant(line))[0]]


BOXES = [box("ship", 0.5), box("buoy", 0.95), box("ship", 0.92), box("ship", None)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ["buoy 0.95", "ship 0.92", "ship 0.50", "ship"]),
        ("meta.camera=north", ["buoy 0.95", "ship 0.92", "ship 0.50", "ship"]),
        ("label=ship", ["ship 0.92", "ship 0.50", "ship"]),
        ("label=ship:ge:0.9", ["ship 0.92"]),
        ("label=ship:lt:0.6 & meta.camera=north", ["ship 0.50"]),
        ("label=ship:gt:0.5:le:0.92", ["ship 0.92"]),
        ("box=score:eq:0.5", ["ship 0.50"]),
        ("label=ship:ge:0.9 | label=buoy", ["buoy 0.95", "ship 0.92"]),
        ("!label=buoy", ["buoy 0.95", "ship 0.92", "ship 0.50", "ship"]),
        ("this is ((( no filter", ["buoy 0.95", "ship 0.92", "ship 0.50", "ship"]),
    ],
)
def test_the_objects_that_a_filter_is_about_are_shown(line, expected):
    assert names(line, BOXES) == expected


def test_a_crop_has_some_of_what_is_around_and_stays_in_the_image():
    (middle,), more = object_cards([inference([box("ship", 0.9)])], Meant())
    assert (middle.view_box, more) == ("14.0 14.0 52.0 32.0", 0)
    assert middle.ratio == 150
    (corner,), _ = object_cards([inference([box("ship", 0.9, (0, 0, 200, 100))])], Meant())
    assert corner.view_box == "0.0 0.0 200.0 100.0"
    assert corner.copy_px == 512
    (tiny,), _ = object_cards(
        [inference([box("ship", 0.9, (100, 50, 102, 52))], size=(4000, 3000))], Meant()
    )
    assert tiny.copy_px == 1024
    assert tiny.view_box == "94.0 44.0 14.0 14.0"


@pytest.mark.parametrize(
    "predictions",
    [
        [],
        [{"label": "class", "score": 0.9}],
        {"outputs": [1]},
        [box("ship", 0.9, (500, 500, 600, 600))],  # outside of the image
        [{"label": "a", "score": 0.9, "contour": []}],
        [{"label": "a", "score": 0.9, "contour": [[]]}],
    ],
)
def test_what_has_no_place_has_no_crop(predictions):
    assert object_cards([inference(predictions)], Meant()) == ([], 0)


def test_without_its_image_an_object_is_not_shown():
    assert object_cards([inference(BOXES, kept=False)], Meant()) == ([], 0)
    assert object_cards([inference(BOXES, size=(0, 0))], Meant()) == ([], 0)


def test_of_very_many_objects_the_first_are_shown(monkeypatch):
    monkeypatch.setattr(module, "MAX_OBJECTS", 5)
    cards, more = object_cards([inference(BOXES), inference(BOXES)], Meant())
    assert [card.name for card in cards] == [
        "buoy 0.95",
        "ship 0.92",
        "ship 0.50",
        "ship",
        "buoy 0.95",
    ]
    assert more == 3


def test_turned_boxes_and_contours_are_cut_out_by_what_they_cover():
    turned = {"label": "ship", "score": 0.9, "cx": 0.5, "cy": 0.5, "w": 0.2, "h": 0.1, "r": 1.5708}
    ring = [{"x": x, "y": y} for x, y in ((50, 30), (90, 30), (70, 60))]
    shapes = [turned, {"label": "ship", "score": 0.8, "contour": [ring]}]
    cards, _ = object_cards([inference(shapes)], Meant())
    assert [card.view_box for card in cards] == ["89.0 24.0 22.0 52.0", "44.5 24.5 52.0 42.0"]


def test_a_range_of_time_is_one_click_and_replaces_another():
    filter_ = filter_from_url("q=meta.camera%3Dnorth+%26+ts%3Dge%3A-24h")
    links = time_links(FilterLinks(filter_, Frame("", has_store=True).link, "/x"), date(2027, 1, 1))
    assert {name: is_chosen for name, _, is_chosen in links} == {
        "Last hour": False,
        "24 hours": True,
        "Yesterday (UTC)": False,
        "7 days": False,
        "All": False,
    }
    lines = {name: parse_qs(urlsplit(to).query)["q"][0] for name, to, _ in links}
    assert lines["All"] == "meta.camera=north"
    assert lines["7 days"] == "meta.camera=north & ts=ge:-7d"
    assert lines["Yesterday (UTC)"] == (
        "meta.camera=north & ts=ge:2026-12-31T00:00:00Z & ts=lt:2027-01-01T00:00:00Z"
    )
    for line in lines.values():
        QueryRequest(where=line).parse_filter()


def test_a_card_says_what_the_filter_is_about():
    predictions = [
        {"label": "circle", "score": 0.2, "xmin": 1, "ymin": 1, "xmax": 2, "ymax": 2},
        {"label": "circle", "score": 0.9, "xmin": 1, "ymin": 1, "xmax": 2, "ymax": 2},
        {"label": "star", "score": 0.7, "xmin": 1, "ymin": 1, "xmax": 2, "ymax": 2},
        {"label": "star", "score": 0.95, "xmin": 1, "ymin": 1, "xmax": 2, "ymax": 2},
    ]
    stored = inference(predictions)
    assert (card(stored).score, card(stored).words) == (0.2, f"circle {TIMES}2 · star {TIMES}2")
    about = card(stored, meant=find_meant("label=star:lt:0.9 & meta.camera=north"))
    assert (about.score, about.words) == (0.7, f"star {TIMES}2 · circle {TIMES}2")
    assert meant_labels("label=star:lt:0.9 | label=in:circle,ring") == ["star", "circle", "ring"]
    assert meant_labels("no filter (((") == []


def test_the_objects_of_cells_are_drawn_apart_and_nothing_below_the_score_of_their_evaluation():
    boxes = [box("ship", 0.9), box("ship", 0.8), box("buoy", 0.7), box("ship", 0.2)]
    truth = [box("buoy", None), box("ship", None)]
    stored = msgspec.structs.replace(inference(boxes), ground_truth=msgspec.Raw(msgspec.json.encode(truth)))  # fmt: skip
    meant = Meant(cells={"700": CellItems(missed={1}, wrong={1}, right={2})}, least_score=0.3)
    shown, _ = object_cards([stored], meant)
    assert [(object_.name, object_.kind) for object_ in shown] == [
        ("ship 0.80", "false"),
        ("buoy 0.70", "matched"),
        ("ship", "missed"),
    ]
    about = card(stored, meant=meant)
    assert (about.score, about.scores, about.words) == (0.7, 2, f"ship {TIMES}2 · buoy")
    assert [mark.kind for mark in about.marks] == ["truth", "pred", "missed", "false", "matched"]
    assert object_cards([inference(boxes)], Meant(cells={})) == ([], 0)
    of_ships, _ = object_cards([stored], msgspec.structs.replace(meant, conditions=find_meant("label=ship:lt:1").conditions))  # fmt: skip
    assert [object_.name for object_ in of_ships] == ["ship 0.80"]
