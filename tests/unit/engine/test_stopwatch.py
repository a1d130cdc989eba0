"""Times of a request by phase, and what several processes counted together."""

import threading

import pytest

from quadriga.engine.measures.model_counts import (
    ModelCounters,
    SharedRun,
    begin_events,
    merge_statistics,
    record_preparation,
    record_run,
    stages_ms,
    take_events,
)
from quadriga.proto.messages import BatchStatistics, Duration, ModelStatistics
from quadriga.proto.request import RequestContext, set_current_request


def times_of(batch):
    return batch.compute_input.ns, batch.compute_infer.ns, batch.compute_output.ns


def marks(*events):
    return [(*event, None) if len(event) == 3 else event for event in events]


@pytest.mark.parametrize(
    ("events", "batches"),
    [
        (marks((0, 100, 0), (0, 150, 0)), {}),
        (marks((0, 100, 0), (110, 130, 1), (0, 135, 0)), {1: (1, 10, 20, 5)}),
        (
            marks((0, 100, 0), (110, 130, 8), (0, 135, 0), (140, 141, 2), (0, 142, 0)),
            {2: (1, 5, 1, 1), 8: (1, 10, 20, 5)},
        ),
        (
            marks((0, 100, 0), (110, 120, 1), (123, 125, 1), (0, 131, 0), (0, 140, 0)),
            {1: (2, 10, 12, 9)},
        ),
        (marks((0, 100, 0), (0, 105, 0), (107, 108, 1), (0, 108, 0)), {1: (1, 7, 1, 0)}),
        (
            marks(
                (0, 100, -1), (101, 103, 1), (0, 104, 0), (0, 190, -1), (192, 195, 1), (0, 199, 0)
            ),
            {1: (2, 3, 5, 5)},
        ),
    ],
    ids=["no-run", "one", "two-chunks", "two-runs", "prepares-twice", "steps-with-a-pause"],
)
def test_time_before_a_run_is_input_and_time_after_it_output(events, batches):
    counters = ModelCounters()
    counters.count_success(3, 7, events)
    statistics = counters.statistics("m", "1")
    assert [(b.batch_size, b.compute_infer.count, *times_of(b)) for b in statistics.batches] == [
        (size, *times) for size, times in batches.items()
    ]
    assert statistics.inference_count == 3
    assert statistics.execution_count == sum(times[0] for times in batches.values())
    assert statistics.success == Duration(1, 7 + events[-1][1] - 100)
    assert statistics.queue == Duration(1, 7)
    assert statistics.compute_input == Duration(1, sum(times[1] for times in batches.values()))
    assert statistics.fail == Duration()
    in_ms = [(started * 10**6, ended * 10**6, *rest) for started, ended, *rest in events]
    assert list(stages_ms(7 * 10**6, in_ms).values()) == [
        7, *(sum(times[kind] for times in batches.values()) for kind in (1, 2, 3))
    ]  # fmt: skip


def test_a_run_that_requests_share_is_counted_once_and_in_the_times_of_each():
    counters, run = ModelCounters(), SharedRun()
    first = marks((0, 100, 0), (110, 125, -1), (125, 165, 5, run), (0, 168, 0))
    second = marks((0, 120, 0), (123, 125, -1), (125, 165, 5, run), (0, 172, 0), (0, 180, 0))
    counters.count_success(2, 7, first)
    counters.count_success(3, 0, second)
    statistics = counters.statistics("m", "1")
    assert [(b.batch_size, b.compute_infer.count, *times_of(b)) for b in statistics.batches] == [
        (5, 1, 13, 40, 10)
    ]
    assert (statistics.inference_count, statistics.execution_count) == (5, 1)
    assert statistics.queue == Duration(2, 7 + 15 + 2)
    assert statistics.compute_input == Duration(2, 13)
    assert statistics.compute_infer == Duration(2, 80)
    assert statistics.compute_output == Duration(2, 10)
    assert statistics.success == Duration(2, 7 + 68 + 60)
    in_ms = [(started * 10**6, ended * 10**6, *rest) for started, ended, *rest in first]
    assert list(stages_ms(7 * 10**6, in_ms).values()) == [22, 10, 40, 3]


def test_a_failure_counts_no_inference():
    counters = ModelCounters()
    counters.count_failure(5, marks((0, 100, 0), (0, 130, 0)))
    statistics = counters.statistics("m", "1")
    assert statistics == ModelStatistics(name="m", version="1", fail=Duration(1, 35), batches=[])


def test_runs_outside_of_a_request_are_not_counted_and_threads_are_separate():
    request = RequestContext()
    record_run(1, 1)
    set_current_request(request)
    record_preparation()
    assert len(take_events(request)) == 1
    begin_events(request)
    thread = threading.Thread(target=record_run, args=(1, 1))
    thread.start()
    thread.join()
    record_run(1, 4)
    assert [batch for _, _, batch, _ in take_events(request)] == [-1, 4, 0]
    set_current_request(None)


def test_the_counts_of_processes_add_up():
    first, second = ModelCounters(), ModelCounters()
    first.count_success(1, 1, marks((0, 100, 0), (110, 130, 1), (0, 135, 0)))
    second.count_success(2, 2, marks((0, 200, 0), (210, 220, 2), (0, 221, 0)))
    second.count_success(1, 0, marks((0, 300, 0), (310, 320, 1), (0, 321, 0)))
    by_process = [first.statistics("m", "1"), second.statistics("m", "1")]
    assert merge_statistics(by_process[:1]) == by_process[0]
    merged = merge_statistics(by_process)
    assert (merged.inference_count, merged.execution_count) == (4, 3)
    assert merged.success == Duration(3, 36 + 23 + 21)
    assert merged.last_inference_ms == max(
        statistics.last_inference_ms for statistics in by_process
    )
    assert merged.batches == [
        BatchStatistics(
            batch_size=1,
            compute_input=Duration(2, 20),
            compute_infer=Duration(2, 30),
            compute_output=Duration(2, 6),
        ),
        BatchStatistics(
            batch_size=2,
            compute_input=Duration(1, 10),
            compute_infer=Duration(1, 10),
            compute_output=Duration(1, 1),
        ),
    ]
