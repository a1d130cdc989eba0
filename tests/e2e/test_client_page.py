"""The examples of the client's page and of the README, run as they stand against a server."""

import re
import subprocess
import sys

import pytest

from quadriga.client.images import SUFFIXES
from tests.pages import ROOT, blocks
from tests.server_process import SAMPLE_MODELS, ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    process = ServerProcess(tmp_path_factory.mktemp("page") / "data", SAMPLE_MODELS).start()
    yield process
    process.stop()


def python_of(page: str) -> list[str]:
    return [block.text for block in blocks(page) if block.language == "python"]


@pytest.mark.parametrize("page", ["docs/client.md", "README.md"])
def test_the_examples_of_the_pages_run(server, page):
    """All of a page are one program, which prints what was found."""
    program = "\n".join(python_of(page)).replace("http://127.0.0.1:8080", f"http://{server.host}")
    assert server.host in program
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['cross'")
    assert "[[" in done.stdout
    if page.startswith("docs"):
        folder = SAMPLE_MODELS / "images" / "detection"
        names = [path.name for path in folder.iterdir() if path.suffix in SUFFIXES]
        assert [name for name in names if name not in done.stdout] == []
        assert "north" in done.stdout
        assert "shapes-segmenter" in done.stdout


def test_the_readme_of_the_client_has_the_same_calls():
    (example,) = (block.text for block in blocks("client/README.md"))
    compile(example, "client/README.md", "exec")
    assert re.findall(r"client\.(\w+)", example) == ["infer"]
