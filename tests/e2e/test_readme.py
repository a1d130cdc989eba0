"""The README's commands, copied, give the README's answers."""

import json
import re
import subprocess
import sys

import pytest

from tests.server_process import ROOT, ServerProcess

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run(command: str, server: ServerProcess) -> str:
    command = command.replace("localhost:8080", server.host)
    command = re.sub(r"(\.venv/bin/quadriga query .*)", rf"\1 --data {server.data}", command)
    command = command.replace(".venv/bin/quadriga", f"{sys.executable} -m engine.cli")
    finished = subprocess.run(
        ["bash", "-ec", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_curl_gives_the_answer_and_the_queries_find_it(server: ServerProcess):
    _, _, infer, queries = blocks("sh")
    assert "make demo" in blocks("sh")[0]
    assert "make test" in blocks("sh")[0]
    answer = json.loads(run(infer, server))
    (promised,) = blocks("json")
    expected = json.loads(promised)
    inference_id = answer["outputs"][0]["parameters"].pop("inference_id")
    assert expected["outputs"][0]["parameters"].pop("inference_id").isdigit()
    found, wanted = (a["outputs"][0].pop("data")[0] for a in (answer, expected))
    assert answer == expected
    for box, other in zip(found, wanted, strict=True):
        assert box.pop("label") == other.pop("label")
        assert box == pytest.approx(other, rel=1e-3)
    server.query({})  # waits until all is stored
    found_again = run(queries, server)
    assert inference_id in found_again.splitlines()[0]
    assert inference_id in found_again.partition("\n")[2]
