"""Benchmarks are not run by the tests; what they import must be there nevertheless."""

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
