"""Which name is near a mistyped one, and how long that takes where there are many, or long ones."""

import random
import time

import pytest

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
def test_ten_thousand_names_of_like_letters_take_a_fraction_of_a_second(length):
    letters = random.Random(1)
    names = ["".join(letters.choices("abcdefgh_", k=length)) for _ in range(10_001)]
    began_s = time.thread_time()
    near_names(names.pop(), names, 1)
    assert time.thread_time() - began_s < 0.3  # difflib alone: 0.5 s and over 30 s
