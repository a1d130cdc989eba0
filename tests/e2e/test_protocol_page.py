"""The commands of docs/protocols.md run as they stand."""

import re
import subprocess

import pytest

from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess

PAGE = (ROOT / "docs" / "protocols.md").read_text()


@pytest.fixture
def server(tmp_path):
    """A server of its own, as the page unloads models and loads them otherwise."""
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS) as running:
        yield running


def test_the_commands_of_the_page_answer_without_errors(server: ServerProcess):
    blocks = [block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "curl" in block]
    assert blocks
    for block in blocks:
        finished = subprocess.run(
            ["bash", "-ec", block.replace("localhost:8080", server.host)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout, block
        assert '"error"' not in finished.stdout
