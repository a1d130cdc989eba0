"""chariot-v2 at `/infer`: JSON, lines and plain bytes answer what chariot-v2-kserve answers."""

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server_process import SAMPLE_MODELS, ServerProcess, image_input

INFER = "/api/serve/serve-model-shapes-detector-pred/infer"
KINDS = ["application/json", "application/jsonl", "image/jpeg", "application/x-www-form-urlencoded"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A server of one model."""
    folder = tmp_path_factory.mktemp("alone")
    flags = ("--protocol", "chariot-v2")
    with ServerProcess(folder / "data", SAMPLE_MODELS / "shapes-detector", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def detections(server, photo):
    body = {"inputs": [image_input(photo)]}
    return server.call("POST", "/v2/models/shapes-detector/infer", body)[1]["outputs"][0]["data"][0]


def line(image, **parameters):
    text = base64.b64encode(image).decode()
    return json.dumps({"input": text, "parameters": parameters} if parameters else {"input": text})


@pytest.mark.parametrize("path", ["/infer", "/infer/", INFER, f"{INFER}/"])
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_an_image_is_answered_however_it_comes(alone, photo, detections, path, kind):
    plain = kind == "image/jpeg"
    headers = {"X-Request-ID": "seven"} | ({} if kind is None else {"Content-Type": kind})
    status, answered, body = alone.request("POST", path, photo if plain else line(photo), headers)
    assert status == 200, body
    assert json.loads(body) == {"output": detections}
    assert answered["content-type"] == "application/json"
    (record,) = alone.query({"id": answered["quadriga-inference-ids"]})
    assert record["request_id"] == "seven"
    assert record["input"]["name"] == "input-0"


def test_lines_answer_lines_in_their_order(server, photo, detections):
    body = f"{line(photo)}\n\n{line(photo, score_threshold=1.0)}\r\n{line(photo)}\n"
    headers = {"Content-Type": "application/jsonl"}
    status, answered, text = server.request("POST", INFER, body, headers)
    assert status == 200, text
    assert answered["content-type"] == "application/jsonl"
    lines = [json.loads(text_line) for text_line in text.decode().splitlines()]
    assert [len(text_line["output"]) for text_line in lines] == [
        len(detections),
        0,
        len(detections),
    ]
    assert len(answered["quadriga-inference-ids"].split(",")) == 3


def test_parameters_of_a_plain_image_come_in_a_header(server, photo):
    headers = {
        "Content-Type": "image/jpeg",
        "chariot-inference-parameters": '{"score_threshold": 1.0, "metadata": {"site": "v2"}}',
    }
    status, answered, body = server.request("POST", INFER, photo, headers)
    assert (status, json.loads(body)) == (200, {"output": []})
    (record,) = server.query({"meta.site": "v2"})
    assert record["id"] == answered["quadriga-inference-ids"]


def test_a_request_of_chariot_v2_kserve_is_answered_as_such(server, alone, photo, detections):
    body = {"id": "x", "inputs": [image_input(photo)]}
    for running, path in ((server, INFER), (alone, "/infer")):
        status, answer = running.call("POST", path, body)
        assert status == 200
        assert answer["id"] == "x"
        assert answer["outputs"][0]["data"] == [detections]


@pytest.mark.parametrize(
    ("path", "sent", "headers", "status", "message"),
    [
        ("/infer", '{"input": "aGk="}', {}, 400, "shapes-classifier, shapes-detector"),
        ("/api/serve/serve-model-nobody-pred/infer", "{}", {}, 404, "nobody"),
        (INFER, "{}", {}, 400, "input to be an image"),
        ("/api/serve/serve-model-nobody-pred/infer", '{"input": ""}', {}, 404, "nobody"),
        (INFER, "", {}, 400, "JSON"),
        (INFER, '{"input": "!!!"}', {}, 400, "base64"),
        (INFER, '{"input": "aGVsbG8="}', {}, 400, "a JPEG"),
        (INFER, '{"inputs": []}', {}, 400, "at least one input"),
        (INFER, "", {"Content-Type": "image/png"}, 400, "a JPEG"),
        (INFER, '{"input": "a"}\n{', {"Content-Type": "application/jsonl"}, 400, "line 1"),
        (INFER, "x", {"Content-Type": "a/b", "chariot-inference-parameters": "7"}, 400, "header"),
        (INFER, '{"input": "a", "parameters": {"action": "x"}}', {}, 400, "predict, detect"),
    ],
)
def test_what_is_wrong_is_said(server, path, sent, headers, status, message):  # noqa: PLR0917 - a row
    actual_status, answered, text = server.request("POST", path, sent, headers)
    assert (actual_status, answered["content-type"]) == (status, "application/json")
    assert message in json.loads(text)["error"]


def test_get_is_no_verb_of_it(server):
    status, headers, _ = server.request("GET", INFER)
    assert (status, headers["allow"]) == (405, "POST")


@given(
    st.binary(max_size=200) | st.binary(max_size=50).map(lambda suffix: b'{"input": "' + suffix),
    st.sampled_from(KINDS),
    st.binary(max_size=20).map(lambda suffix: suffix.hex()) | st.just('{"top_k": 1}'),
)
@settings(max_examples=60)
def test_no_bytes_are_a_fault_of_the_server(server, body, kind, parameters):
    headers = {"Content-Type": kind, "chariot-inference-parameters": parameters}
    status, _, answer = server.request("POST", INFER, body, headers)
    assert status == 400, answer
    assert "expected" in json.loads(answer)["error"]
