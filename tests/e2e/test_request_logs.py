"""The log of a server as JSON: every line an object, the same ids as in answers, no secrets and no images."""

import base64
import json

import grpc
import pytest

from quadriga.proto.grpc.messages import SERVICE, message_class
from tests.server_process import IMAGES, ROOT, SAMPLE_MODELS, ServerProcess, image_input, quadriga

PAGE = ROOT / "docs" / "operations.md"
DETECTOR = "shapes-detector"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SECRET = "quadriga-admin.canary-7f3a-canary-7f3a-canary-7f3a"
KEY = {"Authorization": f"Bearer {SECRET}"}


def lines(server):
    """Return the lines of the log that are not those of native libraries."""
    text = server.log.read_text().splitlines()
    parsed = [json.loads(line) for line in text if line.startswith("{")]
    for line in parsed:
        assert {"time", "level", "process", "pid", "logger", "message"} <= line.keys()
    return parsed


def requests_of(server):
    return [line for line in lines(server) if line["logger"] == "quadriga.access"]


@pytest.fixture(scope="module")
def image():
    return next((IMAGES / "detection").glob("*.png")).read_bytes()


def test_each_protocol_has_a_line_with_the_id_of_its_answer(tmp_path, image):
    server = ServerProcess(
        tmp_path / "data", SAMPLE_MODELS, "--grpc-port", "0", "--log-format", "json",
        "--log-requests", "1", "--workers", "2",
    )  # fmt: skip
    server.environment = {"QUADRIGA_ADMIN_KEY": SECRET}
    encoded = base64.b64encode(image).decode()
    v2 = json.dumps({"inputs": [image_input(image, metadata={"camera": "canary-camera"})]})
    v1 = json.dumps({"instances": [{"b64": encoded}]})
    event = {"ce-specversion": "1.0", "ce-source": "/a", "ce-type": "b", "ce-id": "c"}
    paths = {
        "v2": (f"/v2/models/{DETECTOR}/infer?secret=canary-query", v2, {}),
        "chariot-v2": (f"/api/serve/serve-model-{DETECTOR}-pred/infer", json.dumps({"input": encoded}), {}),
        "v1": (f"/v1/models/{DETECTOR}:predict", v1, {}),
        "event": (f"/v2/models/{DETECTOR}/infer", v2, event | {"ce-traceparent": TRACEPARENT}),
        "absent": ("/v2/models/absent/infer", v2, {}),
        "api": ("/api/inferences/query", json.dumps({"limit": 1}), {}),
        "stranger": (f"/v2/models/{DETECTOR}/infer", v2, {"Authorization": "Bearer canary-wrong"}),
    }  # fmt: skip
    answers = {}
    try:
        server.start(ready=False)
        assert server.read_announced() == f"Console on http://{server.host}/console/"
        server.wait_until(lambda: server.request("GET", "/v2/health/ready")[0] == 200)
        for name, (path, body, more) in paths.items():
            sent = KEY | {"X-Request-ID": f"id-{name}"} | more
            answers[name] = server.request("POST", path, body, sent)
        new_id = server.request("POST", paths["v2"][0], v2, KEY | {"traceparent": TRACEPARENT})
        message = message_class("ModelInferRequest")(model_name=DETECTOR)
        tensor = message.inputs.add(name="image", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(image)
        with grpc.insecure_channel(server.grpc) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            metadata = [("authorization", f"Bearer {SECRET}"), ("traceparent", TRACEPARENT)]
            ids = [("x-request-id", "id-grpc")]
            answer, ended = call.with_call(message.SerializeToString(), metadata=metadata + ids)
            trailing = dict(ended.trailing_metadata())
            with pytest.raises(grpc.RpcError) as refused:
                call(message.SerializeToString(), metadata=ids)
            streaming = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
            streamed = list(streaming(iter([message.SerializeToString()] * 2), metadata=metadata))
        assert len(streamed) == 2
        count = len(paths) + 5
        server.wait_until(lambda: len(requests_of(server)) >= count)
        stored = json.loads(
            server.request(
                "POST",
                "/api/inferences/query",
                json.dumps({"where": {"std.trace_id": TRACE}, "consistency": "journal"}),
                KEY,
            )[2]
        )["inferences"]
    finally:
        server.stop()
    text = server.log.read_text()
    for canary in ("canary", encoded[:40], encoded[-40:]):
        assert canary not in text
    written = {line["request_id"]: line for line in requests_of(server)}
    assert {name: answers[name][0] for name in paths} == {
        "v2": 200, "chariot-v2": 200, "v1": 200, "event": 200, "absent": 404, "api": 200, "stranger": 401,
    }  # fmt: skip
    for name, (path, body, _) in paths.items():
        status, headers, content = answers[name]
        line = written[f"id-{name}"]
        assert headers["x-request-id"] == line["request_id"]
        assert (line["status"], line["path"]) == (status, path.partition("?")[0])
        assert (line["bytes_in"], line["bytes_out"]) == (len(body), len(content))
        assert line["duration_ms"] > 0
        assert line["level"] == ("warning" if name == "stranger" else "info")
    assert {written[f"id-{name}"]["protocol"] for name in ("v2", "chariot-v2", "v1", "api")} == {
        "v2", "chariot-v2", "v1", "api",
    }  # fmt: skip
    line = written["id-v2"]
    assert (line["model"], line["outcome"], line["inferences"]) == (DETECTOR, "success", 1)
    assert line["inference_ids"] == answers["v2"][1]["quadriga-inference-ids"].split(",")
    assert set(line["stages_ms"]) == {"queue", "preprocess", "infer", "postprocess"}
    assert line["key_id"] == "admin"
    assert json.loads(answers["v2"][2])["id"] == "id-v2"
    assert (
        answers["event"][1]["traceparent"] == answers["event"][1]["ce-traceparent"] == TRACEPARENT
    )
    assert new_id[1]["traceparent"] == TRACEPARENT
    assert written[new_id[1]["x-request-id"]]["trace_id"] == TRACE
    assert (trailing["x-request-id"], trailing["traceparent"]) == ("id-grpc", TRACEPARENT)
    assert message_class("ModelInferResponse").FromString(answer).id == "id-grpc"
    assert dict(refused.value.trailing_metadata())["x-request-id"] == "id-grpc"
    of_grpc = [line for line in requests_of(server) if line["protocol"] == "grpc"]
    assert [line["status"] for line in of_grpc] == ["OK", "UNAUTHENTICATED", "OK", "OK"]
    assert all(line["bytes_in"] > len(image) for line in of_grpc if line["status"] == "OK")
    assert len(stored) == 5  # an event, one over HTTP, three over gRPC
    assert {inference["standard_metadata"]["span_id"] for inference in stored} == {
        "00f067aa0ba902b7"
    }
    assert "id-grpc" in {inference["request_id"] for inference in stored}


def test_a_server_that_cannot_start_says_so_in_json(tmp_path):
    flags = "--log-format", "json", "--data", tmp_path / "data", "--host", "192.0.2.1"
    ended = quadriga("serve", tmp_path, *flags, "--insecure", code=2)
    (line,) = map(json.loads, ended.stderr.splitlines())
    assert line["level"] == "critical"
    assert "cannot listen on 192.0.2.1" in line["message"]
