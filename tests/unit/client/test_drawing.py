"""Pictures of predictions: colours that mean labels, and texts that hide nothing."""

import itertools
from typing import Any

import pytest
from PIL import Image

from quadriga.client.drawing import (
    COLOURS,
    MAX_PLACED,
    LabelColours,
    _best_place,
    _hidden_share,
)
from quadriga.client.errors import Unreachable
from quadriga.client.results import Result

SIZE = (200, 100)
PLATE = (60, 12)


def drawn(predictions: list[dict[str, Any]], labels_of: Any = None) -> Image.Image:
    raw = {"model_name": "m", "model_version": "1"}
    result = Result(raw, {"data": [predictions]}, b"", "", labels_of=labels_of)
    picture: Image.Image = result.draw(Image.new("RGB", SIZE, "white"))
    return picture


def box(label: str, left: int = 50) -> dict[str, Any]:
    return {"label": label, "score": 0.9, "xmin": left, "ymin": 40, "xmax": left + 40, "ymax": 80}


def has_colour(picture: Image.Image, colour: str) -> bool:
    rgb = tuple(bytes.fromhex(colour[1:]))
    return rgb in {pixel for _, pixel in picture.getcolors(1 << 20) or ()}


def test_each_label_of_a_model_has_a_colour_of_its_own():
    names = [f"label {number}" for number in range(300)]
    for count in (1, 4, 20, 80, 300):
        colours = LabelColours(names[:count])
        assert len({colours.of(name) for name in names[:count]}) == count
    assert LabelColours(names).of(names[3]) == COLOURS[3]


def test_every_colour_is_readable_behind_white_text():
    """Contrast of at least 2.5; WCAG asks 3 of large text."""
    colours = LabelColours([f"label {number}" for number in range(200)])
    for number in range(200):
        parts = [part / 255 for part in bytes.fromhex(colours.of(f"label {number}")[1:])]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (luminance + 0.05) > 2.5, number


@pytest.mark.parametrize("labels", [[], ["b", "a"]])
def test_a_label_has_one_colour_in_every_picture(labels):
    """Whatever else is in the picture; without the model's labels its name alone decides."""
    colours = [LabelColours(labels).of(label) for label in ("a", "b", "ü\ud800")]
    assert len(set(colours)) == 3
    for label, colour in zip(("a", "b"), colours, strict=False):
        for others in ([], ["c"], ["b", "a", "z"]):
            boxes = [box(other, 5) for other in others]
            assert has_colour(drawn([*boxes, box(label, 120)], lambda: labels), colour)


def test_a_server_that_tells_no_labels_stops_no_picture():
    def refuse() -> list[str]:
        raise Unreachable("gone", was_sent=False)

    assert has_colour(drawn([box("a")], refuse), LabelColours([]).of("a"))


def overlaps(a: Any, b: Any) -> bool:
    return _hidden_share(a, b) > 0


@pytest.mark.parametrize(
    ("objects", "side"),
    [
        ([(50, 40, 90, 80)], "above"),
        ([(50, 40, 90, 80), (60, 30, 66, 36)], "below"),
        ([(50, 2, 90, 80)], "below"),
        ([(50, 2, 90, 98)], "right"),
        ([(150, 2, 190, 98)], "left"),
        ([(0, 0, 200, 100)], "within"),
        ([(0, 0, 200, 100), (2, 2, 8, 8)], "within"),
    ],
)
def test_a_text_stands_where_it_hides_no_object(objects, side):
    own = objects[0]
    place = _best_place(own, PLATE, objects, [], size=SIZE)
    assert 0 <= place[0] <= place[2] <= SIZE[0]
    assert 0 <= place[1] <= place[3] <= SIZE[1]
    assert {
        "above": place[3] <= own[1], "below": place[1] >= own[3], "right": place[0] >= own[2], "left": place[2] <= own[0],
        "within": overlaps(own, place),
    }[side]  # fmt: skip
    for small in objects[1:]:
        assert not overlaps(small, place)


def test_texts_of_small_objects_in_a_row_hide_neither_objects_nor_each_other():
    objects = [(left, 50, left + 6, 56) for left in (20, 60, 100)]
    written: list[Any] = []
    for own in objects:
        written.append(_best_place(own, PLATE, objects, written, size=SIZE))
    for place in written:
        assert not any(overlaps(small, place) for small in objects)
    assert not any(overlaps(a, b) for a, b in itertools.combinations(written, 2))


def test_an_object_outside_the_picture_and_a_text_longer_than_it_are_placed_inside():
    for own in ((-500, -500, -400, -400), (900, 900, 950, 950), (10, 10, 10, 10)):
        for plate in (PLATE, (5000, 12)):
            place = _best_place(own, plate, [own], [], size=SIZE)
            assert 0 <= place[0] < SIZE[0]
            assert 0 <= place[1] < SIZE[1]


@pytest.mark.timeout(300)
def test_many_objects_are_drawn_without_a_search_for_room():
    """The search takes the square of their number: ten minutes for 10,000 regions."""
    count = 10_000
    crowd = [box("star", number % 150) for number in range(count)]
    assert count > MAX_PLACED
    assert has_colour(drawn(crowd, lambda: ["star"]), COLOURS[0])
