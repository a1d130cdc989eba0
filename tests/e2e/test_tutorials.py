"""The notebooks of the tutorials: their cells run from top to bottom in an empty folder, and their files are well-formed."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server_process import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
NAMES = ("serve-your-export", "find-and-fix", "prove-the-new-model", "watch-it")
ALLOWED_IMPORTS = {"PIL", "numpy", "quadriga"}
"""Packages that a notebook may import beside the standard library."""


def cells(name: str, kind: str) -> list[str]:
    """Give the texts of the cells of a kind, in order."""
    rows = json.loads((TUTORIALS / f"{name}.ipynb").read_text())["cells"]
    return ["".join(row["source"]) for row in rows if row["cell_type"] == kind]


def run(name: str, folder: Path) -> str:
    """Run a notebook's code in a process of its own, whose servers end with it; gives what it prints."""
    (folder / "sample_models").symlink_to(ROOT / "sample_models")
    here = folder / "docs" / "tutorials"
    here.mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'client'}",
        "TMPDIR": str(folder),
    }
    program = "\n\n".join(cells(name, "code"))
    process = subprocess.Popen(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", program],
        cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        printed, errors = process.communicate(timeout=170)
        assert process.returncode == 0, errors
        assert errors == ""
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
            left = True
        except ProcessLookupError:
            left = False
    assert not left, "the notebook ends its server itself"
    assert [path.name for path in folder.iterdir() if path.name.startswith("tmp")] == []
    assert list(here.iterdir()) == []
    return printed


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path):
    assert run(name, tmp_path)


def test_every_notebook_is_run():
    assert {path.name for path in TUTORIALS.iterdir()} == {f"{name}.ipynb" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_of_format_4_5_and_has_no_output(name):
    notebook: dict[str, Any] = json.loads((TUTORIALS / f"{name}.ipynb").read_text())
    assert notebook.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w-]{1,64}", id_) for id_ in ids)
    for cell in notebook["cells"]:
        assert all(isinstance(line, str) for line in cell["source"])
        is_code = cell["cell_type"] == "code"
        more = {"execution_count": None, "outputs": []} if is_code else {}
        assert {key: cell.get(key) for key in more} == more
        assert cell.keys() == {"cell_type", "id", "metadata", "source", *more}
        assert is_code or cell["cell_type"] == "markdown"
        assert cell["metadata"] == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_needs_the_client_and_pictures_alone(name):
    tree = ast.parse("\n\n".join(cells(name, "code")))
    imported = {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported |= {
        str(node.module).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert imported - sys.stdlib_module_names <= ALLOWED_IMPORTS


@pytest.mark.parametrize("name", NAMES)
def test_all_servers_are_started_in_the_same_way(name):
    assert cells(name, "code")[0] == cells(NAMES[0], "code")[0]
