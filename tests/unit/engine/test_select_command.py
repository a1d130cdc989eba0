"""`quadriga select`: what is written beside the dataset, and which bad uses are refused before anything is."""

import io
import json
import shlex
import zipfile
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from PIL import Image

from quadriga.engine.cli import main
from quadriga.monitor.selection.stored import Reasons, SelectedImage
from quadriga.store.database.database import migrate
from quadriga.store.records.records import InputReference, JournaledChange, TruthStatement
from tests.pages import ROOT, blocks
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

FIRST = 700_000_000_000
BOX = {"xmin": 1.0, "ymin": 2.0, "xmax": 20.0, "ymax": 30.0}


def png(number: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (64, 48), (number, 90, 30)).save(data, "PNG")
    return data.getvalue()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with twelve images of four cameras, the first of them with ground truth."""
    folder = tmp_path / "data"
    folder.mkdir()
    url = f"sqlite:///{folder}/store.db"
    migrate(url)
    store = StoreHarness(folder, url)
    records = [
        make_record(
            FIRST + number,
            predictions=[{"label": "circle", "score": number / 20 + 0.3, **BOX}],
            input=InputReference(
                "image", store.blobs.put(png(number)), 64, 48, "image/png", kept=True, bytes=100
            ),
            metadata={"camera_id": f"c{number % 4}"},
        )
        for number in range(12)
    ]
    statement = TruthStatement(
        "id", str(FIRST), [{"label": "star", **BOX}], task="OBJECT_DETECTION"
    )
    store.add(*records, JournaledChange(FIRST + 99, statement))
    store.close()
    return folder


def run(data: Path, *arguments: object, code: int = 0) -> str:
    flags = ["select", "--data", str(data), *map(str, arguments)]
    if "--model" not in flags:
        flags += ["--model", "shapes-detector"]
    result = CliRunner().invoke(main, flags, terminal_width=200)
    assert result.exit_code == code, result.output
    return result.output


def lines_of(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_folder_has_the_dataset_and_the_reasons(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "next"
    printed = run(data, "--output", output, "--n", 8, "--format", "yolo")
    assert printed.startswith(f"8 images in {output}, out of 11 candidates\n")
    assert "1 inferences are no candidates: with ground truth" in printed
    assert "drift: 11 of 11 images have no semantic score" in printed
    selection = lines_of((output / "selection.jsonl").read_text())
    assert [line["rank"] for line in selection] == [*range(1, 9)]
    assert sorted(line["source"] for line in selection) == sorted(["c0", "c1", "c2", "c3"] * 2)
    first = selection[0]
    assert first["inference_id"] == str(FIRST + 1)
    assert first["reasons"] == {"uncertainty": 0.65, "uncertainty_from": "lowest score"}
    for line in selection:
        number = int(line["inference_id"]) - FIRST
        assert (output / line["image"]).read_bytes() == png(number)
    assert (output / "data.yaml").exists()
    assert len([*(output / "labels").rglob("*.txt")]) == 8
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


FORMATS = ("label-studio", "coco", "yolo", "yolo-obb", "yolo-seg", "cvat", "dota", "chariot", "imagefolder")  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_has_the_images_that_are_said(data: Path, tmp_path: Path, form: str) -> None:
    output = tmp_path / "next.zip"
    run(data, "--output", output, "--n", 3, "--format", form)
    with zipfile.ZipFile(output) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert len(names) == len(set(names))
        selection = lines_of(archive.read("selection.jsonl").decode())
        assert len(selection) == 3
        for line in selection:
            assert archive.read(line["image"]) == png(int(line["inference_id"]) - FIRST)
    assert len([name for name in names if name.endswith(".png")]) == 3


def test_predictions_in_the_dataset_do_not_become_truth_by_an_import(data, tmp_path) -> None:
    output = tmp_path / "next.zip"
    run(data, "--output", output, "--n", 3)
    for flags, matched in (([], 0), (["--accept-predictions"], 0)):
        arguments = [
            "import",
            str(output),
            "--as",
            "ground-truth",
            "--dry-run",
            "--data",
            str(data),
        ]
        result = CliRunner().invoke(main, [*arguments, *flags], terminal_width=200)
        assert result.exit_code == 0, result.output
        assert f"{matched} matched" in result.output  # predictions of tasks are never truth


def test_the_result_as_json_is_what_the_file_says(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "next"
    result = json.loads(run(data, "--output", output, "--n", 2, "--json", "--by", "uncertainty"))
    assert result["output"] == str(output)
    assert (result["matches"], result["candidates"], result["source_key"]) == (12, 11, "camera_id")
    assert result["left_out"] == {"with ground truth": 1}
    assert result["not_written"] == {}
    written = lines_of((output / "selection.jsonl").read_text())
    assert [{**image} for image in result["images"]] == [
        {key: value for key, value in line.items() if key != "image"} for line in written
    ]


def test_two_runs_select_the_same(data: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(data, "--output", tmp_path / name, "--n", 5, "--seed", 3)
    first, second = ((tmp_path / name / "selection.jsonl").read_bytes() for name in ("a", "b"))
    assert first == second


def test_images_that_are_lost_are_said_and_left_out(data: Path, tmp_path: Path) -> None:
    blobs = sorted(path for path in (data / "blobs").rglob("*") if path.is_file())
    for path in blobs:
        if path.read_bytes() in {png(1), png(2)}:
            path.unlink()
    output = tmp_path / "next"
    printed = run(data, "--output", output)
    assert "9 images in" in printed
    assert "2 selected but not written: its image is not stored" in printed
    assert len(lines_of((output / "selection.jsonl").read_text())) == 9
    assert "2 selected but not written: its image is not stored" in run(
        data, "--output", tmp_path / "coco", "--format", "coco"
    )
    for path in blobs:
        path.unlink(missing_ok=True)
    lost = run(data, "--output", tmp_path / "none.zip", code=2)
    assert "nothing was written: 11 its image is not stored" in lost
    assert not (tmp_path / "none.zip").exists()


def test_nothing_to_label_writes_nothing_and_says_why(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "next"
    filter_ = '{"ground_truth": {"exists": true}}'
    printed = run(data, "--output", output, "--where", filter_, code=2)
    assert printed == "quadriga: nothing to label: 1 inferences match: 1 with ground truth\n"
    assert "model not found: 'none'" in run(data, "--output", output, "--model", "none", code=2)
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "certainty"], "expected some of uncertainty,diversity,drift"),
        (["--by", ""], "got nothing"),
        (["--n", "0"], "1<=x<=10000"),
        (["--n", "10001"], "1<=x<=10000"),
        (["--format", "jsonl"], "label-studio"),
        (["--where", "{"], "expected JSON"),
        (["--where", '{"a": 1}'], "expected where"),
        (["--output", "none/next"], "folder not found"),
        (["--output", "full"], "expected a .zip, or a new or empty folder"),
        (["--output", "file"], "expected a .zip, or a new or empty folder"),
        (["--output", "folder.zip"], "expected a file, got the folder"),
    ],
)  # fmt: skip
def test_bad_uses_are_refused_before_anything_is_written(
    data: Path, tmp_path: Path, monkeypatch, arguments, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").write_text("kept")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder.zip").mkdir()
    before = sorted(tmp_path.iterdir())
    output = [] if "--output" in arguments else ["--output", "next"]
    assert message in run(data, *arguments, *output, code=2).replace("\n", " ")
    assert sorted(tmp_path.iterdir()) == before
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["kept"]
    assert (tmp_path / "file").read_text() == "kept"


def test_the_command_of_the_page_selects(data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = [block.text for block in blocks(ROOT / "docs" / "datasets.md")]
    command = next(text for text in page if text.startswith("quadriga select"))
    line = json.loads(next(text for text in page if "uncertainty_from" in text))
    words = [word.replace("-7d", "-9000d") for word in shlex.split(command)[1:]]
    result = CliRunner().invoke(main, words, terminal_width=200)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("11 images in ")
    with zipfile.ZipFile("next.zip") as archive:
        written = lines_of(archive.read("selection.jsonl").decode())
    assert written[0].keys() == line.keys()
    image = msgspec.convert({key: line[key] for key in line if key != "image"}, SelectedImage)
    assert msgspec.to_builtins(image.reasons) == line["reasons"]
    assert line["reasons"].keys() == set(Reasons.__struct_fields__)


def test_without_a_store_it_says_so(tmp_path: Path) -> None:
    printed = run(tmp_path / "nowhere", "--output", tmp_path / "next", code=2)
    assert printed.startswith("quadriga: ")
    assert not (tmp_path / "next").exists()
