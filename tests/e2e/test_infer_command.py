"""The command that sends images: files, folders and patterns in, lines and pictures out, failures named."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from quadriga.client.results import Result
from quadriga.engine.commands.infer import PictureFolder, _draw
from tests.pages import blocks
from tests.server_process import IMAGES, ServerProcess, quadriga

DETECTOR = "shapes-detector"


@pytest.fixture
def photos(tmp_path) -> Path:
    """Two photos, one more in a folder below, and a text."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for source, target in (("scene_01.jpg", "a.jpg"), ("scene_06.png", "b[1].png"), ("scene_02.jpg", "more/a.jpg")):  # fmt: skip
        shutil.copy(IMAGES / "detection" / source, folder / target)
    (folder / "notes.txt").write_text("no image")
    return folder


def infer(server: ServerProcess, *words: object, code: int = 0) -> tuple[list[str], str]:
    done = quadriga("infer", *words, "--server", server.host, code=code)
    return done.stdout.splitlines(), done.stderr


def test_a_folder_is_its_images_and_each_has_a_line(server, photos):
    lines, errors = infer(server, DETECTOR, photos)
    assert [line.partition(": ")[0] for line in lines] == [
        f"{photos}/a.jpg",
        f"{photos}/b[1].png",
    ]
    assert lines[0].partition(": ")[2].startswith("cross 0.9")
    assert errors == ""


def test_files_with_brackets_and_patterns_are_found(server, photos):
    lines, _ = infer(
        server, f"{DETECTOR}@1", photos / "b[1].png", f"{photos}/**/a.jpg", "--concurrency", 2
    )
    names = [line.partition(": ")[0].removeprefix(f"{photos}/") for line in lines]
    assert names == ["b[1].png", "a.jpg", "more/a.jpg"]


def test_json_lines_lead_to_the_stored_inferences(server, photos):
    options = ("--metadata", '{"run": "json lines"}', "--parameters", '{"score_threshold": 0.99}')
    lines, _ = infer(server, DETECTOR, photos, *options, "--json")
    rows = [json.loads(line) for line in lines]
    assert [Path(row["image"]).name for row in rows] == ["a.jpg", "b[1].png"]
    stored = {row["id"]: row for row in server.query({"meta.run": "json lines"})}
    assert {row["id"] for row in rows} == stored.keys()
    for row in rows:
        assert (row["model"], row["version"]) == (DETECTOR, "1")
        assert row["predictions"] == stored[row["id"]]["predictions"]
        assert all(prediction["score"] >= 0.99 for prediction in row["predictions"])


def test_contours_are_folded_unless_their_points_are_wanted(server):
    image = IMAGES / "segmentation" / "scene_01.jpg"
    folded, whole = (
        json.loads(infer(server, "shapes-segmenter", image, "--json", *more)[0][0])["predictions"]
        for more in ((), ("--points",))
    )
    assert [row["contour_points"] for row in folded] == [
        [len(ring) for ring in row["contour"]] for row in whole
    ]
    assert folded
    assert not any("contour" in row for row in folded)


def test_pictures_are_drawn_beside_each_other(server, photos, tmp_path):
    drawn = tmp_path / "new" / "drawn"
    images = (photos, photos / "more")
    infer(server, DETECTOR, *images, "--output", drawn)
    assert sorted(path.name for path in drawn.iterdir()) == ["a-2.jpg", "a.jpg", "b[1].png"]
    for name, source in (("a.jpg", photos / "a.jpg"), ("a-2.jpg", photos / "more" / "a.jpg")):
        with Image.open(drawn / name) as picture, Image.open(source) as original:
            assert picture.size == original.size
            assert picture.tobytes() != original.convert("RGB").tobytes()


def test_the_command_of_the_page_draws_a_folder(server, tmp_path):
    (block,) = (block.text for block in blocks("docs/client.md") if block.language == "sh")
    command = shlex.split(block.splitlines()[0])
    folder = tmp_path / command.pop()
    lines, _ = infer(server, *command[2:], folder)
    assert len(lines) == len(list(folder.iterdir())) == 24


def test_images_are_never_drawn_over(server, photos, tmp_path):
    (tmp_path / "link").symlink_to(photos)
    before = (photos / "a.jpg").read_bytes()
    _, errors = infer(server, DETECTOR, photos, "--output", tmp_path / "link", code=2)
    assert "expected another folder than that of the images" in " ".join(errors.split())
    assert (photos / "a.jpg").read_bytes() == before


def test_a_failed_image_is_named_and_the_others_go_on(server, photos):
    (photos / "aa.jpg").write_bytes(b"no image")
    lines, errors = infer(server, DETECTOR, photos, "--json", code=1)
    rows = [json.loads(line) for line in lines]
    assert [Path(row["image"]).name for row in rows] == ["a.jpg", "aa.jpg", "b[1].png"]
    assert ["error" in row for row in rows] == [False, True, False]
    assert errors.startswith(f"quadriga: {photos}/aa.jpg: ")
    assert "expected a JPEG" in errors


def test_an_image_that_is_not_drawn_is_named(tmp_path, capsys):
    result = Result({}, {"data": [[{"label": "a", "score": 0.5}]]}, b"five bands", "a.tif")
    assert not _draw(PictureFolder(tmp_path, []), result)
    assert capsys.readouterr().err.startswith("quadriga: a.tif: not drawn: cannot read the image")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_no_text_is_printed(server, photos):
    name = os.fsencode(photos) + b"/\xff\n.jpg"
    (photos / "a.jpg").rename(os.fsdecode(name))
    lines, _ = infer(server, DETECTOR, os.fsdecode(name))
    assert len(lines) == 1
    (line,), _ = infer(server, DETECTOR, os.fsdecode(name), "--json")
    assert os.fsencode(json.loads(line)["image"]) == name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([DETECTOR, "nowhere.jpg"], "image not found: nowhere.jpg"),
        ([DETECTOR, "none/*.jpg"], "expected images, got none: none/*.jpg"),
        ([DETECTOR, "docs/tutorials"], "expected images, got none: docs/tutorials"),
        ([DETECTOR, "tests/data"], "expected images, got none: tests/data"),
        ([DETECTOR], "Missing argument"),
        ([DETECTOR, "docs/demo.jpg", "--metadata", "[1]"], "expected an object, got [1]"),
        ([DETECTOR, "docs/demo.jpg", "--metadata", "{"], "expected JSON, got {"),
        ([DETECTOR, "docs/demo.jpg", "--points"], "--points needs --json"),
        (["shape-detector", "docs/demo.jpg"], "shape-detector"),
        ([f"{DETECTOR}@7", "docs/demo.jpg"], "7"),
    ],
)
def test_what_cannot_be_sent_is_an_error(server, words, message):
    lines, errors = infer(server, *words, code=2)
    assert lines == []
    assert message in errors


def test_a_server_that_is_gone_is_an_error_of_one_line():
    done = quadriga("infer", DETECTOR, "docs/demo.jpg", "--server", "127.0.0.1:1", code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("quadriga: ")
    assert done.stderr.count("\n") == 1


def test_the_key_of_the_environment_is_sent(server):
    env = {**os.environ, "QUADRIGA_API_KEY": "with a blank"}
    done = quadriga("infer", DETECTOR, "docs/demo.jpg", "--server", server.host, code=2, env=env)
    assert "expected a key of visible ASCII characters" in done.stderr
