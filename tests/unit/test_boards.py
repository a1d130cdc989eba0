"""The boards for Grafana: written by their script, with metrics that a server has, and queries that Prometheus reads."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from quadriga.engine.measures.metrics import TEXTS

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
BOARDS = sorted(FOLDER.glob("*.json"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return the module that writes the boards."""
    spec = importlib.util.spec_from_file_location("boards", FOLDER / "boards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def queries(path: Path) -> list[str]:
    board: dict[str, Any] = json.loads(path.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_the_boards_are_those_that_the_script_writes(script: ModuleType):
    assert {path.stem for path in BOARDS} == {board.name for board in script.BOARDS}
    for board in script.BOARDS:
        assert (FOLDER / f"{board.name}.json").read_text() == script.board_json(board)


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_boards_show_metrics_that_are_there(path: Path):
    metrics = {name for query in queries(path) for name in re.findall(r"\bquadriga_\w+", query)}
    assert len(metrics) > 4
    for metric in metrics:
        assert re.sub(r"_(total|bucket|sum|count)$", "", metric) in TEXTS, metric


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_prometheus_reads_the_queries_of_boards(path: Path, tmp_path: Path):
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not there: it comes with Prometheus")
    rules = [
        {"record": f"board:query:{number}", "expr": query}
        for number, query in enumerate(queries(path))
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    done = subprocess.run([tool, "check", "rules", str(file)], capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_do_not_overlap_and_ids_are_their_own(script: ModuleType):
    for board in script.BOARDS:
        panels = json.loads(script.board_json(board))["panels"]
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
        assert len(set(places)) == len({panel["id"] for panel in panels}) == len(panels)
