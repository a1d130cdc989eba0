"""Spans of a process: whose children they are, what they say, and that a collector costs no request anything."""

import subprocess
import sys
import threading
import time

import msgspec
import pytest

from quadriga.engine.measures.accounting import open_tracing
from quadriga.engine.measures.tracing import MAX_LINKS, Tracing
from quadriga.monitor.drift.watch.schedules import DriftSchedule, drift_schedules
from quadriga.monitor.watch.alerts import Outbox
from quadriga.monitor.watch.deliveries import DeliveryQueues, WebhookClient
from quadriga.monitor.watch.webhooks import Webhook, parse_webhook_hosts
from quadriga.proto.request import ModelRun, RequestContext, parse_traceparent
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.jobs.runner import JobRunner
from tests.background import in_background
from tests.otlp_receiver import OtlpReceiver

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
SENDERS = {"traces", "OtelBatchSpanRecordProcessor"}
"""Names of the threads that send the spans of a `Tracing`."""


@pytest.fixture
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def tracing(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    tracing = Tracing("worker-0")
    yield tracing
    tracing.close()


def request(tracing, *, traceparent=None, event=None, **fields):
    """Take note of a request of 20 ms, 12 of them in a model's thread."""
    values = {"method": "POST", "path": "/v2/models/a/infer", "route": "/v2/models/{name}/infer"}
    values |= {"protocol": "v2", "status": 200, "outcome": "success"}
    facts = RequestContext(
        id="r-1",
        parent=parse_traceparent(traceparent),
        begun_ns=1_000_000_000,
        begun_epoch_ns=5_000_000_000,
        **(values | fields),
    )
    tracing.begin(facts)
    if event is not None:
        facts.continue_trace(event)
    stages = {"queue": 2.0, "preprocess": 1.0, "infer": 5.0, "postprocess": 3.0}
    facts.run = ModelRun(
        "a", "1", begun_ns=1_004_000_000, stages_ms=stages, duration_ms=12.0, inferences=1,
        inference_ids=["7"],
    )  # fmt: skip
    facts.ended_ns = 1_020_000_000
    tracing.end(facts)
    return facts


def test_a_request_has_a_span_with_its_stages_in_the_trace_of_its_client(receiver, tracing):
    facts = request(tracing, traceparent=TRACEPARENT)
    tracing.close()
    (span,) = receiver.named("POST /v2/models/{name}/infer")
    assert (span["traceId"], span["parentSpanId"]) == (TRACE, SPAN)
    assert facts.trace.traceparent == f"00-{TRACE}-{span['spanId']}-01"
    assert span["kind"] == "SPAN_KIND_SERVER"
    attributes = span["attributes"]
    assert attributes["quadriga.model"] == "a"
    assert attributes["quadriga.request_id"] == "r-1"
    assert attributes["http.response.status_code"] == "200"
    assert span["resource"]["service.name"] == "quadriga"
    assert span["resource"]["quadriga.process"] == "worker-0"
    stages = [other for other in receiver.spans if other["parentSpanId"] == span["spanId"]]
    begun_ns = int(span["startTimeUnixNano"])
    assert [
        (
            stage["name"],
            (int(stage["startTimeUnixNano"]) - begun_ns) / 1e6,
            (int(stage["endTimeUnixNano"]) - begun_ns) / 1e6,
        )
        for stage in stages
    ] == [
        ("queue", 2.0, 4.0),
        ("input", 4.0, 5.0),
        ("infer", 5.0, 10.0),
        ("output", 10.0, 13.0),
        ("store", 13.0, 16.0),
    ]
    assert {stage["traceId"] for stage in stages} == {TRACE}
    assert int(span["endTimeUnixNano"]) - begun_ns == 20_000_000


@pytest.mark.parametrize(
    ("sent", "has_span", "is_in_trace"),
    [
        ({}, True, False),
        ({"traceparent": TRACEPARENT}, True, True),
        ({"traceparent": TRACEPARENT[:-1] + "0"}, False, True),
        ({"event": TRACEPARENT}, True, True),
        ({"event": "nonsense"}, True, False),
        ({"traceparent": TRACEPARENT, "event": f"00-{'1' * 32}-{SPAN}-01"}, True, True),
        ({"protocol": "state"}, False, False),
        ({"protocol": "state", "traceparent": TRACEPARENT}, True, True),
        ({"protocol": "state", "status": 503, "outcome": "refused"}, True, False),
    ],
)
def test_what_is_recorded_follows_from_the_context(receiver, tracing, sent, has_span, is_in_trace):
    facts = request(tracing, **sent)
    tracing.close()
    spans = receiver.named("POST /v2/models/{name}/infer")
    assert len(spans) == has_span
    assert {span["traceId"] == TRACE for span in spans} <= {is_in_trace}
    assert (facts.trace is not None and facts.trace.trace_id == TRACE) == is_in_trace


def test_a_failure_is_an_error(receiver, tracing):
    request(tracing, method="RPC", path="/a.B/ModelInfer", route="/a.B/ModelInfer", protocol="grpc",
            status="INTERNAL", outcome="model_failure")  # fmt: skip
    tracing.close()
    (span,) = receiver.named("a.B/ModelInfer")
    assert span["status"] == {"message": "model_failure", "code": "STATUS_CODE_ERROR"}
    assert span["attributes"]["rpc.grpc.status"] == "INTERNAL"


def test_a_batch_is_linked_to_the_requests_of_its_records(receiver, tracing):
    def frame(**standard):
        return msgspec.json.encode({"seq": 1, "request_id": "r", "standard": standard})

    traced = [frame(trace_id=TRACE, span_id=f"{number:016x}") for number in range(1, 201)]
    others = [
        frame(engine="1"),
        b'{"seq":1,"metadata":{"trace_id":"forged"}}',
        b'{"seq":1,"standard":{"trace_id":7}}',
        b'"trace_id": no record',
        frame(trace_id=TRACE, span_id="short"),
    ]
    tracing.note_batch(others, 1, 2)
    tracing.note_batch([*others, *traced, *traced], 1_000, 3_000)
    tracing.close()
    (span,) = receiver.spans
    assert (span["name"], span["startTimeUnixNano"], span["endTimeUnixNano"]) == (
        "store batch", "1000", "3000",
    )  # fmt: skip
    assert len(span["links"]) == MAX_LINKS
    assert span["links"][0] == {"traceId": TRACE, "spanId": f"{1:016x}"}
    assert span["attributes"]["quadriga.records"] == "405"
    assert span["traceId"] != TRACE


def test_a_webhook_is_told_the_trace_of_the_job_that_a_request_submitted(
    receiver, tracing, tmp_path, monkeypatch
):
    posted = []
    monkeypatch.setattr(
        WebhookClient, "post", lambda _, url, headers, body: posted.append((url, headers))
    )
    schedules = drift_schedules(tmp_path / "drift")
    url = "https://alerts.example.org/hook"
    schedules.put("a", DriftSchedule(every="1h", webhooks=[Webhook(url)]))
    outbox = Outbox(schedules)

    def work(run):
        window = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z"}
        fields = {"report": "/api/reports/1", "window": window, "signals": []}
        outbox.queue("a", "drift", fields, traceparent=run.traceparent)
        (run.directory / "result").write_text("")
        return "result"

    jobs = Jobs(tmp_path / "jobs", traceparent=lambda: TRACEPARENT)
    job = jobs.submit("drift", {})
    with in_background(JobRunner(jobs, {"drift": work}, NoStore(), None, span=tracing.job).run):
        until = time.monotonic() + 60
        while jobs.read(job.id).state != "succeeded":
            assert time.monotonic() < until
            time.sleep(0.02)
    client = WebhookClient(parse_webhook_hosts("alerts.example.org"))
    DeliveryQueues([outbox], client, tracing.delivery).deliver()
    tracing.close()
    (of_job,), (delivery,) = receiver.named("job drift"), receiver.named("POST webhook")
    assert (of_job["traceId"], of_job["parentSpanId"]) == (TRACE, SPAN)
    assert of_job["attributes"]["quadriga.job"] == job.id
    assert (delivery["traceId"], delivery["parentSpanId"]) == (TRACE, of_job["spanId"])
    assert delivery["kind"] == "SPAN_KIND_CLIENT"
    assert posted[0][0] == url
    assert posted[0][1]["traceparent"] == f"00-{TRACE}-{delivery['spanId']}-01"
    assert url.rpartition("/")[2] not in str(delivery["attributes"])  # the path may be a secret


class NoStore:
    """Readers of a store that nobody reads."""

    def within(self, _):
        return None


@pytest.mark.parametrize(
    ("status", "delay_s"), [(503, 0.0), (400, 0.0), (200, 60.0), (0, 0.0)],
    ids=["refuses", "does not understand", "hangs", "is not there"],
)  # fmt: skip
def test_a_collector_costs_no_request_anything(status, delay_s, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with OtlpReceiver(status, delay_s) as receiver:
        url = receiver.url if status else "http://127.0.0.1:9"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        tracing = Tracing("worker-0")
        begun_s = time.monotonic()
        for _ in range(1000):
            request(tracing)
        assert time.monotonic() - begun_s < 30  # the collector's delay is longer for one alone
        begun_s = time.monotonic()
        tracing.close()
        assert time.monotonic() - begun_s < 20
    # Threads that still try would draw from `random` in tests that come later.
    senders = [thread for thread in threading.enumerate() if thread.name in SENDERS]
    for thread in senders:
        thread.join(30)
    assert not [thread.name for thread in senders if thread.is_alive()]


def test_the_usual_variables_say_the_rest(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "line-4")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=abc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    tracing = Tracing("worker-0")
    assert request(tracing).trace is None
    request(tracing, traceparent=TRACEPARENT)
    tracing.close()
    (span,) = receiver.named("POST /v2/models/{name}/infer")
    assert span["resource"]["service.name"] == "line-4"
    assert span["resource"]["deployment.environment"] == "lab"
    assert receiver.headers[0]["api-key"] == "abc"


def test_nothing_of_opentelemetry_is_imported_without_an_endpoint():
    program = """
import sys
import quadriga.engine.assembly.app, quadriga.engine.processes.worker, quadriga.engine.processes.serving, quadriga.engine.cli
from quadriga.engine.measures.accounting import open_tracing
assert open_tracing("worker-0") is None
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize(
    ("variables", "records"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"}, False),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
            False,
        ),
        ({}, False),
    ],
)
def test_variables_of_opentelemetry_switch_traces_on(monkeypatch, variables, records):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tracing = open_tracing("jobs")
    assert (tracing is not None) is records
    if tracing is not None:
        tracing.close()
