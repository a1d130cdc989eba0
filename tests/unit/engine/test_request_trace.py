"""The accounting of a request: what is timed and counted, and how an error leaves it."""

import time
from collections.abc import Iterator

import numpy as np
import pytest

from quadriga.engine.measures.model_counts import record_run
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import RunError
from quadriga.engine.serving.model_request import RequestTrace, to_protocol_error
from quadriga.proto.errors import InternalError, InvalidRequest, Overloaded
from quadriga.proto.messages import InferRequest, ModelStatistics
from quadriga.proto.request import RequestContext, set_current_request
from quadriga.store.records.errors import JournalError
from quadriga.tasks.predictions import OutputError
from tests.onnx_models import doubling


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    return Model("m", "1", doubling(tmp_path_factory.mktemp("models") / "model.onnx"))


@pytest.fixture
def sent() -> Iterator[RequestContext]:
    """A request that waited 5 ms for its thread, which is this one."""
    request = RequestContext(queue_ns=5_000_000)
    set_current_request(request)
    yield request
    set_current_request(None)


def trace_of(model: Model) -> RequestTrace:
    return RequestTrace(
        model,
        InferRequest("m", None, "r", []),
        protocol="v2",
        recorder=None,
        failed_results=list,
    )


def statistics(model: Model) -> ModelStatistics:
    return model.counters.statistics("m", "1")


def test_a_summary_has_the_fields_of_the_request_and_its_stages(model, sent):
    with trace_of(model) as trace:
        model.session.run({"x": np.ones((1, 3), np.float32)})
        trace.stop()
        summary = trace.summary()
    assert (summary.model, summary.request_id, summary.protocol) == (model, "r", "v2")
    assert list(summary.stages_ms) == ["queue", "preprocess", "infer", "postprocess"]
    assert summary.stages_ms["queue"] == 5
    assert summary.stages_ms["infer"] > 0
    assert summary.error == ""


def test_success_is_counted_when_reported(model):
    previous = statistics(model)
    with trace_of(model) as trace:
        trace.stop()
        trace.count_success(3)
    current = statistics(model)
    assert current.success.count == previous.success.count + 1
    assert current.inference_count == previous.inference_count + 3
    assert current.fail == previous.fail


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (JournalError("full"), Overloaded, "full"),
        (RunError("no row"), InternalError, "model 'm' failed: no row"),
        (OutputError("no box"), InternalError, "model 'm' failed: no box"),
        (InvalidRequest("no image"), InvalidRequest, "no image"),
        (KeyError("x"), KeyError, "'x'"),
    ],
    ids=["journal", "run", "output", "client", "fault"],
)
def test_an_error_is_counted_and_leaves_as_one_of_the_protocols(model, error, expected, text):
    previous = statistics(model)
    with pytest.raises(expected) as raised, trace_of(model):
        raise error
    assert str(raised.value) == text
    assert raised.value is error or raised.value.__cause__ is error
    current = statistics(model)
    assert current.fail.count == previous.fail.count + 1
    assert current.success == previous.success
    assert isinstance(to_protocol_error("m", error), expected)


def test_json_that_is_too_deep_is_the_client_s_mistake():
    assert isinstance(to_protocol_error("m", RecursionError()), InvalidRequest)


def test_steps_of_a_stream_are_timed_without_the_pauses_between(model, sent):
    def steps() -> Iterator[int]:
        yield from (1, 2)

    with trace_of(model) as trace:
        for step in trace.timed_steps(steps()):
            assert step in (1, 2)
            assert sent.events is None
        trace.count_success(1)


def test_a_stream_that_is_closed_is_not_counted(model, sent):
    def streamed() -> Iterator[int]:
        with trace_of(model) as trace:
            yield from trace.timed_steps(iter([1, 2]))

    previous = statistics(model)
    stream = streamed()
    assert next(stream) == 1
    stream.close()
    assert statistics(model) == previous
    assert sent.events is None


@pytest.mark.parametrize("is_wanted", [False, True], ids=["not asked", "asked"])
def test_the_times_of_stages_are_answered_to_a_request_that_asks(model, sent, is_wanted):
    sent.wants_timing = is_wanted
    with trace_of(model) as trace:
        record_run(time.perf_counter_ns() - 2_000_000, 1)
        trace.stop()
        headers = trace.timing_headers()
        trace.count_success(1)
    if not is_wanted:
        assert headers == []
        return
    ((name, text),) = headers
    assert name == "Server-Timing"
    times = {
        part.partition(";dur=")[0]: float(part.partition(";dur=")[2]) for part in text.split(", ")
    }
    assert [*times] == ["queue", "preprocess", "infer", "postprocess", "store", "total"]
    assert times["infer"] >= 2
    assert times["total"] == pytest.approx(sum(list(times.values())[:-1]), abs=0.01)


def test_what_a_model_did_is_noted_of_the_request(model, sent):
    with trace_of(model) as trace:
        trace.stop()
        trace.count_success(2)
    assert (sent.run.model, sent.run.inferences, sent.run.stages_ms["queue"]) == ("m", 2, 5)
    assert (sent.queue_ns, sent.events) == (0, None)
