"""A trace from a client's span through workers, the writer and a job, as a collector receives it."""

import json
import re

import grpc
import pytest

from quadriga.proto.grpc.messages import SERVICE, message_class
from tests.otlp_receiver import OtlpReceiver
from tests.server_process import IMAGES, ROOT, SAMPLE_MODELS, ServerProcess, image_input

PAGE = ROOT / "docs" / "operations.md"
DETECTOR = "shapes-detector"
CLIENT = "00f067aa0ba902b7"


def traceparent(number):
    return f"00-{number:032x}-{CLIENT}-01"


@pytest.fixture(scope="module")
def image():
    return next((IMAGES / "detection").glob("*.png")).read_bytes()


def test_a_trace_goes_from_a_client_through_server_writer_and_job(tmp_path, image):
    v2 = json.dumps({"inputs": [image_input(image)]})
    path = f"/v2/models/{DETECTOR}/infer"
    event = json.dumps(
        {
            "specversion": "1.0", "id": "1", "source": "/a", "type": "b",
            "traceparent": traceparent(3), "data": json.loads(v2),
        }
    )  # fmt: skip
    message = message_class("ModelInferRequest")(model_name=DETECTOR)
    message.inputs.add(name="image", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
        image
    )
    with OtlpReceiver() as receiver:
        flags = "--grpc-port", "0", "--workers", "2"
        server = ServerProcess(tmp_path / "data", SAMPLE_MODELS / DETECTOR, *flags)
        server.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.url
        with server:
            answers = [
                server.request("POST", path, v2, {"traceparent": traceparent(1)}),
                server.request(
                    "POST", path, event, {"Content-Type": "application/cloudevents+json"}
                ),
            ]
            with grpc.insecure_channel(server.grpc) as channel:
                call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
                metadata = [("traceparent", traceparent(2))]
                _, ended = call.with_call(message.SerializeToString(), metadata=metadata)
            status, _, content = server.request(
                "POST", "/api/exports", json.dumps({"where": {}, "format": "jsonl"}),
                {"traceparent": traceparent(4)},
            )  # fmt: skip
            assert status == 202, content
            server.ended(json.loads(content)["id"])
            (stored,) = server.query({"std.trace_id": f"{1:032x}"})
            server.wait_until(lambda: receiver.named("store batch"))
            server.wait_until(lambda: receiver.named("job export"))
    requests = {
        int(span["traceId"], 16): span
        for span in receiver.spans
        if span["kind"] == "SPAN_KIND_SERVER" and span["parentSpanId"] == CLIENT
    }
    assert {number: span["name"] for number, span in requests.items()} == {
        1: "POST /v2/models/{name}[/versions/{version}]/infer",
        2: f"{SERVICE}/ModelInfer",
        3: "POST /v2/models/{name}[/versions/{version}]/infer",
        4: "POST /api/exports",
    }
    for number in (1, 2, 3):
        stages = {
            span["name"]: span
            for span in receiver.spans
            if span["parentSpanId"] == requests[number]["spanId"]
        }
        assert {"input", "infer", "output", "store"} <= stages.keys()
        for span in stages.values():
            assert span["traceId"] == f"{number:032x}"
            assert requests[number]["startTimeUnixNano"] <= span["startTimeUnixNano"]
            assert span["endTimeUnixNano"] <= requests[number]["endTimeUnixNano"]
    answered = [headers["traceparent"] for _, headers, _ in answers]
    answered.insert(1, dict(ended.trailing_metadata())["traceparent"])
    assert answered == [f"00-{number:032x}-{requests[number]['spanId']}-01" for number in (1, 2, 3)]
    assert json.loads(answers[1][2])["traceparent"] == answered[2]
    assert stored["standard_metadata"]["span_id"] == requests[1]["spanId"]
    linked = {
        (link["traceId"], link["spanId"])
        for span in receiver.named("store batch")
        for link in span["links"]
    }
    assert linked == {(f"{number:032x}", requests[number]["spanId"]) for number in (1, 2, 3)}
    (job,) = receiver.named("job export")
    assert (job["traceId"], job["parentSpanId"]) == (f"{4:032x}", requests[4]["spanId"])
    processes = {span["resource"]["quadriga.process"] for span in receiver.spans}
    assert {"writer", "jobs"} <= processes <= {"writer", "jobs", "worker-0", "worker-1"}
    shown = json.loads(re.search(r"```json\n(\[.*?\])\n```", PAGE.read_text(), re.DOTALL)[1])
    received = requests[1], *receiver.named("infer"), *receiver.named("store batch")
    for span, own in zip(shown, (received[0], received[1], received[-1]), strict=True):
        assert is_within(span, own), (span, own)


def is_within(shown, received):
    """Check that all fields of the page are there, with the same values but for ids and times."""
    for name, value in shown.items():
        if isinstance(value, dict):
            assert is_within(value, received[name])
        elif name in ("name", "kind") or name.startswith(("quadriga.", "service.", "http.")):
            if value != received[name] and not name.endswith("process"):
                return False
        elif name not in received:
            return False
    return True


def test_a_dead_collector_stops_nothing(tmp_path, image):
    server = ServerProcess(tmp_path / "data", SAMPLE_MODELS / DETECTOR)
    server.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:9"
    server.environment["OTEL_BSP_SCHEDULE_DELAY"] = "100"
    with server:
        for _ in range(10):
            server.infer(DETECTOR, image)
        assert server.stop() == 0
