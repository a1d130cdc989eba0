"""Values of requests in the texts of errors."""

import pytest

from quadriga.quoting import quoted
from tests.memory import taking_at_most


class Unread:
    """A value that fails the test if it is looked at."""

    def __repr__(self):
        raise AssertionError


@pytest.mark.parametrize("limit", [1, 7, 40, 1000])
@pytest.mark.parametrize(
    "value",
    [
        "plain", 'a "quote"', "\x01\n\u2028" * 5, b"\xff\x00", "", [], {}, None, True, 1.5,
        [1, "b", [None, {"c": [2.5]}]], {"a": {"b": ["c"]}, "d": "e" * 99}, [[[[]]], {}, ""],
    ],
)  # fmt: skip
def test_it_is_the_beginning_of_the_repr(value, limit):
    assert quoted(value, limit) == repr(value)[:limit]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (["a" * 60, Unread()], "['aaa"),
        ({"a" * 60: Unread()}, "{'aaa"),
        ([["a" * 60], Unread()], "[['aa"),
    ],
)
def test_what_is_behind_is_not_read(value, text):
    assert quoted(value, 5) == text


def test_a_long_text_costs_nothing():
    text = "\x01" * 50_000_000
    for value in (text, text.encode(), [text], {"a": text}):
        with taking_at_most(100_000):
            assert len(quoted(value, 60)) == 60
