import math

import pytest

from quadriga.tasks.parameters import (
    ParameterError,
    TextNumbers,
    choice,
    flag,
    number,
    texts,
    whole_number,
)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [({}, 0.3), ({"t": None}, 0.3), ({"t": 0}, 0), ({"t": 1}, 1), ({"t": 0.25}, 0.25)],
)
def test_number_takes_the_range_with_its_ends(parameters, expected):
    value = number(parameters, "t", 0, 1, 0.3)
    assert value == expected
    assert isinstance(value, float)


REFUSED = [True, False, 7, -0.1, 1.0001, math.nan, math.inf, 10**400, "0.5", [0.5], {}]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: repr(value)[:12])
def test_number_refuses_the_rest(value):
    with pytest.raises(
        ParameterError, match=r"^expected parameters\.t to be a number from 0 to 1, got "
    ):
        number({"t": value}, "t", 0, 1, 0.3)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [({}, 3), ({"k": None}, 3), ({"k": 1}, 1), ({"k": 9}, 9), ({"k": 5.0}, 5)],
)
def test_whole_number_takes_the_range_with_its_ends(parameters, expected):
    value = whole_number(parameters, "k", 1, 9, 3)
    assert value == expected
    assert isinstance(value, int)


@pytest.mark.parametrize(
    "value",
    [True, 0, 10, -1, 2.5, math.nan, math.inf, -math.inf, 10**400, "5", [5]],
    ids=lambda value: repr(value)[:12],
)
def test_whole_number_refuses_the_rest(value):
    with pytest.raises(
        ParameterError, match=r"^expected parameters\.k to be a whole number from 1 to 9, got "
    ):
        whole_number({"k": value}, "k", 1, 9, 3)


@pytest.mark.parametrize(
    ("text", "expected"), [("0.96", 0.96), ("1", 1), ("2.5e-1", 0.25), ("-0", 0), (" 0.5 ", 0.5)]
)
def test_a_text_stands_for_a_number_where_the_protocol_has_no_fractions(text, expected):
    assert number(TextNumbers({"t": text}), "t", 0, 1, 0.3) == expected
    assert number(TextNumbers({"t": 0.5}), "t", 0, 1, 0.3) == 0.5


NO_NUMBERS = ["", "0,96", "nan", "Infinity", "1e999", "1.5", "-0.1", "true", "null", "[1]", "0x1",
              "9" * 100_000, "\ud800", "½"]  # fmt: skip


@pytest.mark.parametrize("text", NO_NUMBERS, ids=lambda text: ascii(text)[:12])
def test_a_text_that_is_no_such_number_is_refused_as_it_was_sent(text):
    with pytest.raises(ParameterError, match=r"^expected parameters\.t to be a number") as error:
        number(TextNumbers({"t": text}), "t", 0, 1, 0.3)
    assert repr(text)[:50] in str(error.value)


def test_a_text_stands_for_a_whole_number_exactly():
    seed = 2**63 - 1
    assert whole_number(TextNumbers({"k": str(seed)}), "k", 0, seed, 0) == seed
    assert whole_number(TextNumbers({"k": "5.0"}), "k", 1, 9, 3) == 5
    with pytest.raises(ParameterError, match=r"a whole number from 1 to 9, got '5\.5'$"):
        whole_number(TextNumbers({"k": "5.5"}), "k", 1, 9, 3)


def test_a_text_of_digits_stays_a_text_where_no_number_is_expected():
    assert texts(TextNumbers({"p": ["7", "0.5"]}), "p", 2, 9) == ("7", "0.5")
    with pytest.raises(ParameterError, match="true or false, got '1'"):
        flag(TextNumbers({"f": "1"}), "f", default=False)


def test_a_long_value_is_shortened_in_the_message():
    with pytest.raises(ParameterError) as error:
        number({"t": "x" * 10_000}, "t", 0, 1, 0.5)
    assert len(str(error.value)) < 150


@pytest.mark.parametrize(
    ("parameters", "expected"), [({}, "raw"), ({"a": None}, "raw"), ({"a": "oc"}, "oc")]
)
def test_choice_is_one_of_the_words(parameters, expected):
    assert choice(parameters, "a", ("oc", "raw"), "raw") == expected
    assert choice({}, "a", ("oc", "raw")) == "oc"


@pytest.mark.parametrize("value", ["", "OC", "c", 1, True, ["oc"], {"a": 1}])
def test_choice_refuses_the_rest(value):
    with pytest.raises(ParameterError, match=r"^expected parameters\.a to be one of oc, raw, got "):
        choice({"a": value}, "a", ("oc", "raw"), "raw")


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [({}, 2.5), ({"m": None}, 2.5), ({"m": 0}, 0), ({"m": 1e300}, 1e300), ({"m": 7}, 7)],
)
def test_number_without_end_takes_finite_numbers(parameters, expected):
    value = number(parameters, "m", 0, math.inf, 2.5)
    assert value == expected
    assert isinstance(value, float)


@pytest.mark.parametrize(
    "value",
    [True, -1, -1e-9, math.nan, math.inf, 10**400, "5", [5]],
    ids=lambda value: repr(value)[:12],
)
def test_number_without_end_refuses_the_rest(value):
    with pytest.raises(ParameterError, match=r"parameters\.m to be a number of at least 0, got "):
        number({"m": value}, "m", 0, math.inf, 2.5)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [({}, True), ({"f": None}, True), ({"f": False}, False), ({"f": True}, True)],
)
def test_flag_takes_true_and_false(parameters, expected):
    assert flag(parameters, "f", default=True) is expected


@pytest.mark.parametrize("value", [0, 1, "true", "", [], {}])
def test_flag_refuses_the_rest(value):
    with pytest.raises(ParameterError, match=r"expected parameters\.f to be true or false, got "):
        flag({"f": value}, "f", default=False)
