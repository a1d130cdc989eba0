"""The README's commands, copied, give the README's answers: of its own image, and of a photo as cameras take them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import blocks, shell
from tests.photos import write_photo
from tests.server_process import ROOT, ServerProcess

SAMPLE = "sample_models/images/detection/scene_05.jpg"


@pytest.fixture(scope="module", params=["sample", "5 MB"])
def photo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the README's image, and one of 5 MB of the same."""
    if request.param == "sample":
        return Path(SAMPLE)
    return write_photo(ROOT / SAMPLE, tmp_path_factory.mktemp("photo") / "a photo.jpg")


def run(command: str, server: ServerProcess, photo: Path) -> str:
    command = command.replace("localhost:8080", server.host)
    command = re.sub(r"(\.venv/bin/quadriga query .*)", rf"\1 --data {server.data}", command)
    command = command.replace(".venv/bin/quadriga", f"{sys.executable} -m quadriga")
    return shell(command.replace(f"PHOTO={SAMPLE}", f"PHOTO='{photo}'"))


def predictions(answer: dict) -> dict[str, dict]:
    (output,) = answer["outputs"]
    (found,) = output["data"]
    assert len(found) == 2
    return {prediction.pop("label"): prediction for prediction in found}


def test_the_commands_give_the_answer_and_the_queries_find_it(server: ServerProcess, photo: Path):
    demo, serve, send, send_json, promised, find, client, install, containers = (
        text for _, text in blocks("README.md")
    )
    assert ("make demo" in demo, "make test" in demo) == (True, True)
    assert (serve, install[:13]) == ("make serve\n", "pip install .")
    assert containers.startswith("docker compose up")
    answers = [json.loads(run(command, server, photo)) for command in (send, send_json)]
    expected = json.loads(promised)
    answer = answers[1]
    parameters = answer["outputs"][0]["parameters"]
    inference_id = parameters.pop("inference_id")
    assert expected["outputs"][0]["parameters"].pop("inference_id").isdigit()
    boxes, by_bytes, shown = map(predictions, (answer, answers[0], expected))
    assert boxes == by_bytes
    assert boxes.keys() == shown.keys()
    if photo == Path(SAMPLE):
        for label, box in shown.items():
            assert boxes[label] == pytest.approx(box, rel=1e-3)
    for each in (answer, expected):
        assert len(each.pop("id")) > 4
        del each["outputs"][0]["data"]
    assert answer == expected
    server.query({})  # waits until all is stored
    by_command, by_url = (run(line, server, photo) for line in find.splitlines())
    assert inference_id in by_command
    assert inference_id in by_url
    program = client.replace("127.0.0.1:8080", server.host).replace(SAMPLE, str(photo))
    seen = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert re.match(r"\['(cross', 'star|star', 'cross)'\] \[\[", seen)
