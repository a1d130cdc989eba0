"""Which name is near a mistyped one, and how long that takes where there are many, or long ones."""

import random
from difflib import get_close_matches

import pytest

from quadriga import quoting
from quadriga.quoting import near_names

NAMES = ["run", "camera_id", "Place.Floor", "ring", "rings", "x" * 300]


@pytest.mark.parametrize(
    ("text", "count", "near"),
    [
        ("rum", 1, ["run"]),
        ("RUN", 1, ["run"]),
        ("cameraid", 1, ["camera_id"]),
        ("place.flor", 1, ["Place.Floor"]),
        ("rinsg", 2, ["ring", "rings"]),
        ("x" * 299, 1, ["x" * 300]),
        ("zzzz", 2, []),
        ("", 1, []),
    ],
)
def test_the_nearest_names_are_found(text, count, near):
    assert near_names(text, NAMES, count) == near
    crowd = [f"sensor_{number:05}_celsius" for number in range(2000)]
    assert near_names(text, [*crowd, *NAMES], count) == near


def test_nothing_is_near_where_there_is_nothing():
    assert near_names("run", [], 2) == []


@pytest.mark.parametrize("length", [30, 400])
def test_of_ten_thousand_names_of_like_letters_few_are_compared_letter_by_letter(
    length, monkeypatch
):
    counts = []

    def counting(sought, names, count, likeness):
        counts.append(len(names))
        return get_close_matches(sought, names, count, likeness)

    monkeypatch.setattr(quoting, "get_close_matches", counting)
    letters = random.Random(1)
    names = ["".join(letters.choices("abcdefgh_", k=length)) for _ in range(10_001)]
    near_names(names.pop(), names, 1)
    assert counts == [quoting._COMPARED]  # difflib alone takes over 30 s for all of them
