"""The blocks of code of the documents."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from quadriga.engine.cli import main

ROOT = Path(__file__).parent.parent


class Block(NamedTuple):
    """One block of code."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """Give the blocks of a page, named from the repository's folder, in order."""
    text = (ROOT / page).read_text("utf-8")
    matches = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [Block(*match) for match in matches]


def shell(command: str, folder: Path = ROOT, *, code: int = 0) -> str:
    """Run a block of sh in a folder; gives what it prints."""
    finished = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == code, f"{command}\n{finished.stderr}"
    return finished.stdout


def invoke(command: str, *more: str, code: int = 0) -> str:
    """Run a `quadriga ...` in this process, which exits with a status; gives what it prints."""
    result = CliRunner().invoke(main, [*shlex.split(command)[1:], *more], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output
