"""Each rule by a table: what stays, what is forbidden."""

import numpy as np
import pytest

from quadriga.tasks import generation as rule


def row(*values):
    return np.array(values, np.float32)


def kept(scores):
    return np.flatnonzero(np.isfinite(scores)).tolist()


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        (row(1, 3, 2), 1, [1]),
        (row(1, 3, 2), 2, [1, 2]),
        (row(1, 3, 2), 3, [0, 1, 2]),
        (row(1, 3, 2), 99, [0, 1, 2]),
        (row(2, 2, 1), 1, [0, 1]),
        (row(5), 1, [0]),
    ],
)
def test_top_k_keeps_the_best_and_their_equals(scores, count, expected):
    assert kept(rule.keep_top_k(scores, count)) == expected


@pytest.mark.parametrize(
    ("probabilities", "mass", "at_least", "expected"),
    [
        ((0.5, 0.3, 0.2), 0.4, 1, [0]),
        ((0.5, 0.3, 0.2), 0.7, 1, [0, 1]),
        ((0.5, 0.3, 0.2), 0.9, 1, [0, 1, 2]),
        ((0.2, 0.3, 0.5), 0.0, 1, [2]),
        ((0.2, 0.3, 0.5), 0.0, 2, [1, 2]),
        ((1.0,), 0.5, 1, [0]),
    ],
)
def test_top_p_keeps_the_likeliest_that_hold_the_mass(probabilities, mass, at_least, expected):
    assert kept(rule.keep_top_p(np.log(row(*probabilities)), mass, at_least)) == expected


@pytest.mark.parametrize(
    ("history", "size", "forbidden"),
    [
        ([], 2, []),
        ([1], 2, []),
        ([1, 2, 1], 2, [2]),
        ([1, 2, 1, 3, 1], 2, [2, 3]),
        ([1, 2, 3, 1, 2], 3, [3]),
        ([1, 2, 3, 1], 3, []),
        ([2, 2], 1, [2]),
    ],
)
def test_a_token_that_would_repeat_an_ngram_is_forbidden(history, size, forbidden):
    scores = rule.forbid_repeated_ngrams(row(0, 0, 0, 0), history, size)
    assert kept(scores) == [token for token in range(4) if token not in forbidden]


def test_repetition_is_penalised_on_both_sides_of_zero():
    scores = rule.penalise_repetition(row(4, -4, 4), [0, 1, 1], 2.0)
    np.testing.assert_array_equal(scores, row(2, -8, 4))
    np.testing.assert_array_equal(rule.penalise_repetition(row(1, 2), [], 2.0), row(1, 2))


def test_forbidding_and_forcing_leave_their_input_alone():
    scores = row(1, 2, 3)
    assert kept(rule.forbid(scores, [0, 2])) == [1]
    assert kept(rule.force(scores, [2])) == [2]
    np.testing.assert_array_equal(scores, row(1, 2, 3))


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        (row(1, 3, 2), 2, [1, 2]),
        (row(1, 1, 1), 2, [0, 1]),
        (row(1, 3), 9, [1, 0]),
        (row(7), 1, [0]),
    ],
)
def test_the_best_come_first_and_of_equals_the_lower(scores, count, expected):
    assert rule.best(scores, count).tolist() == expected


def test_draws_are_different_and_never_forbidden():
    generator = np.random.default_rng(0)
    for _ in range(100):
        drawn = rule.draw(row(0, -np.inf, 0, 0), 3, generator).tolist()
        assert sorted(drawn) == [0, 2, 3]


def test_log_probabilities_add_up_to_one_at_any_scale():
    for scores in (row(0, 0), row(1e4, -1e4, 3), row(-5)):
        assert np.exp(rule.log_softmax(scores)).sum() == pytest.approx(1)
