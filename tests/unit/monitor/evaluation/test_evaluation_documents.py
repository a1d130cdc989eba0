"""The examples of the document about evaluation."""

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from quadriga.monitor.evaluation.evaluators import load_evaluator
from quadriga.monitor.evaluation.state import EvaluatedImage
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards

DOCUMENT = Path(__file__).parents[4] / "docs" / "evaluation-reference.md"


def example(heading):
    """Return the images of a section's first block, and the text behind it."""
    section = DOCUMENT.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    _, block, following = re.split(r"```(?:json)?\n", section, maxsplit=2)
    return msgspec.json.Decoder(EvaluatedImage).decode_lines(block), following.strip().split(
        "\n\n"
    )[0]


@pytest.mark.parametrize(
    ("task", "heading"), [("classification", "Classification"), ("segmentation", "Segmentation")]
)
def test_examples_have_the_numbers_that_are_said(task, heading):
    images, documented = example(heading)
    evaluation = load_evaluator(task)
    evaluated = evaluation.evaluate(state_of_shards(evaluation, images))
    values = {}
    for headline in evaluated.headlines(np.ones((1, len(images)))):
        values.setdefault(headline.type, []).append(float(headline.values[0]))
    numbers = re.findall(r"`(\w+)` (?:with background )?([0-9.]+\d|\d)", documented)
    assert len(numbers) >= 4
    for name, value in numbers:
        assert round(values[name].pop(0), 4) == float(value), name
