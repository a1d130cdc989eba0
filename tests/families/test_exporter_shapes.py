"""Outputs of the field's exporters: each is read rightly, asked about, or served as tensors; none is guessed.

The rows stand in docs/models.md, and are read from there.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quadriga.engine.models.onnx_file import OnnxHeader
from quadriga.engine.models.recognition.model_toml import read_model_toml
from quadriga.engine.models.recognition.recognise import recognise
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.messages import TensorInfo

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
INPUT = '[input]\nresize = "stretch"\nscale = 1.0\nmean = [0.0, 0.0, 0.0]\nstd = [1.0, 1.0, 1.0]\n'
PREPROCESSOR = {"do_resize": True, "size": {"height": 64, "width": 64}, "do_normalize": False}


class Graph(msgspec.Struct):
    """Inputs and outputs of a graph that recognition sees, without the graph."""

    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    header: OnnxHeader


def documented() -> list[list[str]]:
    text = DOCUMENT.read_text().partition("| exporter | image | outputs |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines()[2:]]


def length(text: str) -> int:
    return -1 if text == "N" else int(text)


def inputs_of(text: str) -> list[TensorInfo]:
    batch, _, sides = text.rpartition(" of ")
    height, width, *last = map(length, re.findall(r"\b(?:\d+|N)\b", sides) or ["640", "640"])
    shape = (height, width, 3) if last else (3, height, width)
    image = TensorInfo("images", "UINT8" if last else "FP32", (length(batch or "1"), *shape))
    return [image, *(TensorInfo(name, "INT64", (1, 2)) for name in re.findall(r"`(\w+)`", text))]


def outputs_of(text: str) -> list[TensorInfo]:
    found = re.findall(r"`(\S+) \[(.*?)\]( int)?`", text)
    return [
        TensorInfo(name, "INT64" if whole else "FP32", tuple(map(length, shape.split(", "))))
        for name, shape, whole in found
    ]


def read(
    folder: Path, inputs: list[TensorInfo], outputs: list[TensorInfo], said: str, toml: str = INPUT
) -> Any:
    """Recognise a graph beside the files that a cell of the table says; the error where it is asked about."""
    names = [f"c{index}" for index in range(int(*re.findall(r"(\d+) names", said) or [0]))]
    metadata = {"names": str(names), "stride": "32"} if "stride" in said else {}
    metadata |= dict(re.findall(r"\b(task|head) (\w+)", said))
    config = dict(re.findall(r"\b(model_type) (\w+)", said))
    config |= {"architectures": re.findall(r"architecture (\w+)", said), "id2label": names}
    if "stride" not in said and names:
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    if count := re.findall(r"(\d+) labels", said):
        (folder / "labels.txt").write_text("\n".join(f"c{index}" for index in range(int(count[0]))))
    lines = [line for line in re.findall(r"`(.*?)`", said) if "=" in line]
    size = "size = [64, 64]\n" if -1 in inputs[0].shape[1:] else ""
    (folder / "model.toml").write_text("\n".join([*lines, toml, size if toml else ""]))
    graph = Graph(inputs, outputs, OnnxHeader(8, {}, "", metadata, (), {}))
    try:
        return recognise(folder, graph, read_model_toml(folder))  # type: ignore[arg-type]
    except LoadError as error:
        return str(error)


@pytest.mark.parametrize("row", documented(), ids=lambda row: f"{row[0]}: {row[2]}, {row[3]}")
def test_outputs_of_exporters_are_read_or_asked_about_as_documented(row, tmp_path):
    _, image, outputs, said, reading = row
    tensors = outputs_of(outputs)
    assert len(tensors) == outputs.count("[")
    toml = "" if reading == "tensors" else INPUT
    result = read(tmp_path, inputs_of(image), tensors, said, toml)
    words = re.findall(r"`(.*?)`", reading)
    if reading.startswith("asked"):
        assert isinstance(result, str), (result.task, result.family)
        lines = [line for line in result.splitlines() if re.match(r"  (\w|\.)+ = ", line)]
        offered = re.findall(r'"(.*?)"', "".join(line.partition("  #")[0] for line in lines))
        offered = [name for name in offered if name != "tensor"]
        assert set(offered) >= set(words), result
        assert "…" in reading or set(offered) == set(words), result
        for line in lines:  # each is an answer
            answer = re.sub(
                r"^  (name|label_offset)", r"output.\1", line.partition("  #")[0]
            ).strip()
            question = read(tmp_path, inputs_of(image), tensors, f"{said} `{answer}`", INPUT)
            assert "cannot tell from its files" not in str(question), answer
        return
    assert not isinstance(result, str), result
    family = "" if reading == "tensors" else words[0]
    if reading == "tensors":
        assert result.task == "TENSOR"
    else:
        assert words[0] in (result.family, result.task), (result.task, result.family)
    if family and "reads" in reading:
        names = result.spec.output.name
        assert ([names] if isinstance(names, str) else [*names]) == words[1:]
        shown = [decision for decision in result.decisions if decision.field == "output.name"]
        assert len(shown) == 1


def test_enough_exporters_are_documented():
    rows = documented()
    readings = [row[-1] for row in rows]
    asked = sum(reading.startswith("asked") for reading in readings)
    tensors = readings.count("tensors")
    print(f"{len(rows)} rows: {len(rows) - asked - tensors} read, {asked} asked, {tensors} tensors")  # noqa: T201 - shown by -s
    assert len(rows) >= 60
    assert min(asked, tensors, len(rows) - asked - tensors) >= 10


SIZES = [(96, 96), (320, 320), (640, 640), (384, 640), (1280, 1280)]
CLASSES = (1, 2, 3, 80)
RAW = list(itertools.product(SIZES, CLASSES, [False, True], [32, 64]))


@pytest.mark.parametrize(("size", "classes", "has_labels", "stride"), RAW)
def test_raw_heads_of_three_generations_are_never_taken_for_another(
    size, classes, has_labels, stride, tmp_path
):
    height, width = size
    if height % stride or width % stride:
        stride = 32
    strides = [s for s in (8, 16, 32, 64) if s <= stride]
    anchors = sum((height // s) * (width // s) for s in strides)
    inputs, said = [TensorInfo("images", "FP32", (1, 3, *size))], f"{classes} labels" * has_labels

    def reading(*shape: int) -> Any:
        result = read(tmp_path, inputs, [TensorInfo("out", "FP32", (1, *shape))], said)
        return result if isinstance(result, str) else result.family

    assert reading(3 * anchors, 5 + classes) == "yolov5"
    question = reading(anchors, 5 + classes)
    without_objectness = ["ultralytics-transposed"]
    assert re.findall(r'family = "(.*?)"', question) == [
        *("yolox", "yolox-decoded", "yolov5"),
        *(() if has_labels else without_objectness),
    ]
    if classes > 1 and has_labels:  # five columns without objectness are tensors
        question = reading(anchors, 4 + classes)
        assert re.findall(r'family = "(.*?)"', question) == without_objectness
        assert f"Not for {classes} labels (file labels.txt): yolox (" in question
    transposed = reading(4 + classes, anchors)
    if has_labels or classes == 1:
        assert transposed == "ultralytics"
    else:
        assert re.findall(r'family = "(.*?)"', transposed) == ["ultralytics", "ultralytics-obb"]
    # 16 columns are those of YOLOv5-face: labels do not fit them
    assert not has_labels or "labels, one per class" in reading(3 * anchors, 20 + classes)


TABLE_SHAPES = [
    (300, 6),
    (1, 300, 6),
    (1, 7, 6),
    (1, 1000, 7),
    (-1, 7),
    (-1, 6),
    (1, -1, 7),
    (2, 50, 7),
    (-1, -1, 6),
]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 6, 7, 80])
@pytest.mark.parametrize("shape", TABLE_SHAPES)
@pytest.mark.parametrize("size", [(96, 96), (320, 320), (300, 400), (-1, -1)])
def test_tables_that_nothing_names_are_asked_about_whatever_the_number_of_labels(
    shape, count, size, tmp_path
):
    batch = shape[0] if len(shape) == 3 else 1
    inputs = [TensorInfo("images", "FP32", (batch, 3, *size))]
    said = f"{count} labels" if count else ""
    question = read(tmp_path, inputs, [TensorInfo("out", "FP32", shape)], said)
    assert isinstance(question, str), question.family
    orders = "box, score, class" if shape[-1] == 6 else "image, box, score, class"
    assert f"columns {orders}" in question
    assert question.count(" = ") >= 6
