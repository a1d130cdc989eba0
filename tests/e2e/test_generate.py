"""Triton's generate extension: whole answers and streams, the same as those of infer."""

import base64
import json
import socket
import time

import cv2
import numpy as np
import pytest

from tests.server_process import SAMPLE_MODELS, ServerProcess, image_input
from tests.text_models import IMAGE_PLACES, expected, ids, vision_language, words

PATH = "/v2/models/talker/generate"
WHITE = cv2.imencode(".png", np.full((9, 7, 3), 255, np.uint8))[1].tobytes()
IMAGE = base64.b64encode(WHITE).decode()
PROMPT = "two three"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("packages")
    vision_language(root / "talker")
    for name in ("shapes-image-text", "shapes-classifier"):
        (root / name).symlink_to(SAMPLE_MODELS / name)
    data = tmp_path_factory.mktemp("generate-server") / "data"
    with ServerProcess(data, root, "--threads", "2") as running:
        yield running


def by_rule(prompt, most=12):
    return words(expected([1, *IMAGE_PLACES, *ids(prompt)], most))


def asked(**more):
    return {"text_input": PROMPT, "image": IMAGE, **more}


def events(server, body, path=PATH):
    status, headers, answer = server.request("POST", f"{path}_stream", json.dumps(body))
    assert status == 200, answer
    assert headers["content-type"] == "text/event-stream"
    *texts, end = answer.decode().split("\n\n")
    assert end == ""
    assert all(text.startswith("data: ") for text in texts)
    return [json.loads(text.removeprefix("data: ")) for text in texts]


@pytest.mark.parametrize(
    ("body", "most"),
    [
        (asked(), 12),
        (asked(image=f"data:image/png;base64,{IMAGE}"), 12),
        (asked(image=[IMAGE]), 12),
        (asked(parameters=None, id=None), 12),
        (asked(parameters={"max_tokens": 3}), 3),
        (asked(parameters={"max_new_tokens": 3, "stream": False, "temperature": 0}), 3),
        (asked(max_tokens=3, stream=True), 3),
        ({"text_input": PROMPT, "image_input": IMAGE}, 12),
        ({"text_input": PROMPT, "images": [IMAGE]}, 12),
    ],
)
def test_a_text_is_answered_whole_and_as_a_stream(server, body, most):
    status, headers, answer = server.request("POST", PATH, json.dumps(body))
    assert status == 200, answer
    response = json.loads(answer)
    assert response.pop("id")
    assert response == {
        "model_name": "talker",
        "model_version": "1",
        "text_output": by_rule(PROMPT, most),
    }
    assert headers["quadriga-inference-ids"].isdigit()
    streamed = events(server, body)
    assert "".join(event["text_output"] for event in streamed) == by_rule(PROMPT, most)
    assert ["inference_id" in event for event in streamed] == [False] * (len(streamed) - 1) + [True]


def test_the_sample_model_says_what_infer_says(server):
    path = "/v2/models/shapes-image-text"
    image = (SAMPLE_MODELS / "images" / "image-text" / "scene_04.png").read_bytes()
    prompt = "Describe the image."
    infer = {"inputs": [image_input(image, prompt=prompt)]}
    answer = server.call("POST", f"{path}/infer", infer)[1]["outputs"][0]["data"][0][0]["answer"]
    body = {"text_input": prompt, "image": base64.b64encode(image).decode()}
    assert server.call("POST", f"{path}/versions/1/generate", body)[1]["text_output"] == answer
    streamed = events(server, body, f"{path}/generate")
    assert "".join(event["text_output"] for event in streamed) == answer
    assert len(streamed) > 2


def test_an_answer_is_recorded_once_at_the_end(server):
    body = asked(
        id="once", parameters={"metadata": {"site": "stream"}, "do_sample": True, "seed": 7}
    )
    streamed = events(server, body)
    (record,) = server.query({"meta.site": "stream"})
    assert record["id"] == streamed[-1]["inference_id"]
    text = "".join(event["text_output"] for event in streamed)
    assert record["predictions"] == [{"prompt": PROMPT, "answer": text}]
    assert record["request_id"] == "once"
    assert {event["id"] for event in streamed} == {"once"}
    assert record["latency_ms"] > 0
    assert server.call("POST", PATH, body)[1]["text_output"] == text


def test_what_is_recorded_is_counted_even_if_the_client_leaves_with_the_last_piece(server):
    def counted():
        return server.call("GET", PATH.replace("generate", "stats"))[1]["model_stats"][0]

    count_before = counted()["inference_count"]
    body = json.dumps(asked(parameters={"metadata": {"site": "leaving"}})).encode()
    host, port = server.host.split(":")
    for _ in range(10):
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST {PATH}_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            received = b""
            while b"inference_id" not in received:
                received += connection.recv(4096)
    assert len(server.query({"meta.site": "leaving"})) == 10
    server.wait_until(lambda: counted()["inference_count"] == count_before + 10, 5)


def test_beams_answer_in_one_event(server):
    body = asked(parameters={"num_beams": 3})
    (event,) = events(server, body)
    assert event["text_output"] == server.call("POST", PATH, body)[1]["text_output"]
    assert event["inference_id"].isdigit()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "a body in JSON"),
        (b"[]", "a JSON object"),
        (b"\xff", "a body in JSON"),
        ({"image": IMAGE}, "text_input"),
        ({"text_input": 3, "image": IMAGE}, "text_input"),
        ({"text_input": "one"}, "one image"),
        (asked(images=[IMAGE]), "one image"),
        (asked(image=[IMAGE, IMAGE]), "one image"),
        (asked(image={}), "one image"),
        (asked(image="!!!"), "base64"),
        (asked(image="aGVsbG8="), "image"),
        (asked(id=3), "id"),
        (asked(id="x" * 2000), "1024 characters"),
        (asked(parameters=[]), "parameters"),
        (asked(parameters={"max_tokens": 3, "max_new_tokens": 4}), "got both"),
        (asked(parameters={"max_tokens": 0}), "max_new_tokens"),
        (asked(parameters={"prompts": ["one"]}), "cannot be used together"),
        (asked(text_input="one " * 50), "fewer than 40 tokens"),
        (asked(parameters={"metadata": "{"}), "metadata"),
    ],
)
@pytest.mark.parametrize("path", [PATH, f"{PATH}_stream"])
def test_what_is_wrong_is_a_400_before_any_event(server, path, body, message):
    sent = body if isinstance(body, bytes) else json.dumps(body)
    status, headers, answer = server.request("POST", path, sent)
    assert status == 400, answer
    assert headers["content-type"] == "application/json"
    assert message in json.loads(answer)["error"]


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        ("shapes-classifier", 400, "IMAGE_TEXT_TO_TEXT"),
        ("nobody", 404, "model not found: 'nobody'"),
    ],
)
def test_other_models_say_so(server, path, model, status, message):
    actual_status, answer = server.call("POST", f"/v2/models/{model}/{path}", asked())
    assert (actual_status, message in answer["error"]) == (status, True)


def test_clients_that_go_away_hold_none_of_the_two_threads(server):
    path = "/v2/models/talker/generate_stream"
    body = json.dumps(asked()).encode()
    host, port = server.host.split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            connection.recv(16)
    started = time.monotonic()
    assert server.call("POST", PATH, asked())[0] == 200
    assert time.monotonic() - started < 5
