"""Benchmarks are not run by the tests; what they import must be there nevertheless, and the first one runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_benchmark_can_be_imported() -> None:
    names = sorted(path.stem for path in (ROOT / "bench").glob("*.py"))
    assert len(names) > 10
    finished = subprocess.run(
        [sys.executable, "-c", f"import {', '.join(names)}"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'bench'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert finished.returncode == 0, finished.stderr


def test_the_cost_of_each_path_is_measured_with_right_answers(tmp_path: Path) -> None:
    result = tmp_path / "path_cost.json"
    flags = ["--pairs", "1", "--seconds", "0.02", "--json", str(result)]
    finished = subprocess.run(
        [sys.executable, ROOT / "bench" / "path_cost.py", *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = json.loads(result.read_text())
    assert len(rows) == 5
    for row in rows:
        assert row["wrong"] == {"bare": 0, "off": 0, "on": 0}
        assert all(min(costs) > 0 for costs in row["cpu_ms"].values())
