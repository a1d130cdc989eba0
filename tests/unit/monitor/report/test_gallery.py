"""The worst images: pictures, outlines over them, words beside them."""

import base64
import io
import re

import cv2
import msgspec
import numpy as np
import pytest
from PIL import Image as PillowImage

from quadriga.monitor.report.gallery import (
    MAX_IMAGES,
    MAX_UNLIKE,
    embedded_pictures,
    unlike_cards,
    worst_cards,
)
from quadriga.monitor.report.schema import Data, Neighbour, Report, Unlike, Window, Worst
from tests.reports import raw


def of(worst, files=None):
    files = {} if files is None else files
    return worst_cards(
        Report("evaluation", "OBJECT_DETECTION", Data(Window()), worst=worst),
        embedded_pictures(files.get),
    )


def card(predictions=(), truths=(), data=None, **size):
    size = {"width": 200, "height": 100} | size
    worst = Worst(
        "1", "miss", 2, "a", **size, predictions=raw(predictions), ground_truth=raw(truths)
    )
    (image_card,) = of([worst], {"a": data})
    return image_card


def png(width, height, orientation=1):
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = 250  # bright where the first quarter is stored
    exif = PillowImage.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    PillowImage.fromarray(pixels).save(file, "PNG", exif=exif)
    return file.getvalue()


def shown(image_card):
    data = base64.b64decode(image_card.picture.removeprefix("data:image/jpeg;base64,"))
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)


BOX = {"label": "car", "xmin": 10, "ymin": 20, "xmax": 30, "ymax": 60}
TINY = {"label": "a", "xmin": 0, "ymin": 20, "xmax": 9, "ymax": 30}
TURNED = {"label": "ship", "cx": 0.5, "cy": 0.5, "w": 0.2, "h": 0.2, "r": 0.0}
RINGS = [[{"x": 0, "y": 0}, {"x": 9, "y": 0}, {"x": 9, "y": 9}], [{"x": 5, "y": 2}]]


@pytest.mark.parametrize(
    ("item", "path"),
    [
        (BOX, "M10 20L30 20L30 60L10 60Z"),
        (TURNED, "M80 40L120 40L120 60L80 60Z"),
        (TURNED | {"r": np.pi / 2}, "M110 30L110 70L90 70L90 30Z"),
        ({"label": "", "corners": [[1, 2], [3, 4], [5, 6.5]]}, "M1 2L3 4L5 6.5Z"),
        ({"label": "", "contour": RINGS}, "M0.5 0.5L9.5 0.5L9.5 9.5ZM5.5 2.5Z"),
    ],
)
def test_each_form_has_its_outline_in_pixels(item, path):
    image_card = card([item | {"score": 0.9}], [item])
    assert [(outline.kind, outline.path) for outline in image_card.outlines] == [
        ("truth", path),
        ("prediction", path),
    ]


@pytest.mark.parametrize("item", [{"label": "a", "contour": []}, {"label": "a", "contour": [[]]}])
def test_what_has_no_points_has_no_outline(item):
    assert card([item]).outlines == []


def test_names_stand_within_the_picture():
    corners = [(0, 0, 5, 5), (190, 90, 200, 100), (-50, -50, 400, 400)]
    items = [
        {"label": "a rather long label", "xmin": a, "ymin": b, "xmax": c, "ymax": d}
        for a, b, c, d in corners
    ]
    for outline in card([item | {"score": 1} for item in items], items).outlines:
        assert 0 <= outline.x <= 200
        assert 0 <= outline.y <= 100


def names(image_card):
    return [outline.name for outline in image_card.names]


@pytest.mark.parametrize(
    ("predictions", "truths", "expected"),
    [
        ([], [], []),
        ([BOX | {"score": 0.9}], [BOX], ["car", "car 0.90"]),
        # One over another: the surest has its name.
        ([BOX | {"score": 0.9}, BOX | {"score": 0.8, "label": "van"}], [], ["car 0.90"]),
        # As many as there is room for, not none because there are many.
        (
            [TINY | {"score": 0.5, "xmin": 20.0 * at, "xmax": 20.0 * at + 9} for at in range(10)],
            [],
            ["a 0.50"] * 5,
        ),
        ([BOX | {"score": 0.9, "label": ""}], [BOX | {"label": ""}], ["(empty)", "(empty) 0.90"]),
        ([{"label": "cat", "score": 0.9}], [{"label": "cat"}], []),
    ],
)
def test_names_stand_as_far_as_they_have_room(predictions, truths, expected):
    assert names(card(predictions, truths)) == expected


def test_small_pictures_have_names_in_larger_letters():
    image = Unlike("7", 0.5, predictions=raw([BOX | {"score": 0.9}]), width=200, height=100,
                   nearest=[Neighbour("8", 0.25, predictions=raw([BOX | {"score": 0.9}]), width=200, height=100)])  # fmt: skip
    ((large, small),) = unlike_cards(
        Report("drift", "", Data(Window()), unlike=[image]), embedded_pictures({}.get)
    )
    assert names(large) == names(small) == ["car 0.90"]
    assert (large.letter_height, small.letter_height) == (200 / 26, 200 / 16)


def test_low_scores_are_counted_not_drawn():
    image_card = card([BOX | {"score": 0.29}, BOX | {"score": 0.31}])
    assert [outline.name for outline in image_card.outlines] == ["car 0.31"]
    assert image_card.notes[-1] == "Not drawn, for low scores: 1."


def test_labels_and_answers_are_words():
    image_card = card(
        [{"label": f"l{at}", "score": at / 10} for at in range(7)],
        [{"prompt": "What?", "answers": ["a", "b"]}, {"answer": "c"}],
    )
    assert image_card.predictions == [
        "l0 0.00",
        "l1 0.10",
        "l2 0.20",
        "l3 0.30",
        "l4 0.40",
        "2 more",
    ]
    assert image_card.truths == ["What? → a / b", "c"]
    assert image_card.outlines == []


def test_an_image_is_shown_once_with_all_its_reasons():
    worst = [
        Worst("1", "miss", 3.0),
        Worst("2", "miss", 1.0),
        Worst("2", "wrong_label", 0.5),
        Worst("3", "wrong_label", 0.25),
    ]
    cards = of(worst)
    assert [(image_card.inference_id, image_card.reasons) for image_card in cards] == [
        ("1", ["miss: 3"]),
        ("2", ["wrong label: 0.500", "miss: 1"]),
        ("3", ["wrong label: 0.250"]),
    ]


@pytest.mark.parametrize(
    ("created_at", "time"),
    [
        (None, ""),
        ("", ""),
        ("2026-11-24T08:02:03.004Z", "2026-11-24 08:02:03 UTC"),
        ("2026-11-24T08:02:03+02:00", "2026-11-24 06:02:03 UTC"),
        ("2026-11-24", "2026-11-24 00:00:00"),
        ("on a\nTuesday", "on a Tuesday"),
    ],
)
def test_a_card_has_the_time_of_its_inference(created_at, time):
    (image_card,) = of([Worst("1", "miss", 1, created_at=created_at)])
    assert image_card.time == time


def test_an_image_of_several_inferences_is_shown_once_as_the_worst_saw_it():
    worst = [
        Worst("1", "miss", 3, "x"),
        Worst("2", "miss", 2, "y"),
        Worst("9", "wrong_label", 0.75, "x"),
        Worst("3", "wrong_label", 0.5, "z"),
        Worst("1", "wrong_label", 0.25, "x"),
    ]
    cards = of(worst)
    assert [(image_card.inference_id, image_card.reasons) for image_card in cards] == [
        ("1", ["miss: 3", "wrong label: 0.250"]),
        ("3", ["wrong label: 0.500"]),
        ("2", ["miss: 2"]),
    ]


def test_no_reason_fills_the_first_cards():
    """The worst images of two reasons are the same ones: those of the second still have their turns."""
    shared = [Worst(f"{at}", reason, 9 - at) for reason in ("miss", "low") for at in range(8)]
    worst = [*shared, *(Worst(f"b{at}", "wrong_label", 1) for at in range(8))]
    first_cards = of(worst)[:4]
    assert [image_card.inference_id for image_card in first_cards] == ["0", "1", "b0", "2"]
    assert [image_card.reasons[0].split(":")[0] for image_card in first_cards] == [
        "miss",
        "low",
        "wrong label",
        "miss",
    ]


def test_of_too_many_images_the_worst_of_each_reason_stay():
    worst = [Worst(f"{reason}{at}", reason, 1) for reason in "ab" for at in range(40)]
    cards = of(worst)
    assert len(cards) == MAX_IMAGES
    assert {image_card.reasons[0] for image_card in cards} == {"a: 1", "b: 1"}


def test_missing_and_broken_images_say_so():
    assert card().notes == ["The image is not kept."]
    assert card(data=b"no image").notes == ["The image cannot be decoded."]
    assert card([BOX | {"score": 1}]).outlines != []


def test_predictions_that_cannot_be_read_say_so():
    image_card = card([{"xmin": "wide"}], data=png(8, 8))
    assert image_card.notes == ["Predictions or truth cannot be read."]
    assert image_card.picture is not None


@pytest.mark.parametrize("nothing", [None, [], msgspec.Raw(b"null")])
def test_an_image_without_truth_or_predictions_is_shown(nothing):
    (image_card,) = of([Worst("1", "miss", 1, predictions=nothing, ground_truth=nothing)])
    assert image_card.outlines == []


def test_pictures_are_small_and_take_their_frame_from_the_file_where_none_is_known():
    image_card = card(data=png(1000, 500), width=None, height=None)
    assert (image_card.width, image_card.height) == (1000, 500)
    assert shown(image_card).shape == (240, 480)


def test_pictures_stand_as_a_person_sees_them():
    image_card = card(data=png(60, 40, orientation=6), width=40, height=60)
    pixels = shown(image_card)
    assert pixels.shape == (60, 40)
    assert pixels[5, 35] > 200 > pixels[5, 5]


def test_pictures_stand_as_stored_where_predictions_do():
    pixels = shown(card(data=png(60, 40, orientation=6), width=60, height=40))
    assert pixels.shape == (40, 60)
    assert pixels[5, 5] > 200 > pixels[5, 55]


def test_fine_contours_are_drawn_with_few_points():
    angle = np.linspace(0, 2 * np.pi, 5000)
    ring = [
        {"x": float(x), "y": float(y)}
        for x, y in zip(2000 + 1500 * np.cos(angle), 2000 + 1500 * np.sin(angle), strict=True)
    ]
    (outline,) = card(
        [{"label": "disc", "score": 1, "contour": [ring]}], width=4000, height=4000
    ).outlines
    assert len(re.findall("L", outline.path)) < 200


def test_what_is_unlike_stands_with_the_nearest_three_in_smaller_pictures():
    near = [Neighbour(str(at), at / 8, "a", predictions=raw([BOX])) for at in range(9)]
    images = [Unlike("7", 0.5, "a", nearest=near)] * (MAX_UNLIKE + 1)
    report = Report("drift", "OBJECT_DETECTION", Data(Window()), unlike=images)
    rows = unlike_cards(report, embedded_pictures({"a": png(960, 480)}.get))
    assert len(rows) == MAX_UNLIKE
    assert [image_card.inference_id for image_card in rows[0]] == ["7", "0", "1", "2"]
    assert [image_card.reasons for image_card in rows[0][:2]] == [
        ["Semantic score 0.500"],
        ["Distance 0.000"],
    ]
    assert [shown(image_card).shape for image_card in rows[0][:2]] == [(240, 480), (160, 320)]
    assert [len(image_card.outlines) for image_card in rows[0]] == [0, 1, 1, 1]


def test_neighbours_that_are_not_kept_say_so():
    images = [Unlike("7", 0.5, nearest=[Neighbour("8", 0.25, predictions=raw({"broken": 1}))])]
    ((image_card, near),) = unlike_cards(
        Report("drift", "", Data(Window()), unlike=images), embedded_pictures({}.get)
    )
    assert image_card.notes == ["The image is not kept."]
    assert near.notes == ["The image is not kept.", "Predictions or truth cannot be read."]
