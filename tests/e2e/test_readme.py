"""The README's commands, copied, give the README's answers."""

import json
import re
import subprocess
import sys

import pytest

from tests.pages import blocks, shell
from tests.server_process import ROOT, ServerProcess


def run(command: str, server: ServerProcess) -> str:
    command = command.replace("localhost:8080", server.host)
    command = re.sub(r"(\.venv/bin/quadriga query .*)", rf"\1 --data {server.data}", command)
    command = command.replace(".venv/bin/quadriga", f"{sys.executable} -m quadriga.engine.cli")
    return shell(command)


def test_the_curl_gives_the_answer_and_the_queries_find_it(server: ServerProcess):
    setting_up, _, infer, promised, queries, client = (text for _, text in blocks("README.md"))
    assert "make demo" in setting_up
    assert "make test" in setting_up
    answer = json.loads(run(infer, server))
    expected = json.loads(promised)
    inference_id = answer["outputs"][0]["parameters"].pop("inference_id")
    assert expected["outputs"][0]["parameters"].pop("inference_id").isdigit()
    boxes, expected_boxes = (a["outputs"][0].pop("data")[0] for a in (answer, expected))
    assert answer == expected
    for box, expected_box in zip(boxes, expected_boxes, strict=True):
        assert box.pop("label") == expected_box.pop("label")
        assert box == pytest.approx(expected_box, rel=1e-3)
    server.query({})  # waits until all is stored
    found_again = run(queries, server)
    assert inference_id in found_again.splitlines()[0]
    assert inference_id in found_again.partition("\n")[2]
    program = client.replace("127.0.0.1:8080", server.host)
    assert len([line for line in program.splitlines() if line]) == 5
    seen = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert seen.startswith("['cross', 'star']")
