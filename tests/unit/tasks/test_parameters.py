import math

import pytest

from tasks.parameters import (
    ParameterError,
    action,
    at_least_zero,
    choice,
    flag,
    unit_interval,
    whole_number,
)

ACTIONS = [({}, "predict"), ({"action": None}, "predict"), ({"action": "detect"}, "detect")]


@pytest.mark.parametrize(("parameters", "expected"), ACTIONS)
def test_action_is_the_named_or_the_first(parameters, expected):
    assert action(parameters, ("predict", "detect")) == expected


@pytest.mark.parametrize("value", ["segment", "", "Predict", 1, True, ["predict"], {"a": 1}])
def test_another_action_is_refused_with_those_allowed(value):
    with pytest.raises(ParameterError) as error:
        action({"action": value}, ("predict", "predict_proba"))
    assert str(error.value) == (
        f"expected parameters.action to be one of predict, predict_proba, got {value!r}"
    )


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [({}, 0.3), ({"t": None}, 0.3), ({"t": 0}, 0), ({"t": 1}, 1), ({"t": 0.25}, 0.25)],
)
def test_unit_interval_takes_numbers_from_0_to_1(parameters, expected):
    value = unit_interval(parameters, "t", 0.3)
    assert value == expected
    assert isinstance(value, float)


REFUSED = [True, False, 7, -0.1, 1.0001, math.nan, math.inf, 10**400, "0.5", [0.5], {}]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: repr(value)[:12])
def test_unit_interval_refuses_the_rest(value):
    with pytest.raises(
        ParameterError, match=r"^expected parameters\.t to be a number from 0 to 1, got "
    ):
        unit_interval({"t": value}, "t", 0.3)


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


def test_a_long_value_is_shortened_in_the_message():
    with pytest.raises(ParameterError) as error:
        unit_interval({"t": "x" * 10_000}, "t", 0.5)
    assert len(str(error.value)) < 150


@pytest.mark.parametrize(
    ("parameters", "expected"), [({}, "raw"), ({"a": None}, "raw"), ({"a": "oc"}, "oc")]
)
def test_choice_is_one_of_the_words(parameters, expected):
    assert choice(parameters, "a", ("oc", "raw"), "raw") == expected
    assert choice({}, "a", ("oc", "raw")) == "oc"


@pytest.mark.parametrize("value", ["", "OC", 1, ["oc"]])
def test_choice_refuses_the_rest(value):
    with pytest.raises(ParameterError, match=r"^expected parameters\.a to be one of oc, raw, got "):
        choice({"a": value}, "a", ("oc", "raw"), "raw")


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [({}, 2.5), ({"m": None}, 2.5), ({"m": 0}, 0), ({"m": 1e300}, 1e300), ({"m": 7}, 7)],
)
def test_at_least_zero_takes_finite_numbers(parameters, expected):
    value = at_least_zero(parameters, "m", 2.5)
    assert value == expected
    assert isinstance(value, float)


@pytest.mark.parametrize(
    "value",
    [True, -1, -1e-9, math.nan, math.inf, 10**400, "5", [5]],
    ids=lambda value: repr(value)[:12],
)
def test_at_least_zero_refuses_the_rest(value):
    with pytest.raises(ParameterError, match=r"parameters\.m to be a number of at least 0, got "):
        at_least_zero({"m": value}, "m", 2.5)


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


@pytest.mark.parametrize("value", ["c", "", 1, True, ["a"]])
def test_choice_refuses_what_is_not_allowed(value):
    assert choice({}, "c", ("a", "b")) == "a"
    assert choice({"c": "b"}, "c", ("a", "b")) == "b"
    with pytest.raises(ParameterError, match=r"expected parameters\.c to be one of a, b, got "):
        choice({"c": value}, "c", ("a", "b"))
