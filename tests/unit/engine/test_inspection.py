"""`quadriga inspect`: what it says of the background, of doubtful values, and of paths without a model."""

import json

import click
import numpy as np
import pytest
from click.testing import CliRunner

from quadriga.engine.cli import main
from quadriga.engine.serving.tensors.validation import validate
from tests.onnx_models import answering, detector, doubling
from tests.server_process import IMAGES

MAPS = np.zeros((2, 32, 32), np.float32)
UNET = 'family = "unet"\n'


def inspected(path, *options):
    result = CliRunner().invoke(main, ["inspect", str(path), *options], terminal_width=300)
    return result.exit_code, " ".join(result.output.split())


SEGMENTERS = [  # labels, the rest of model.toml, the background, what the notes say
    (["background", "cat"], "", "background (class 0) is never predicted (its name says so)", []),
    (["[blank]", "[/s]"], "[output]\nbackground = 1", "[/s] (class 1) is never predicted ([output] background)", []),
    (["nothing", "cat"], "", "none: each label is predicted", ["class 0 is 'nothing'"]),
    (["None", "cat"], "", "none: each label is predicted", ["background = 0 in [output]"]),
    (["nothing", "cat"], "[output]\nbackground = 0", "nothing (class 0) is never predicted ([output] background)", []),
    (["cat", "nothing"], "", "none: each label is predicted", []),
    (["cat", "dog"], "[input]\nmean = [123.675, 116.28, 103.53]", "none: each label is predicted", ["scale = 1.0"]),
    (["cat", "dog"], "[input]\nscale = 1.0\nmean = [123.675, 116.28, 103.53]", "none: each label is predicted", []),
    (["cat", "dog"], "[input]\nmean = [0.485, 0.456, 0.406]", "none: each label is predicted", []),
]  # fmt: skip


@pytest.mark.parametrize(("labels", "toml", "background", "notes"), SEGMENTERS)
def test_the_background_and_doubtful_values_are_named(tmp_path, labels, toml, background, notes):
    answering(tmp_path / "model.onnx", {"out": MAPS})
    (tmp_path / "model.toml").write_text(f"labels = {labels}\n{UNET}{toml}")
    code, text = inspected(tmp_path, "--json")
    assert code == 0, text
    inspection = json.loads(text)
    assert inspection["background"] == background
    assert len(inspection["notes"]) == len(notes)
    assert all(part in note for part, note in zip(notes, inspection["notes"], strict=True))
    printed = inspected(tmp_path)[1]
    assert background in printed
    assert all(part in printed for part in notes)


TASK_LINES = [
    f'task = "{task}" # then what else is needed is said'
    for task in ("classification", "detection", "oriented", "segmentation")
]
PROPOSED = [  # shape of the output without the batch, labels, the families that are proposed
    ((8, 50), 4, ['family = "ultralytics" # Ultralytics detector, 4 classes']),
    ((8, 50), 0, ['family = "ultralytics" # Ultralytics detector, 4 classes: their names in labels.txt, one a line']),
    ((5, 400), 1, ['family = "ultralytics" # Ultralytics detector, 1 class']),
    ((8, 50), 3, []),
    ((4, 50), 0, []),
    ((50, 8), 4, []),
    ((50, 5), 0, []),
    ((2, 3, 4, 5), 0, []),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "count", "families"), PROPOSED)
def test_lines_of_model_toml_are_proposed_for_an_image_model_of_tensors(
    tmp_path, shape, count, families
):
    answering(tmp_path / "model.onnx", {"out": np.zeros(shape, np.float32)})
    labels = tmp_path / "labels.txt"
    if count:
        labels.write_text("\n".join("abcd"[:count]))
    proposals = json.loads(inspected(tmp_path, "--json")[1])["proposals"]
    assert proposals == [*families, *TASK_LINES]
    printed = inspected(tmp_path)[1]
    assert all(line in printed for line in proposals)
    for line in proposals:  # each leads on: to the task, or to what else is needed
        (tmp_path / "model.toml").write_text(line)
        if line in families:
            labels.write_text("\n".join("abcd"[: count or 4]))
            inspection = json.loads(inspected(tmp_path, "--json")[1])
            assert (inspection["task"], inspection["proposals"]) == ("OBJECT_DETECTION", [])
        else:
            said = inspected(tmp_path)[1]
            assert "in model.toml" in said or "labels, one per class" in said


def test_nothing_is_proposed_for_what_is_no_image_model_or_is_described(tmp_path):
    doubling(tmp_path / "model.onnx")
    assert json.loads(inspected(tmp_path, "--json")[1])["proposals"] == []
    answering(tmp_path / "model.onnx", {"out": np.zeros((8, 50), np.float32)})
    (tmp_path / "model.toml").write_text('task = "tensor"')
    assert json.loads(inspected(tmp_path, "--json")[1])["proposals"] == []
    assert "write one of these lines" not in inspected(tmp_path)[1]


FILES = [  # files of the folder, or None for no folder; what the error says
    (None, "no such file or folder"),
    ([], "got none"),
    (["best.pt"], "got best.pt: export it to ONNX first"),
    (["a.onnx", "b.onnx", "c.pt"], "got a.onnx, b.onnx"),
]


@pytest.mark.parametrize(("files", "message"), FILES)
def test_a_path_without_a_model_says_what_is_there(tmp_path, files, message):
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name in files:
            (folder / name).write_bytes(b"")
    code, text = inspected(folder)
    assert code == 2
    assert text.endswith(message)


def detector_of_one_object(folder, label):
    head = np.zeros((6, 50), np.float32)
    head[:, 0] = (16, 16, 8, 8, 0.9, 0)
    metadata = {"task": "detect", "names": f"{{0: '{label}', 1: 'dog'}}", "stride": "32", "imgsz": "[32, 32]"}  # fmt: skip
    detector(folder / "model.onnx", head, metadata=metadata)


def test_one_prediction_is_counted_as_one(tmp_path):
    detector_of_one_object(tmp_path, "cat")
    image = IMAGES / "detection" / "scene_01.jpg"
    checks = validate(tmp_path, image, tmp_path / "drawn.png", {}).checks
    assert {check.name: check.found for check in checks}["something found"] == "1 prediction"


def test_a_label_in_brackets_is_printed_as_it_is(tmp_path):
    detector_of_one_object(tmp_path, "[/s]")
    image = IMAGES / "detection" / "scene_01.jpg"
    arguments = ["validate", tmp_path, "--image", image, "--output", tmp_path / "drawn.png"]
    result = CliRunner().invoke(main, [*map(str, arguments)], terminal_width=300)
    assert '"label":"[/s]"' in result.output, result.exception


def test_the_help_of_a_server_begins_with_what_everybody_sets():
    flags = [parameter.name for parameter in main.get_command(click.Context(main), "serve").params]
    assert flags[:5] == ["models", "host", "port", "grpc_port", "data"]
    assert len(flags) == len(set(flags))
