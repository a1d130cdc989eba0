"""The examples of docs/evaluation-reference.md give the numbers that stand beside them."""

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from quadriga.monitor.evaluation.evaluators import load_evaluator
from quadriga.monitor.evaluation.state import EvaluatedImage
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards

PAGE = Path(__file__).parents[4] / "docs" / "evaluation-reference.md"


def example(heading):
    """Return the record of a section, and the cells of the table that follows it."""
    [section] = re.findall(
        rf"^## {heading}\n(.*?)(?=^## )", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    record, table = re.findall(r"```json\n(.*?)```\n(.*)", section, re.DOTALL)[0]
    rows = [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("|")
    ]
    return msgspec.json.decode(record, type=EvaluatedImage), rows[2:]


@pytest.mark.parametrize(
    ("heading", "task"), [("Oriented boxes", "oriented"), ("Text answers", "image-text")]
)
def test_examples_give_their_numbers(heading, task):
    image, rows = example(heading)
    assert rows
    evaluation = load_evaluator(task)
    metrics = evaluation.evaluate(state_of_shards(evaluation, [image]))
    values = {}
    for headline in metrics.headlines(np.ones((1, 1))):
        named = [
            headline.type,
            str(headline.parameters.get("rule")),
            str(headline.parameters.get("iou")),
        ]
        values.setdefault(", ".join(named[: 1 if task == "image-text" else 3]), headline.values[0])
    for *name, value in rows:
        assert values[", ".join(name)] == pytest.approx(float(value), abs=5e-5), name
