"""Requests whose inputs are the arguments of one call to an image-text model."""

import numpy as np
import pytest

from quadriga.proto.datatypes import NUMPY_TYPES
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from tests.text_models import vision_language
from tests.unit.engine.harness import load_pipeline, small_settings
from tests.unit.engine.test_generation import PNG, WHITE, by_rule


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arguments")
    vision_language(folder / "talker")
    pipeline = load_pipeline(folder, None, small_settings())
    yield pipeline
    pipeline.close()


def image(name="image", **parameters):
    return Tensor(name, "BYTES", (1,), data=[PNG], parameters=parameters)


def text(name, *elements, **parameters):
    return Tensor(name, "BYTES", (len(elements),), data=list(elements), parameters=parameters)


def one_number(name, datatype, value):
    array = np.array([value], NUMPY_TYPES[datatype])
    return Tensor(name, datatype, (1,), array, parameters={"content_type": "raw"})


SHORT = [
    one_number("max_new_tokens", "INT64", 2),
    one_number("temperature", "FP64", 0.8),
    one_number("do_sample", "INT8", 0),
]


@pytest.mark.parametrize(
    ("inputs", "name", "answers"),
    [
        ([image(), text("question", "one")], "image", {"one": 12}),
        ([text("args", "one"), image("image"), *SHORT], "image", {"one": 2}),
        ([image("args"), text("question", "one"), *SHORT], "args", {"one": 2}),
        ([image("question"), text("prompt", "one")], "question", {"one": 12}),
        ([image("any"), text("prompts", "one", b"two three")], "any", {"one": 12, "two three": 12}),
        ([image("any"), text("text", "one"), text("text", "two")], "any", {"one": 12, "two": 12}),
        ([image(), text("text", "b25l", content_type="base64")], "image", {"one": 12}),
        ([image(prompt="one"), *SHORT], "image", {"one": 2}),
        ([image(max_new_tokens=3), text("question", "one"), *SHORT], "image", {"one": 3}),
        ([image(), text("question", "one"), one_number("length_penalty", "FP32", 1)], "image", {"one": 12}),
    ],
)  # fmt: skip
def test_inputs_may_be_the_arguments_of_one_call(pipeline, inputs, name, answers):
    (output,) = pipeline.infer(InferRequest("talker", None, "1", inputs)).outputs
    assert (output.name, output.shape) == (name, (1,))
    expected = [(prompt, by_rule(prompt, WHITE, most)) for prompt, most in answers.items()]
    assert [(item.prompt, item.answer) for item in output.data[0]] == expected


def test_a_question_is_asked_about_every_image(pipeline):
    inputs = [
        image("a"),
        text("question", "one", metadata='{"k": 1}'),
        image("b", action="generate"),
    ]
    outputs = pipeline.infer(InferRequest("talker", None, "1", inputs)).outputs
    assert [(output.name, output.parameters) for output in outputs] == [
        ("a", {"metadata": '{"k": 1}'}),
        ("b", {"metadata": '{"k": 1}', "action": "generate"}),
    ]
    assert {output.data[0][0].answer for output in outputs} == {by_rule("one", WHITE)}


def test_an_image_with_prompts_may_have_the_name_of_a_question(pipeline):
    inputs = [image("args"), image("question")]
    request = InferRequest("talker", None, "1", inputs, parameters={"prompt": "one"})
    assert [output.name for output in pipeline.infer(request).outputs] == ["args", "question"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            [image(), text("other", "What is it?")],
            "inputs[0] ('image'): parameters.prompts is required: a list of 1 to 64 texts; or an input named question",
        ),
        (
            [text("args", "Prompt here"), *SHORT],
            "inputs[0] ('args'): parameters.prompts is required: a list of 1 to 64 texts; or an input named question",
        ),
        (
            [text("other", "Describe it!"), text("question", "one")],
            "inputs[0] ('other'): data[0]: expected a base64-encoded image",
        ),
        (
            [image(), text("question", b"\xff")],
            "inputs[1] ('question'): expected a question in UTF-8, got:",
        ),
        (
            [image(), text("question", "?", content_type="base64")],
            "inputs[1] ('question'): expected a question in UTF-8, got:",
        ),
        (
            [image(), text("question")],
            "inputs[0] ('image'): expected parameters.prompts to be a list of 1 to 64 texts, got []",
        ),
        (
            [image(), text("question", "one"), one_number("do_sample", "INT8", 2)],
            "inputs[0] ('image'): expected parameters.do_sample to be true or false, got 2",
        ),
        (
            [image(), text("question", "one"), one_number("temperature", "FP64", np.nan)],
            "inputs[0] ('image'): expected parameters.temperature to be a number from 0 to 100, got nan",
        ),
        (
            [image(), Tensor("x", "FP32", (2,), np.zeros(2, np.float32)), text("question", "one")],
            "inputs[1] ('x'): expected images in datatype BYTES",
        ),
        ([one_number("temperature", "FP64", 1)], "inputs[0] ('temperature'): expected images in"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(pipeline, inputs, message):
    with pytest.raises(InvalidRequest) as refused:
        pipeline.infer(InferRequest("talker", None, "1", inputs))
    assert str(refused.value).startswith(message)
