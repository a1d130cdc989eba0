"""A short part of the drill; `make drill` runs all of it."""

import subprocess
import sys

from tests.server_process import ROOT


def test_nothing_is_lost_or_stored_twice_in_a_short_drill(tmp_path) -> None:
    scenes = ["kills-of-children", "kills-of-groups", "slow-bodies"]
    finished = subprocess.run(
        [sys.executable, "-m", "tests.drill", "--kills", "8", "--seconds", "3",
         "--folder", str(tmp_path), "--scenes", *scenes],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count(" | 0 | 0 | ") == len(scenes), finished.stdout
    assert "BROKEN" not in finished.stdout
