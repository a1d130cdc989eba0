"""The page of the first hour, copied block by block into an empty folder, does what it says."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.pages import blocks, shell
from tests.photos import write_photo
from tests.server_process import ROOT, ServerProcess


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like the repository's after `make demo`, but that the image of its commands is a photo of 5 MB."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, arguments in (("quadriga", "-m quadriga"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (programs / name).chmod(0o755)
    images = tmp_path / "sample_models" / "images"
    shutil.copytree(ROOT / "sample_models" / "images" / "classification", images / "classification")
    photo = images / "classification" / "scene_01.jpg"
    write_photo(photo, photo)
    for model in (ROOT / "sample_models").glob("*/model.onnx"):
        (tmp_path / "sample_models" / model.parent.name).symlink_to(model.parent)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_the_hour_goes_as_the_page_says(folder: Path) -> None:
    page = blocks("docs/first-hour.md")
    inspect, write, serve, send, find, truth, evaluate, baseline, drift = (
        block.text for block in page if block.language == "sh"
    )
    programs = [block.text for block in page if block.language == "python"]
    (message,) = (block.text for block in page if block.language == "text")
    (stated,) = (block.text for block in page if block.language == "json")

    assert shell(f"{inspect.strip()} 2>&1", folder, code=2) == message
    output = shell(write, folder)
    assert "circle, square, triangle, star, cross" in output
    assert '"label":"circle"' in output
    assert (folder / "annotated.png").exists()

    _, _, models, *flags = serve.split()
    with ServerProcess(folder / "data", folder / models, *flags) as server:

        def run(command: str) -> str:
            command = command.replace("localhost:8080", server.host)
            return shell(command.replace("sleep 1\n", "", 1), folder)

        for name, program in zip(("send.py", "night.py"), programs, strict=True):
            (folder / name).write_text(program.replace("localhost:8080", server.host))
        sent = run(send).splitlines()
        assert len(sent) == 40
        assert sent[0].startswith("scene_01.jpg circle 1.0 ")
        server.query({})  # waits until all is stored
        by_url, by_command = find.splitlines()
        inferences = json.loads(run(by_url))["inferences"]
        assert len(inferences) == 2
        assert all(inference["id"] in run(by_command) for inference in inferences)
        assert run(truth).splitlines()[-1].endswith(stated.strip())
        assert re.search(r"│ north +│ +10 │ +1\.000", run(evaluate))
        assert "ready, 40 images" in run(f"{baseline.strip()} --server {server.host}")
        assert (folder / "evaluation.html").exists()
        since, *_, last = drift.strip().splitlines()
        moment = shell(f"{since}\necho $SINCE").strip()
        run(drift.replace(since, "").replace(last, ""))
        server.query({})
        assert run(last.replace("$SINCE", moment)).startswith("Drift: ")
        assert (folder / "drift.html").exists()
    assert server.process is not None
    assert server.process.returncode == 0
