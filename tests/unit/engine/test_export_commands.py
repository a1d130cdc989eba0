"""Out of a store into a file and back, from the command line."""

import json
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from quadriga.engine.cli import main
from quadriga.store.exchange.export import Exported, Format

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


def test_without_a_flag_the_format_says_whether_images_come_along(tmp_path, monkeypatch) -> None:
    exported_parameters = []

    def export(_, __, parameters, **___) -> Exported:
        exported_parameters.append(parameters.images)
        return Exported(0)

    monkeypatch.setattr("quadriga.store.exchange.export.export", export)
    for flags in ([], ["--images"], ["--no-images"]):
        run("export", "--output", tmp_path / "out.zip", "--data", tmp_path, *flags)
    assert exported_parameters == [None, True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "{", "--output", "x.jsonl"], "expected FILTER to be JSON"),
        (["export", '{"a": 1}', "--output", "x.jsonl"], "expected where.a to"),
        (["export", "--output", "none/x.jsonl"], "none"),
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
    run("import", "good.jsonl")
    result = CliRunner().invoke(main, arguments, terminal_width=200)
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_the_command_has_all_formats() -> None:
    (choice,) = (
        parameter.type for parameter in main.commands["export"].params if parameter.name == "format"
    )
    assert tuple(choice.choices) == get_args(Format)
