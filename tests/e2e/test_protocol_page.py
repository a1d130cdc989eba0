"""The commands of docs/protocols.md and docs/protocols-reference.md run as they stand."""

import pytest

from tests.pages import blocks, shell
from tests.server_process import SAMPLE_MODELS, ServerProcess


@pytest.fixture
def server(tmp_path):
    """A server of its own, as the page unloads models and loads them otherwise."""
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS) as running:
        yield running


def test_the_commands_of_the_pages_answer_without_errors(server: ServerProcess):
    commands = [
        text
        for page in ("docs/protocols.md", "docs/protocols-reference.md")
        for language, text in blocks(page)
        if language == "sh" and "curl" in text
    ]
    assert commands
    for command in commands:
        output = shell(command.replace("localhost:8080", server.host))
        assert output, command
        assert '"error"' not in output
