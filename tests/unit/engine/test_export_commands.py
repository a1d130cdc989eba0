"""Out of a store into a file and back, from the command line."""

import json
import zipfile
from pathlib import Path
from typing import get_args

import pytest
import yaml
from click.testing import CliRunner

from quadriga.engine.cli import main
from quadriga.engine.commands.inferences import export_command
from quadriga.store.exchange.export import Exported, Format
from tests.onnx_models import doubling

LINE = {"id": "4194304", "model": {"name": "m"}, "task": "TENSOR", "predictions": [1]}


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], terminal_width=200)
    assert result.exit_code == 0, result.output
    return result.output


def test_imported_inferences_are_exported(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(LINE))
    data = ("--data", tmp_path / "data")
    for _ in range(2):
        assert run("import", tmp_path / "in.jsonl", *data).startswith("1 inferences, 0 images")
    output = tmp_path / "out.jsonl"
    assert "1 inferences in" in run("export", "--output", output, *data)
    assert json.loads(output.read_text())["predictions"] == [1]
    assert "0 inferences in" in run("export", '{"label": "a"}', "--output", output, *data)
    assert output.read_text() == ""


def test_a_key_that_nothing_has_is_said_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(
        json.dumps(LINE | {"metadata": {"run": "v1"}, "predictions": []})
    )
    data = ["--data", str(tmp_path / "data")]
    run("import", tmp_path / "in.jsonl", *data)
    said = "quadriga: no stored inference has the metadata key 'rum'; did you mean meta.run?\n"
    output = ["--output", str(tmp_path / "out.jsonl")]
    for command in (["query"], ["query", "--json"], ["export", *output]):
        result = CliRunner().invoke(main, [command[0], "meta.rum=v1", *command[1:], *data])
        assert (result.exit_code, result.stderr) == (0, said)
        assert "rum" not in result.stdout
        found = CliRunner().invoke(main, [command[0], "meta.run=v1", *command[1:], *data])
        assert (found.exit_code, found.stderr) == (0, "")


def test_the_counts_of_an_export_are_printed_as_json(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(LINE))
    data = ("--data", tmp_path / "data")
    run("import", tmp_path / "in.jsonl", *data)
    output = tmp_path / "out.zip"
    printed = run("export", "--output", output, "--format", "coco", "--no-images", "--json", *data)
    assert json.loads(printed[printed.index("{") :]) == {
        "output": str(output),
        "written": 1,
        "inferences": 1,
        "left_out": {},
        "annotated": {"predictions": 1},
    }


def names_of(archive: Path, form: str) -> list[str]:
    with zipfile.ZipFile(archive) as dataset:
        if form == "coco":
            categories = json.loads(dataset.read("annotations.json"))["categories"]
            return [item["name"] for item in sorted(categories, key=lambda item: item["id"])]
        names = yaml.safe_load(dataset.read("data.yaml"))["names"]
        return [names[number] for number in range(len(names))]


OF_TWO = ["disc", "bar", "ring", "hole"]
ORDERS = [  # filter, --labels, what the names are
    ("model=gauge", None, ["ring", "bar", "disc", "hole"]),
    ("model=other", None, ["hole"]),
    ("{}", None, OF_TWO),
    ("{}", "hole\n\nring\n", ["hole", "class_1", "ring", "disc", "bar"]),
    ("{}", "hole\nhole\nring\n", ["hole", "class_1", "ring", "disc", "bar"]),
    ("{}", "hole\nclass_2\nhole\n", ["hole", "class_2", "class_2_", "disc", "bar", "ring"]),
]


@pytest.mark.parametrize(("where", "labels", "names"), ORDERS)
@pytest.mark.parametrize("form", ["yolo", "coco"])
def test_classes_are_numbered_as_the_one_model_does(  # noqa: PLR0917 - fixtures and a row
    tmp_path, monkeypatch, form, where, labels, names
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "models" / "gauge"
    doubling(folder / "model.onnx")
    (folder / "labels.txt").write_text("ring\nbar\ndisc\nhole\n")
    box = {"score": 0.9, "xmin": 1, "ymin": 1, "xmax": 9, "ymax": 9}
    predicted = [("gauge", "disc"), ("gauge", "bar"), ("gauge", "ring"), ("other", "hole")]
    lines = [
        LINE
        | {"id": str(4194304 * number), "model": {"name": model, "version": "1"}}
        | {"task": "OBJECT_DETECTION", "predictions": [{"label": label, **box}]}
        | {"input": {"name": "a.png", "width": 10, "height": 10, "mime": "image/png"}}
        for number, (model, label) in enumerate(predicted, start=1)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run("import", "in.jsonl")
    options = []
    if labels is not None:
        (tmp_path / "order.txt").write_text(labels)
        options = ["--labels", "order.txt"]
    run("export", where, "--format", form, "--no-images", "--output", "out.zip", *options)
    assert names_of(tmp_path / "out.zip", form) == names


def test_without_a_flag_the_format_says_whether_images_come_along(tmp_path, monkeypatch) -> None:
    exported_parameters = []

    def export(_, __, parameters, **___) -> Exported:
        exported_parameters.append(parameters.images)
        return Exported(0)

    monkeypatch.setattr("quadriga.store.exchange.export.export", export)
    (tmp_path / "journal").mkdir()
    for flags in ([], ["--images"], ["--no-images"]):
        run("export", "--output", tmp_path / "out.zip", "--data", tmp_path, *flags)
    assert exported_parameters == [None, True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "{", "--output", "x.jsonl"], "expected FILTER to be JSON"),
        (["export", '{"a": 1}', "--output", "x.jsonl"], "expected where.a to"),
        (["export", "--output", "none/x.jsonl"], "none"),
        (
            ["export", "--output", "x.zip", "--format", "cvat", "--labels", "bad.jsonl"],
            "expected labels with coco",
        ),
        (["export", "--output", "x.zip", "--format", "coco", "--labels", "none.txt"], "none.txt"),
        (
            ["export", "--output", "x.zip", "--format", "coco", "--labels", "latin-1.txt"],
            "expected labels in latin-1.txt",
        ),
        (["import", "none.jsonl"], "none.jsonl"),
        (["import", "a.jsonl", "--join", "id"], "with --as ground-truth"),
        (["import", "a.jsonl", "--as", "ground-truth", "--join", "meta."], "meta.<key>"),
        (["import", "good.jsonl", "--task", "detection"], "expected one of classification,"),
        (
            ["import", "good.jsonl", "--as", "ground-truth", "--task", "x"],
            "expected one of classification,",
        ),
        (["import", "bad.jsonl"], "line 1: expected a JSON object"),
    ],
)
def test_invalid_arguments_are_reported(
    tmp_path: Path, monkeypatch, arguments, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.jsonl").write_text(json.dumps(LINE))
    (tmp_path / "bad.jsonl").write_text("no")
    (tmp_path / "latin-1.txt").write_bytes("Stra\u00dfe".encode("latin-1"))
    run("import", "good.jsonl")
    result = CliRunner().invoke(main, arguments, terminal_width=200)
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_the_command_has_all_formats() -> None:
    (choice,) = (
        parameter.type for parameter in export_command.params if parameter.name == "format"
    )
    assert tuple(choice.choices) == get_args(Format)
