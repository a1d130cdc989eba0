"""The commands of docs/protocol.md run as they stand."""

import re
import subprocess

from tests.server_process import ROOT, ServerProcess

PAGE = (ROOT / "docs" / "protocol.md").read_text()


def test_the_commands_of_the_page_answer_without_errors(server: ServerProcess):
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
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
