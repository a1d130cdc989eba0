"""Parameters of image and text to text: what is taken, and what is refused by name."""

import pytest

from quadriga.tasks.generation import MAX_SEQUENCES, GenerationConfig, ImageTextToText
from quadriga.tasks.parameters import ParameterError

MODEL = GenerationConfig(
    max_new_tokens=20, num_beams=2, temperature=0.7, eos_token_ids=(1, 2), seed=None
)


def options(**parameters):
    return ImageTextToText(MODEL).options({"prompts": ["?"], **parameters})


def test_a_request_that_says_nothing_more_takes_what_the_model_says():
    request = options()
    assert (request.action, request.prompts, request.search) == ("predict", ("?",), MODEL)


TAKEN = [
    ({"max_new_tokens": 4096}, "max_new_tokens", 4096),
    ({"max_new_tokens": None}, "max_new_tokens", 20),
    ({"do_sample": True}, "do_sample", True),
    ({"do_sample": True, "temperature": 0}, "do_sample", False),
    ({"temperature": 1.5}, "temperature", 1.5),
    ({"top_p": 0.9}, "top_p", 0.9),
    ({"top_k": 0}, "top_k", 0),
    ({"num_beams": 16}, "num_beams", 16),
    ({"seed": 0}, "seed", 0),
    ({"seed": 2**63 - 1}, "seed", 2**63 - 1),
]


@pytest.mark.parametrize(("parameters", "name", "expected"), TAKEN)
def test_what_a_request_says_holds(parameters, name, expected):
    assert getattr(options(**parameters).search, name) == expected


@pytest.mark.parametrize(
    ("parameters", "prompts"),
    [
        ({"prompts": ["a"]}, ("a",)),
        ({"prompts": ["a", "a", ""]}, ("a", "a", "")),
        ({"prompts": ["?"] * 64}, ("?",) * 64),
        ({"prompt": "a"}, ("a",)),
        ({"prompt": "", "prompts": None}, ("",)),
    ],
)
def test_prompts_come_as_a_list_or_alone(parameters, prompts):
    assert ImageTextToText(MODEL).options({**parameters, "action": "generate"}).prompts == prompts


def test_prompts_times_beams_are_bounded():
    assert len(options(prompts=["a"] * 64, num_beams=4).prompts) * 4 == MAX_SEQUENCES
    with pytest.raises(ParameterError, match="at most 256, got 64 x 5"):
        options(prompts=["a"] * 64, num_beams=5)


REFUSED = [
    ("prompts", {}),
    ("prompts", {"prompts": []}),
    ("prompts", {"prompts": "a"}),
    ("prompts", {"prompts": ["?"] * 65}),
    (r"prompts\[1\]", {"prompts": ["a", 1]}),
    (r"prompts\[0\]", {"prompts": ["x" * 32_769]}),
    ("prompts and parameters.prompt", {"prompts": ["a"], "prompt": "b"}),
    ("prompt", {"prompt": ["a"]}),
    ("action", {"prompt": "a", "action": "detect"}),
    ("max_new_tokens", {"prompt": "a", "max_new_tokens": 0}),
    ("max_new_tokens", {"prompt": "a", "max_new_tokens": 4097}),
    ("max_new_tokens", {"prompt": "a", "max_new_tokens": 1.5}),
    ("do_sample", {"prompt": "a", "do_sample": 1}),
    ("do_sample", {"prompt": "a", "do_sample": "true"}),
    ("temperature", {"prompt": "a", "temperature": -1}),
    ("temperature", {"prompt": "a", "temperature": float("nan")}),
    ("temperature", {"prompt": "a", "temperature": "hot"}),
    ("top_p", {"prompt": "a", "top_p": 1.1}),
    ("top_k", {"prompt": "a", "top_k": -1}),
    ("num_beams", {"prompt": "a", "num_beams": 0}),
    ("num_beams", {"prompt": "a", "num_beams": 17}),
    ("prompts times num_beams", {"prompts": ["a"] * 17, "num_beams": 16}),
    ("seed", {"prompt": "a", "seed": -1}),
    ("seed", {"prompt": "a", "seed": 2**63}),
    ("seed", {"prompt": "a", "seed": True}),
]


@pytest.mark.parametrize(("name", "parameters"), REFUSED)
def test_what_is_not_allowed_is_refused_by_name(name, parameters):
    with pytest.raises(ParameterError, match=rf"^(expected (either )?)?parameters\.{name}"):
        ImageTextToText(MODEL).options(parameters)
