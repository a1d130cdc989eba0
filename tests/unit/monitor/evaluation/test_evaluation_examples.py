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
    """Return the images of a section's first block, and the paragraph or table that follows it."""
    section = PAGE.read_text("utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    _, block, following = re.split(r"```(?:json)?\n", section, maxsplit=2)
    lines = re.sub(r"\n(?={)", ",", block)  # a line starts a record
    images = msgspec.json.decode(f"[{lines}]", type=list[EvaluatedImage])
    return images, following.strip().split("\n\n")[0]


def cells(table):
    """Return the cells of each row of a table, below its head."""
    rows = [line.strip("|").split("|") for line in table.splitlines()]
    return [[cell.strip().replace("`", "") for cell in row] for row in rows[2:]]


def evaluated(task, images):
    evaluator = load_evaluator(task)
    return evaluator.evaluate(state_of_shards(evaluator, images))


@pytest.mark.parametrize(
    ("heading", "task"), [("Oriented boxes", "oriented"), ("Text answers", "image-text")]
)
def test_headlines_are_those_of_the_table(heading, task):
    images, table = example(heading)
    values = {}
    for headline in evaluated(task, images).headlines(np.ones((1, len(images)))):
        named = [
            headline.type,
            str(headline.parameters.get("rule")),
            str(headline.parameters.get("iou")),
        ]
        values.setdefault(", ".join(named[: 1 if task == "image-text" else 3]), headline.values[0])
    rows = cells(table)
    assert rows
    for *name, value in rows:
        assert values[", ".join(name)] == pytest.approx(float(value), abs=5e-5), name


def test_average_precision_and_rates_are_those_of_the_table():
    images, table = example("Detection")
    metrics = evaluated("detection", images)
    details = metrics.details().metrics
    headline = metrics.headlines(np.ones((1, len(images))))[1]
    numbers = {("AP", "iou 0.5"): headline.values[0]}
    for metric in details:
        named = {name: metric.parameters.get(name) for name in ("score", "iou", "label")}
        told = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
        numbers.setdefault((metric.type, told), metric.value)
    rows = cells(table)
    assert len(rows) == 4
    for name, parameters, value in rows:
        assert str(round(numbers[name, parameters], 4)) == value


@pytest.mark.parametrize(
    ("task", "heading"), [("classification", "Classification"), ("segmentation", "Segmentation")]
)
def test_headlines_are_those_of_the_text(task, heading):
    images, text = example(heading)
    values = {}
    for headline in evaluated(task, images).headlines(np.ones((1, len(images)))):
        values.setdefault(headline.type, []).append(float(headline.values[0]))
    numbers = re.findall(r"`(\w+)` (?:with background )?([0-9.]+\d|\d)", text)
    assert len(numbers) >= 4
    for name, value in numbers:
        assert round(values[name].pop(0), 4) == float(value), name
