"""Answers to prompts: which meets which, and the numbers over images."""

import html
import io
import pickle

import msgspec
import numpy as np
import pytest
from rich.console import Console
from sacrebleu.metrics import BLEU

from quadriga.engine.commands.monitoring.reports import render_evaluation
from quadriga.monitor.evaluation.evaluators import build_state, load_evaluator
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import EvaluationError, merge_states, select_images
from quadriga.monitor.evaluation.text import prompts as text
from quadriga.monitor.evaluation.text.prompts import TextEvaluator, cider, match_prompts
from quadriga.monitor.report.page import render_page
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards, wire_image

# prompts of a model's answers, prompts that people answered: which is whose
MATCHED = {
    "by prompt": (["a", "b"], ["b", "a"], [1, 0]),
    "the same twice": (["a", "a"], ["a", "a"], [0, 1]),
    "by order": (["", ""], ["", ""], [0, 1]),
    "truths name none": (["a", "b"], ["", ""], [0, 1]),
    "answers name none": (["", ""], ["a", "b"], [0, 1]),
    "another prompt": (["a"], ["b"], [None]),
    "by prompt first": (["a", "b"], ["", "a"], [1, 0]),
    "too few": (["a"], ["a", "b", ""], [0, None, None]),
    "too many": (["a", "b", "c"], ["c"], [2]),
    "none": ([], ["a"], [None]),
    "nothing asked": (["a"], [], []),
}


@pytest.mark.parametrize(
    ("predicted_prompts", "annotated_prompts", "expected"), MATCHED.values(), ids=MATCHED
)
def test_an_answer_belongs_to_its_prompt(predicted_prompts, annotated_prompts, expected):
    assert match_prompts(predicted_prompts, annotated_prompts) == expected


def said(answer, prompt=""):
    return {"prompt": prompt, "answer": answer}


def state(images):
    return state_of_shards(TextEvaluator(), images)


def report(images, resamples=0):
    return evaluate_state(
        TextEvaluator(),
        state(images),
        task="IMAGE_TEXT_TO_TEXT",
        options=EvaluationOptions(resamples=resamples),
    )


def values(details):
    return {metric.type: metric.value for metric in details.metrics}


IMAGES = [
    wire_image(
        "1",
        [said("A red ship", "What is it?"), said("two", "How many?"), said("x", "Why?")],
        [
            {"prompt": "How many?", "answers": ["2", "two", "two"]},
            {"prompt": "What is it?", "answer": "a red ship", "score": 1},
            {"prompt": "Where?", "answer": "at sea"},
        ],
    ),
    wire_image(
        "2", [said("a dog lies on the green grass")], [{"answers": ["the dog lies on grass"]}]
    ),
    wire_image("3", [said("boat")], [{"label": "boot"}]),
]


def test_numbers_are_means_over_prompts():
    text_report = report(IMAGES)
    metrics = values(text_report)
    assert list(metrics)[:7] == [
        "ExactMatch", "TokenF1", "VQAAccuracy", "ANLS", "BLEU", "ROUGE-L", "CIDEr",
    ]  # fmt: skip
    assert metrics["ExactMatch"] == pytest.approx(2 / 5)
    f1 = 2 * (4 / 5) * (4 / 4) / (4 / 5 + 4 / 4)
    assert metrics["TokenF1"] == pytest.approx((1 + 1 + 0 + f1 + 0) / 5)
    assert metrics["VQAAccuracy"] == pytest.approx((2 * (1 / 3) + 2 / 3) / 3)
    likeness = 1 - 13 / 29
    assert metrics["ANLS"] == pytest.approx((1 + 1 + 0 + likeness + 3 / 4) / 5)
    assert metrics["Prompts"] == 5
    assert metrics["Unanswered"] == 1
    assert text_report.data.excluded == {"unasked_prompt": 1}
    assert text_report.parameters["unanswered"] == "counts as an empty answer"
    answers = ["two", "A red ship", "", "a dog lies on the green grass", "boat"]
    references = [
        ["2", "two", "two"],
        ["a red ship"],
        ["at sea"],
        ["the dog lies on grass"],
        ["boot"],
    ]
    padded = [[texts[at] if at < len(texts) else None for texts in references] for at in range(3)]
    assert metrics["BLEU"] == pytest.approx(BLEU().corpus_score(answers, padded).score, abs=1e-9)
    assert metrics["CIDEr"] == pytest.approx(cider(answers, references).mean(), abs=1e-9)


def test_worst_is_the_image_with_the_worst_answer():
    worst = report(IMAGES).worst
    assert [(image.inference_id, image.reason) for image in worst] == [
        ("1", "wrong_answer"), ("3", "wrong_answer"), ("2", "wrong_answer"),
    ]  # fmt: skip
    assert worst[0].score == 1
    assert worst[1].score == pytest.approx(1 / 4)


@pytest.mark.parametrize("images", [[], [wire_image("1", [], [])]], ids=["no image", "no prompt"])
def test_without_prompts_nothing_is_defined(images):
    metrics = values(report(images))
    assert metrics.pop("Prompts") == metrics.pop("Unanswered") == 0
    assert set(metrics.values()) == {None}


def random_images(count=9):
    pick = np.random.default_rng(3)
    words = np.array(
        ["a", "red", "blue", "ship", "plane", "lies", "flies", "on", "the", "sea", "sky"]
    )

    def sentence():
        return " ".join(pick.choice(words, pick.integers(0, 9)))

    return [
        wire_image(
            str(number),
            [said(sentence()) for _ in range(pick.integers(0, 4))],
            [
                {"answers": [sentence() for _ in range(pick.integers(1, 4))]}
                for _ in range(pick.integers(0, 4))
            ],
        )
        for number in range(count)
    ]


def test_weights_are_as_if_images_were_there_so_often():
    images = random_images()
    metrics = TextEvaluator().evaluate(state(images))
    weights = np.random.default_rng(0).integers(0, 3, (5, len(images))).astype(float)
    for number, weighting in enumerate(weights):
        repeated = [
            msgspec.structs.replace(images[at], id=f"{at}{n}")
            for at, count in enumerate(weighting)
            for n in range(int(count))
        ]
        again = TextEvaluator().evaluate(state(repeated)).headlines(np.ones((1, len(repeated))))
        for left, right in zip(metrics.headlines(weights), again, strict=True):
            if left.type != "CIDEr":  # rare words are counted over all images
                assert left.values[number] == pytest.approx(right.values[0], abs=1e-9)


def test_parts_and_the_order_of_shards_give_the_same_numbers_bit_for_bit():
    images = random_images()
    shards = [build_state(TextEvaluator(), images[at::3], []) for at in (2, 0, 1)]
    shards = [pickle.loads(pickle.dumps(shard)) for shard in shards]
    merged = merge_states([merge_states(shards[:2]), shards[2]])
    weights = np.random.default_rng(0).integers(0, 3, (5, len(images))).astype(float)
    headlines = [
        TextEvaluator().evaluate(left).headlines(weights) for left in (merged, state(images))
    ]
    for left, right in zip(*headlines, strict=True):
        np.testing.assert_array_equal(left.values, right.values)
    selected = select_images(merged, [1, 4, 5])
    assert len(TextEvaluator().evaluate(selected).headlines(np.ones((1, 3)))) == 7


def test_without_the_extra_the_report_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(text, "bleu_counts", lambda *_: [np.nan] * 10)
    monkeypatch.setattr(text, "_SCORES", (*text._SCORES[:4], lambda *_: np.nan))
    without = state(IMAGES[:1])
    monkeypatch.undo()
    metrics = TextEvaluator().evaluate(merge_states([without, state(IMAGES[1:])]))
    values = {headline.type: headline.values[0] for headline in metrics.headlines(np.ones((1, 3)))}
    assert np.isnan(values["BLEU"])
    assert np.isnan(values["ROUGE-L"])
    assert values["ExactMatch"] == pytest.approx(2 / 5)
    missing = metrics.details().parameters["missing"]
    assert missing == "BLEU and ROUGE-L: pip install 'quadriga[text]'"


def test_a_missing_extra_is_named_once_beside_the_table(monkeypatch):
    monkeypatch.setattr(text, "bleu_counts", lambda *_: [np.nan] * 10)
    monkeypatch.setattr(text, "_SCORES", (*text._SCORES[:4], lambda *_: np.nan))
    without = report(IMAGES)
    monkeypatch.undo()
    note = (
        "Undefined, as an extra was not installed where this was evaluated. "
        "BLEU and ROUGE-L: pip install 'quadriga[text]'"
    )
    console = Console(file=io.StringIO(), width=200)
    for renderable in render_evaluation(without):
        console.print(renderable)
    assert console.file.getvalue().count(note) == 1
    page = html.unescape(render_page(without, lambda _: None))
    assert page.count(note) == page.count("quadriga[text]") == 1
    assert "quadriga[text]" not in render_page(report(IMAGES), lambda _: None)


WRONG = {
    "no answer of people": (
        [], [{"prompt": "?"}], r"ground_truth\[0\]: answer, answers or label is required",
    ),
    "none of the model": ([{"prompt": "?"}], [], r"image '1': predictions\[0\]: expected a field `answer`"),
    "a number": ([], [{"answer": 2}], r"ground_truth\[0\].answer: expected `str"),
}  # fmt: skip


@pytest.mark.parametrize(("predictions", "annotations", "message"), WRONG.values(), ids=WRONG)
def test_what_is_no_answer_is_refused(predictions, annotations, message):
    with pytest.raises(EvaluationError, match=message):
        state([wire_image("1", predictions, annotations)])


def test_the_task_is_found_by_its_name():
    assert isinstance(load_evaluator("image-text"), TextEvaluator)


def test_empty_answers_have_a_bleu_and_no_questions_have_none():
    pairs = [wire_image("1", [said("")], [{"answers": ["", ""]}])]
    assert values(report(pairs))["BLEU"] == BLEU().corpus_score([""], [[""], [""]]).score == 0
    assert values(report([wire_image("1", [], [])]))["BLEU"] is None
