"""Parameters over gRPC, of clients whose messages have neither fractions nor lists."""

import json
from collections.abc import Iterator

import grpc
import pytest

from tests.e2e.test_grpc import Client, image_request
from tests.server_process import SAMPLE_MODELS, ServerProcess, image_input


@pytest.fixture(scope="module")
def speaking(tmp_path_factory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("grpc-parameters") / "data"
    with ServerProcess(data, SAMPLE_MODELS, "--grpc-port", "0") as server:
        yield server


@pytest.fixture(scope="module")
def client(speaking) -> Iterator[Client]:
    with Client(speaking.grpc) as channel:
        yield channel


def test_fractions_are_texts_where_the_messages_have_none(speaking, client, photo):
    answers = []
    for threshold in (0.6, 0.96):
        request = image_request(photo, score_threshold=str(threshold))
        (output,) = client.call("ModelInfer", request).outputs
        answers.append(json.loads(output.contents.bytes_contents[0]))
        body = {"inputs": [image_input(photo, "picture", score_threshold=threshold)]}
        _, expected = speaking.call("POST", "/v2/models/shapes-detector/infer", body)
        assert answers[-1] == expected["outputs"][0]["data"][0]
    assert len(answers[0]) > len(answers[1])
    with pytest.raises(grpc.RpcError, match="a number from 0 to 1, got '0,96'"):
        client.call("ModelInfer", image_request(photo, score_threshold="0,96"))


def test_a_question_is_an_input_beside_the_image(client, photo):
    request = image_request(photo, "shapes-image-text")
    question = request.inputs.add(name="question", datatype="BYTES", shape=[1])
    question.contents.bytes_contents.append(b"what shape is it?")
    length = request.inputs.add(name="max_new_tokens", datatype="INT64", shape=[1])
    length.contents.int64_contents.append(1)
    (output,) = client.call("ModelInfer", request).outputs
    asked = image_request(photo, "shapes-image-text", prompt="what shape is it?")
    asked.inputs[0].parameters["max_new_tokens"].int64_param = 1
    (expected,) = client.call("ModelInfer", asked).outputs
    assert (output.name, output.contents) == ("picture", expected.contents)


@pytest.mark.parametrize("prompt", ["0.5", "7"])
def test_a_prompt_of_digits_is_a_text(client, photo, prompt):
    request = image_request(photo, "shapes-image-text", prompt=prompt, max_new_tokens="2.0")
    (output,) = client.call("ModelInfer", request).outputs
    (answer,) = json.loads(output.contents.bytes_contents[0])
    assert answer["prompt"] == prompt
    assert "inference_id" in output.parameters
