import pytest

from quadriga.extras.tuning.paired_times import (
    MIN_ROUNDS,
    median_factor,
    median_interval,
    time_in_turns,
)


@pytest.mark.parametrize(
    ("values", "interval"),
    [([], None), ([1.0] * 5, None), ([2.0] * 6, (2.0, 2.0)), (range(100), (39, 60))],
    ids=["none", "five", "equal", "a hundred"],
)
def test_the_interval_of_a_median_lies_between_ranks(values, interval):
    assert median_interval([float(value) for value in values]) == interval


def test_tasks_take_turns_and_six_rounds_are_run_at_least():
    order = []
    tasks = [lambda number, name=name: order.append((name, number)) for name in "ab"]
    times = time_in_turns(tasks, max_rounds=50, max_s=0)
    assert [len(run.wall_s) for run in times] == [MIN_ROUNDS, MIN_ROUNDS]
    measured = order[6:]
    assert [name for name, _ in measured[:6]] == ["b", "a", "a", "b", "b", "a"]
    assert all(run.ms >= 0 and run.cpu_ms >= 0 for run in times)


def test_a_way_that_takes_half_the_time_is_twice_as_fast():
    factor, interval = median_factor([2.0] * 8, [1.0] * 8)
    assert factor == 2
    assert interval == (2, 2)
