"""Text packages: each layout answers as its graphs are built, alone as in batches."""

import copy
import json

import numpy as np
import pytest

from quadriga.engine.models.image_text.generation import TextPackage, describe_text_package
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.image import Image
from quadriga.tasks.parameters import ParameterError
from tests.text_models import (
    EOS,
    FIRST,
    IMAGE_PLACES,
    PREPROCESSOR,
    encoder_decoder,
    expected,
    ids,
    vision_language,
    words,
    write_json,
)
from tests.unit.engine.harness import load_pipeline, small_settings

WHITE = Image(np.full((7, 5, 3), 255, np.uint8))
BLACK = Image(np.zeros((7, 5, 3), np.uint8))
PROMPTS = ["one", "two three", "", "one", "four five six eight", "ten two"]
LAYOUTS = [(layout, style) for layout in ("merged", "two", "plain") for style in ("gpt2", "bart")]


def ask(package, prompts, image=WHITE, **parameters):
    options = package.read_options({"prompts": prompts, **parameters})
    ((answers, _),) = package.predict([image], [options])
    assert [answer.prompt for answer in answers] == prompts
    return [answer.answer for answer in answers]


def image_places(image):
    return IMAGE_PLACES if image is WHITE else [0, 0]


def by_rule(prompt, image, most=12, *, image_token=True, ends=EOS):
    """What a vision_language package answers: <bos>, the image, the prompt."""
    start = [1, *image_places(image)] if image_token else [*image_places(image), 1]
    return words(expected(start + ids(prompt), most, ends), ends)


def by_decoder_rule(prompt, image, most):
    """What an encoder_decoder answers: the image adds to every sum, but takes no position."""
    prompt_tokens = [1, *ids(prompt)]
    extra = sum(image_places(image))
    answer: list[int] = []
    while len(answer) < most and not (answer and answer[-1] in EOS):
        values = prompt_tokens + answer
        answer.append(FIRST + (sum(values) + extra + len(values) - 1) % 11)
    return words(answer)


@pytest.mark.parametrize("image", [WHITE, BLACK], ids=["white", "black"])
@pytest.mark.parametrize("image_token", [True, False], ids=["token", "before"])
@pytest.mark.parametrize("positions", [True, False], ids=["positions", "no positions"])
def test_a_vision_language_model_answers_by_its_rule(tmp_path, image, image_token, positions):
    package = TextPackage(
        vision_language(tmp_path, positions=positions, image_token=image_token, keep=positions)
    )
    rule = [by_rule(prompt, image, image_token=image_token) for prompt in PROMPTS]
    assert ask(package, PROMPTS, image) == rule
    assert [ask(package, [prompt], image)[0] for prompt in PROMPTS] == rule
    assert len(set(rule)) > 3


@pytest.mark.parametrize(("layout", "style"), LAYOUTS)
def test_an_encoder_decoder_answers_by_its_rule(tmp_path, layout, style):
    package = TextPackage(encoder_decoder(tmp_path, layout, style))
    for image in (WHITE, BLACK):
        rule = [by_decoder_rule(prompt, image, 12 - len(prompt.split())) for prompt in PROMPTS]
        assert ask(package, PROMPTS, image) == rule
        assert [ask(package, [prompt], image)[0] for prompt in PROMPTS] == rule
    assert len(set(rule)) > 3


@pytest.mark.parametrize(
    "write", [vision_language, lambda path: encoder_decoder(path, "merged", "bart")]
)
def test_beams_and_seeds_are_reproducible_and_independent_of_their_batch(tmp_path, write):
    write(tmp_path)
    package = TextPackage(tmp_path)
    for parameters in (
        {"num_beams": 4},
        {"do_sample": True, "temperature": 20, "seed": 5},
        {"do_sample": True, "temperature": 20, "seed": 5, "num_beams": 3},
    ):
        together = ask(package, PROMPTS, **parameters)
        assert together == ask(package, PROMPTS, **parameters)
        assert together == [ask(package, [prompt], **parameters)[0] for prompt in PROMPTS]
    drawn = {
        ask(package, ["one"], do_sample=True, temperature=20, seed=seed)[0] for seed in range(9)
    }
    assert len(drawn) > 1


@pytest.mark.parametrize(("layout", "style"), LAYOUTS)
def test_all_layouts_find_the_same_beams(tmp_path, layout, style):
    reference = TextPackage(encoder_decoder(tmp_path / "plain", "plain", "gpt2"))
    package = TextPackage(encoder_decoder(tmp_path / "other", layout, style))
    parameters = {"num_beams": 5, "max_new_tokens": 9}
    assert ask(package, PROMPTS, **parameters) == ask(reference, PROMPTS, **parameters)


class Counting:
    """A session that counts its runs and their rows."""

    def __init__(self, session):
        self._session = session
        self.rows = []

    def run(self, feeds, outputs=()):
        self.rows.append(len(next(iter(feeds.values()))))
        return self._session.run(feeds, outputs)

    def __getattr__(self, name):
        return getattr(self._session, name)


def test_an_image_is_encoded_once_for_all_its_prompts(tmp_path):
    package = TextPackage(vision_language(tmp_path))
    package._encoder = counting = Counting(package._encoder)
    ask(package, PROMPTS)
    assert counting.rows == [1]
    options = package.read_options({"prompts": ["one", "two"]})
    package.predict([WHITE, BLACK], [options, options])
    assert counting.rows == [1, 1, 1]


def test_prompts_of_any_length_are_one_batch_if_the_decoder_pads(tmp_path):
    package = TextPackage(vision_language(tmp_path))
    embedding = package._reader._embed.args[0]
    counting = Counting(copy.copy(embedding))
    embedding.run = counting.run
    ask(package, ["one", "two three", "zero zero zero"], max_new_tokens=3)
    assert counting.rows[:3] == [1, 1, 1]  # the prompts
    assert counting.rows[3] > 1  # the first step of all that have not ended


def test_many_prompts_answer_as_one(tmp_path):
    package = TextPackage(vision_language(tmp_path))
    assert ask(package, ["one two"] * 64) == [by_rule("one two", WHITE)] * 64


@pytest.mark.parametrize("most", [1, 2, 5])
def test_max_new_tokens_ends_an_answer(tmp_path, most):
    package = TextPackage(vision_language(tmp_path))
    assert ask(package, ["two"], max_new_tokens=most) == [by_rule("two", WHITE, most)]


@pytest.mark.parametrize(
    ("ends", "files"),
    [
        (5, {"generation_config": {"eos_token_id": 5}}),
        ([5, 6], {"generation_config": {"eos_token_id": [5, 6]}}),
        ([8], {"generation_config": {}, "config": {"eos_token_id": 8, "image_token_id": 3}}),
        (
            [8],
            {
                "generation_config": {},
                "config": {"text_config": {"eos_token_id": [8]}, "image_token_id": 3},
            },
        ),
    ],
)
def test_eos_tokens_come_from_the_files(tmp_path, ends, files):
    write_json(vision_language(tmp_path), **files)
    ends = [ends] if isinstance(ends, int) else ends
    package = TextPackage(tmp_path)
    assert ask(package, PROMPTS, max_new_tokens=30) == [
        by_rule(prompt, WHITE, 30, ends=ends) for prompt in PROMPTS
    ]


def test_the_context_bounds_prompts_and_answers(tmp_path):
    package = TextPackage(
        vision_language(
            tmp_path,
            toml="[text]\nprompt_template='<bos> {image} {prompt}'\ncontext_length=8\neos_token_ids=2",
        )
    )
    assert ask(package, ["one"], max_new_tokens=50) == [by_rule("one", WHITE, 4, ends=[2])]
    with pytest.raises(ParameterError, match=r"prompts\[1\] to take fewer than 8 tokens.*got 8"):
        ask(package, ["one", "one one one one one"])
    with pytest.raises(ParameterError, match=r"prompts\[0\] to take fewer than 8 tokens"):
        ask(package, ["one one one one one", "one <image> two"])  # the next is not read


def test_a_prompt_cannot_bring_the_image_token(tmp_path):
    package = TextPackage(vision_language(tmp_path))
    with pytest.raises(ParameterError, match="without the image token"):
        ask(package, ["one <image> two"])
    assert ask(package, ["{image} {prompt}"])  # read as any other text


@pytest.mark.parametrize(
    ("template", "prefix", "suffix"),
    [
        ("{image}<bos> {prompt}", [*IMAGE_PLACES, 1], []),
        ("<bos> {prompt}", [*IMAGE_PLACES, 1], []),
        ("<bos> <image> {prompt} six", [1, *IMAGE_PLACES], [10]),
        ("two {image} {prompt} six", [6, *IMAGE_PLACES], [10]),
    ],
)
def test_the_template_says_where_the_image_stands(tmp_path, template, prefix, suffix):
    toml = f'[text]\nprompt_template = "{template}"'
    package = TextPackage(vision_language(tmp_path, toml=toml))
    rule = words(expected([*prefix, *ids("four five"), *suffix], 12))
    assert ask(package, ["four five"]) == [rule]


@pytest.mark.parametrize(
    ("toml", "prompt", "first_tokens"),
    [
        (None, "two", [1, 6]),
        (None, "<bos> two", [1, 6]),
        ('[text]\nprompt_template = ""', "two", [1]),
        ('[text]\nprompt_template = "six {prompt} ten"', "two", [1, 10, 6, 14]),
    ],
)
def test_a_decoder_behind_an_encoder_begins_with_the_prompt(tmp_path, toml, prompt, first_tokens):
    package = TextPackage(encoder_decoder(tmp_path, "merged", "gpt2", toml))
    text = words(first_tokens[1:], [])
    assert ask(package, [prompt]) == [by_decoder_rule(text, WHITE, 13 - len(first_tokens))]


WRONG = [
    ("[tiling]\nsize = [64, 64]", "tiling has no use"),
    ('task = "detection"', "expected task in model.toml to be image-text"),
    ("[text]\nprompt_template = 'What?'", "{prompt} once"),
    ("[text]\nprompt_template = '{prompt} {prompt}'", "{prompt} once"),
    ("[text]\nprompt_template = '{prompt} {picture}'", "got {picture}"),
    ("[text]\nprompt_template = '<image> {image} {prompt}'", "once in [text] prompt_template"),
    ("[text]\nimage_token = '<none>'", "token of tokenizer.json"),
    ("[text]\nimage_token = 99", "token of tokenizer.json"),
    ("[text]\nmax_new_tokens = 0", "max_new_tokens"),
    ("[text]\ntemplate = '{prompt}'", "unknown field"),
    ("[input]\nsize = [8, 8]", "expected [input] size in model.toml to be [4, 4]"),
    ("[input]\nresize = 'warp'", "input"),
    ("[input]\nchannels = 4", "channels in model.toml to be 3 as in the file, got 4"),
    ("[input]\nbit_depth = 16", "1 or 3 channels of 8 bits, got 3 of 16"),
    ("[input]\nwidth = 3", "expected a key of [input]"),
    ("[output]\ndecoder = 'x'", "output has no use"),
    ("[text", "TOML"),
]


@pytest.mark.parametrize(("toml", "message"), WRONG)
def test_errors_in_model_toml_are_named(tmp_path, toml, message):
    with pytest.raises(LoadError) as caught:
        TextPackage(vision_language(tmp_path, toml=toml))
    assert message in str(caught.value)


def test_missing_files_are_named(tmp_path):
    def load(name, change):
        folder = vision_language(tmp_path / name)
        change(folder)
        with pytest.raises(LoadError) as caught:
            TextPackage(folder)
        return str(caught.value)

    assert "tokenizer.json" in load("a", lambda f: (f / "tokenizer.json").unlink())
    assert "tokenizer.json" in load("b", lambda f: (f / "tokenizer.json").write_text("{}"))
    assert "resize = " in load("c", lambda f: (f / "preprocessor_config.json").unlink())
    large = {**PREPROCESSOR, "size": {"height": 8, "width": 8}}
    assert "to be [4, 4]" in load("h", lambda f: write_json(f, preprocessor_config=large))
    assert "config.json" in load("d", lambda f: (f / "config.json").write_text("["))
    chat = {"tokenizer_config": {"chat_template": "{{ messages }}"}}
    assert "prompt_template" in load(
        "e", lambda f: ((f / "model.toml").unlink(), write_json(f, **chat))
    )
    assert "Florence-2" in load("f", lambda f: (f / "encoder_model.onnx").write_bytes(b""))
    assert "temperature" in load(
        "g", lambda f: write_json(f, generation_config={"temperature": "hot"})
    )


def test_an_image_without_a_token_must_stand_first(tmp_path):
    toml = '[text]\nprompt_template = "<bos> {image} {prompt}"'
    with pytest.raises(LoadError, match="first"):
        TextPackage(vision_language(tmp_path, image_token=False, toml=toml))


def test_without_config_json_the_image_token_is_asked_for(tmp_path):
    folder = vision_language(tmp_path)
    (folder / "config.json").unlink()
    with pytest.raises(LoadError, match=r"image_token_id in config\.json") as caught:
        TextPackage(folder)
    lines = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert len(lines) == 2
    for line, template, image_token in zip(
        lines, ("<bos> {image} {prompt}", "{image}<bos> {prompt}"), (True, False), strict=True
    ):
        toml = f'[text]\nprompt_template = "{template}"\n{line}'
        (folder / "model.toml").write_text(toml)
        answer = by_rule("one", WHITE, image_token=image_token)
        assert ask(TextPackage(folder), ["one"]) == [answer]


def test_packages_are_known_by_their_files(tmp_path):
    assert describe_text_package(tmp_path) is None
    assert "transformers.js" in describe_text_package(vision_language(tmp_path / "a"))
    assert "merged" in describe_text_package(encoder_decoder(tmp_path / "b", "merged", "bart"))
    assert "two graphs" in describe_text_package(encoder_decoder(tmp_path / "c", "two", "bart"))
    assert "without cache" in describe_text_package(
        encoder_decoder(tmp_path / "d", "plain", "bart")
    )


def test_graphs_may_stand_in_a_folder_of_their_own_and_be_quantised(tmp_path):
    folder = vision_language(tmp_path)
    (folder / "onnx").mkdir()
    for path in folder.glob("*.onnx"):
        path.rename(folder / "onnx" / path.name.replace(".onnx", "_q4.onnx"))
    assert ask(TextPackage(folder), ["one"]) == [by_rule("one", WHITE)]
    assert [status.name for status in ModelRepository(folder).statuses()] == [folder.name]


def test_the_image_processor_may_stand_in_a_processor_s_file(tmp_path):
    folder = vision_language(tmp_path)
    (folder / "preprocessor_config.json").unlink()
    write_json(folder, processor_config={"image_processor": PREPROCESSOR, "processor_class": "P"})
    assert ask(TextPackage(folder), ["one"]) == [by_rule("one", WHITE)]


NEUTRAL = {
    "bad_words_ids": None,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "sequence_bias": [],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [("bad_words_ids", [[7]]), ("num_beam_groups", 2), ("encoder_repetition_penalty", 1.5)],
)
def test_unsupported_generation_settings_are_refused(tmp_path, name, value):
    folder = vision_language(tmp_path)
    write_json(folder, generation_config={"eos_token_id": EOS, **NEUTRAL})
    TextPackage(folder)
    write_json(folder, generation_config={"eos_token_id": EOS, **NEUTRAL, name: value})
    with pytest.raises(LoadError, match=rf"generation_config\.json without {name}"):
        TextPackage(folder)


def test_generation_config_gives_the_defaults(tmp_path):
    folder = vision_language(tmp_path)
    write_json(
        folder,
        generation_config={"num_beams": 3, "do_sample": True, "temperature": 0.5, "top_k": 7},
    )
    search = TextPackage(folder).read_options({"prompt": "a"}).search
    assert (search.num_beams, search.do_sample, search.temperature, search.top_k) == (
        3,
        True,
        0.5,
        7,
    )
    assert search.max_new_tokens == 64


def test_a_repository_serves_a_package_and_says_why(tmp_path):
    vision_language(tmp_path / "talker" / "2")
    encoder_decoder(tmp_path / "captions", "two", "bart")
    repository = ModelRepository(tmp_path)
    repository.load_all()
    assert {s.name: s.reason for s in repository.statuses()} == {"talker": "", "captions": ""}
    model = repository.get("talker")
    info = repository.info("talker")
    assert (info.task, info.versions, len(model.sha256)) == ("IMAGE_TEXT_TO_TEXT", ["2"], 64)
    assert repository.get("captions").sha256 != model.sha256
    reasons = {decision.field: decision.reason for decision in model.recognition.decisions}
    assert reasons["text.prompt_template"] == "model.toml"
    assert reasons["text.eos_token_ids"] == "generation_config.json"
    assert reasons["text.image_token"] == "config.json, image_token_id"
    assert reasons["input.size"] == "shape of the input"
    assert reasons["input.resize"] == "preprocessor_config.json"
    assert reasons["input.layout"] == "input of the graph"


@pytest.fixture
def pipeline(tmp_path):
    vision_language(tmp_path / "talker")
    pipeline = load_pipeline(tmp_path, None, small_settings())
    yield pipeline
    pipeline.close()


PNG = (
    b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVQI12P4//8/AAX+Av7czFnnAAAAAElFTkSuQmCC"
).decode()


def test_a_request_answers_each_image_with_each_prompt(pipeline):
    tensors = [
        Tensor("a", "BYTES", (2,), data=[PNG, PNG], parameters={"prompts": ["one", "two three"]}),
        Tensor(
            "b",
            "BYTES",
            (1,),
            data=[PNG],
            parameters={"prompt": "", "action": "generate", "max_new_tokens": 2},
        ),
    ]
    response = pipeline.infer(InferRequest("talker", None, "1", tensors))
    first = [{"prompt": p, "answer": by_rule(p, WHITE)} for p in ("one", "two three")]
    second = [{"prompt": "", "answer": by_rule("", WHITE, 2)}]
    answered = [
        [
            [{"prompt": item.prompt, "answer": item.answer} for item in image]
            for image in output.data
        ]
        for output in response.outputs
    ]
    assert answered == [[first, first], [second]]
    assert response.outputs[1].parameters == {"action": "generate"}


@pytest.mark.parametrize(
    ("shared", "own", "expected"),
    [
        ({"prompt": "one"}, {"prompts": ["two"]}, ["two"]),
        ({"prompts": ["one"]}, {"prompt": "two"}, ["two"]),
        ({"prompt": "one"}, {"prompts": None}, ["one"]),
        ({"prompts": ["one"]}, {}, ["one"]),
    ],
)
def test_the_prompts_of_an_input_win_over_those_of_the_request(pipeline, shared, own, expected):
    tensor = Tensor("a", "BYTES", (1,), data=[PNG], parameters=own)
    (output,) = pipeline.infer(
        InferRequest("talker", None, "1", [tensor], parameters=shared)
    ).outputs
    assert [item.prompt for item in output.data[0]] == expected


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {},
            "inputs[0] ('a'): parameters.prompts is required: a list of 1 to 64 texts",
        ),
        (
            {"prompt": "one " * 50},
            "inputs[0] ('a'): data[0]: expected parameters.prompts[0] to take fewer",
        ),
        ({"prompt": "<image>"}, "inputs[0] ('a'): data[0]: expected parameters.prompts without"),
    ],
)
def test_request_errors_name_the_input(pipeline, parameters, message):
    request = InferRequest(
        "talker", None, "1", [Tensor("a", "BYTES", (1,), data=[PNG], parameters=parameters)]
    )
    with pytest.raises(InvalidRequest) as caught:
        pipeline.infer(request)
    assert str(caught.value).startswith(message)


def test_the_files_are_read_as_they_are(tmp_path):
    """Padding and truncation of tokenizer.json are for training, not for prompts."""
    package = TextPackage(vision_language(tmp_path))
    text = json.loads((tmp_path / "tokenizer.json").read_text())
    assert text["padding"]
    assert text["truncation"]
    assert ask(package, ["one two three four five six"]) == [
        by_rule("one two three four five six", WHITE)
    ]
