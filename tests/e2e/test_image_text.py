"""Prompts about images over the wire, and in the store."""

import json
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest

from tests.pages import blocks
from tests.server_process import ServerProcess, image_input, quadriga
from tests.text_models import IMAGE_PLACES, encoder_decoder, expected, ids, vision_language, words

PROMPTS = ["one", "two three", "four five six eight", ""]
PATH = "/v2/models/talker/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("packages")
    vision_language(root / "talker")
    encoder_decoder(root / "captions", "merged", "bart")
    with ServerProcess(tmp_path_factory.mktemp("text-server") / "data", root) as running:
        yield running


@pytest.fixture(scope="module")
def white():
    return cv2.imencode(".png", np.full((9, 7, 3), 255, np.uint8))[1].tobytes()


def by_rule(prompt):
    return {"prompt": prompt, "answer": words(expected([1, *IMAGE_PLACES, *ids(prompt)], 12))}


def ask(server, image, **parameters):
    return server.call("POST", PATH, {"inputs": [image_input(image, **parameters)]})


def test_an_answer_comes_back_and_is_found(server, white):
    status, answer = ask(server, white, prompts=PROMPTS, metadata='{"camera_id": "north"}')
    assert status == 200
    (output,) = answer["outputs"]
    assert output["data"] == [[by_rule(prompt) for prompt in PROMPTS]]
    stored = output["parameters"]["inference_id"]
    record = server.call("GET", f"/api/inferences/{stored}")[1]
    assert record["predictions"] == output["data"][0]
    assert (record["task"], record["action"]) == ("IMAGE_TEXT_TO_TEXT", "predict")
    inferences = server.query({"and": [{"task": "image-text"}, {"meta.camera_id": "north"}]})
    assert [item["id"] for item in inferences] == [stored]
    printed = quadriga("query", "--data", server.data, env={"COLUMNS": "200", "PATH": ""})
    assert by_rule("one")["answer"].split()[0] in printed.stdout


def test_many_clients_get_their_own_answers(server, white):
    def one(number):
        prompt = " ".join(["one", "two", "three"][: 1 + number % 3])
        status, answer = ask(server, white, prompt=prompt)
        return status, answer["outputs"][0]["data"] == [[by_rule(prompt)]]

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(48))) == {(200, True)}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "parameters.prompts"),
        ({"prompts": ["?"] * 65}, "a list of 1 to 64 texts"),
        ({"prompt": "one " * 50}, "fewer than 40 tokens"),
        ({"prompt": "one", "temperature": "hot"}, "parameters.temperature"),
        ({"prompt": "one", "action": "detect"}, "predict, generate"),
    ],
)
def test_a_wrong_request_is_a_400_that_says_why(server, white, parameters, message):
    status, answer = ask(server, white, **parameters)
    assert status == 400
    assert message in answer["error"]


def test_the_two_inputs_of_chariots_page_are_one_image_and_its_question(server, white):
    inputs = [
        image_input("one", "args"),
        image_input(white, "image", metadata='{"camera_id": "south"}'),
        {"name": "max_new_tokens", "datatype": "INT64", "shape": [1], "data": [3],
         "parameters": {"content_type": "raw"}},
        {"name": "temperature", "datatype": "FP64", "shape": [1], "data": [0.8],
         "parameters": {"content_type": "raw"}},
        {"name": "do_sample", "datatype": "INT8", "shape": [1], "data": [False],
         "parameters": {"content_type": "raw"}},
    ]  # fmt: skip
    status, answer = server.call("POST", PATH, {"inputs": inputs})
    assert status == 200, answer
    (output,) = answer["outputs"]
    _, same = ask(server, white, prompt="one", max_new_tokens=3)
    assert (output["name"], output["data"]) == ("image", same["outputs"][0]["data"])
    record = server.call("GET", f"/api/inferences/{output['parameters']['inference_id']}")[1]
    assert (record["metadata"], record["input"]["name"]) == ({"camera_id": "south"}, "image")


def test_the_question_of_the_page_is_answered(server, white):
    (text,) = (
        text
        for language, text in blocks("docs/protocols-reference.md")
        if language == "json" and '"question"' in text
    )
    body = json.loads(text.replace("<image, base64>", image_input(white)["data"][0]))
    status, answer = server.call("POST", PATH, body)
    assert status == 200, answer
    ((item,),) = answer["outputs"][0]["data"]
    assert item["prompt"] == "How many ships?"


def test_inspect_says_what_was_decided(tmp_path):
    folder = encoder_decoder(tmp_path / "captions", "two", "bart")
    inspection = json.loads(quadriga("inspect", folder, "--json").stdout)
    assert inspection["task"] == "IMAGE_TEXT_TO_TEXT"
    decided = {item["field"]: (item["value"], item["reason"]) for item in inspection["decisions"]}
    assert decided["text.decoder_start_token_id"] == (1, "generation_config.json")
    assert decided["text.prompt_template"] == ("{prompt}", "default")
