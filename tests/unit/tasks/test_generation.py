"""Searches over tables of logits: equal to transformers, and in batches as one by one."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from quadriga.tasks.generation import GenerationConfig, generate
from quadriga.tasks.predictions import OutputError

FIXTURE = json.loads(Path(__file__).with_name("generation_cases.json").read_text())
TABLE = np.array(FIXTURE["table"], np.float32)


class TableModel:
    """Reads the logits off a table by the last two tokens; remembers the calls."""

    def __init__(self, prompts, table=TABLE):
        self.table = table
        self.rows = [[0, *prompt][-2:] for prompt in prompts]
        self.calls = []

    def logits(self):
        return np.array([self.table[last_tokens, last] for last_tokens, last in self.rows])

    def step(self, tokens, rows):
        self.calls.append(len(tokens))
        self.rows = [[self.rows[row][1], token] for row, token in zip(rows, tokens, strict=True)]
        return self.logits()


def answers(prompts, search):
    model = TableModel(prompts)
    limits = [search.limit(len(prompt)) for prompt in prompts]
    return generate(prompts, model.logits(), model.step, search, limits)


def search_of(case):
    settings = dict(case["settings"])
    end = settings.pop("forced_eos_token_id", None)
    return GenerationConfig(
        max_new_tokens=12,
        eos_token_ids=tuple(case["eos"]),
        forced_eos_token_ids=() if end is None else (end,),
        **settings,
    )


def groups():
    """Cases that differ in the prompt alone."""
    by_prompt = {}
    for case in FIXTURE["cases"]:
        by_prompt.setdefault(json.dumps([case["settings"], case["eos"]]), []).append(case)
    return [pytest.param(cases, id=key) for key, cases in by_prompt.items()]


@pytest.mark.parametrize("cases", groups())
def test_equal_to_transformers_one_by_one_and_together(cases):
    search = search_of(cases[0])
    expected = [case["tokens"] for case in cases]
    prompts = [case["prompt"] for case in cases]
    assert [answers([prompt], search)[0] for prompt in prompts] == expected
    assert answers(prompts, search) == expected


def test_no_prompt_has_no_answer():
    assert generate([], np.zeros((0, 10), np.float32), pytest.fail, GenerationConfig(), []) == []


@pytest.mark.parametrize("beams", [1, 4])
def test_rows_that_have_ended_are_dropped(beams):
    prompts = [[1], [2, 3], [4, 5, 6]]
    search = GenerationConfig(max_new_tokens=12, eos_token_ids=(0,), num_beams=beams)
    model = TableModel(prompts)
    lengths = [
        len(answer) for answer in generate(prompts, model.logits(), model.step, search, [12] * 3)
    ]
    assert model.calls == sorted(model.calls, reverse=True)
    if beams == 1:
        assert model.calls == [
            sum(length > n for length in lengths) for n in range(1, max(lengths))
        ]


@pytest.mark.parametrize(
    ("settings", "prompt", "length"),
    [
        ({"max_new_tokens": 1}, [1], 1),
        ({"max_new_tokens": 7}, [1, 2], 7),
        ({"max_length": 9}, [1, 2], 7),
        ({"max_length": 2}, [1, 2], 1),
        ({"max_length": 2, "max_new_tokens": 5}, [1, 2], 5),
        ({"max_new_tokens": 0}, [1], 1),
    ],
)
@pytest.mark.parametrize("beams", [1, 3])
def test_an_answer_ends_at_its_limit(settings, prompt, length, beams):
    assert len(answers([prompt], GenerationConfig(**settings, num_beams=beams))[0]) == length


def test_a_limit_must_be_given():
    with pytest.raises(ValueError, match="max_new_tokens"):
        answers([[1]], GenerationConfig())


DRAWING = GenerationConfig(
    max_new_tokens=12, do_sample=True, temperature=2.0, eos_token_ids=(0,), seed=3
)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_seed_makes_answers_reproducible_whatever_stands_beside(beams):
    search = msgspec.structs.replace(DRAWING, num_beams=beams)
    alone = answers([[4, 5]], search)
    assert answers([[4, 5]], search) == alone
    assert answers([[1], [4, 5], [2]], search)[1:2] == alone
    prompts_beside = [
        answers([[4, 5]], msgspec.structs.replace(search, seed=seed)) for seed in range(8)
    ]
    assert any(prompt != alone for prompt in prompts_beside)


def test_without_a_seed_answers_differ():
    search = msgspec.structs.replace(DRAWING, seed=None)
    assert len({tuple(answers([[1]], search)[0]) for _ in range(20)}) > 1


@pytest.mark.parametrize(
    "settings",
    [{"top_k": 1}, {"top_p": 0.0}, {"temperature": 1e-4}, {"temperature": 1e-300}],
    ids=str,
)
def test_drawing_from_one_token_is_greedy(settings):
    search = msgspec.structs.replace(DRAWING, **settings)
    greedy = GenerationConfig(max_new_tokens=12, eos_token_ids=(0,))
    assert answers([[1], [2, 3]], search) == answers([[1], [2, 3]], greedy)


def test_drawn_tokens_follow_the_probabilities():
    """4,000 draws of one token: within four standard deviations of what softmax says."""
    row = TABLE[0, 1]
    expected = np.exp(row) / np.exp(row).sum()
    count = 4000
    drawn = np.zeros(10)
    for seed in range(count):
        search = GenerationConfig(max_new_tokens=1, do_sample=True, top_k=0, seed=seed)
        drawn[answers([[1]], search)[0][0]] += 1
    deviation = np.sqrt(expected * (1 - expected) * count)
    assert (np.abs(drawn - expected * count) < 4 * deviation + 1).all()


@pytest.mark.parametrize(
    "logits",
    [
        np.full((1, 10), np.nan, np.float32),
        np.full((1, 10), np.inf, np.float32),
        np.zeros((2, 10), np.float32),
        np.zeros(10, np.float32),
    ],
)
def test_logits_that_are_none_are_the_model_s_fault(logits):
    with pytest.raises(OutputError, match="expected logits"):
        generate([[1]], logits, pytest.fail, GenerationConfig(), [3])
