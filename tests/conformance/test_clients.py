"""Public clients, each in an environment and a process of its own, against one real server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent.parent / ".conformance"
CLIENTS: dict[str, str | None] = {
    "tritonclient_http": "tritonclient",
    "tritonclient_grpc": "tritonclient",
    "kserve_checks": "kserve",
    "mlserver_checks": "mlserver",
    "supervision_checks": "supervision",
    "documented_lines": None,
}
"""Script to environment; None for our own, where a line of HTTP is all that a client is."""

FEATURES = {"grpc", "repository", "statistics", "config", "v1", "generate"}
"""Features of the protocols that a check may need, as `conftest.served_features` finds them."""

pytestmark = pytest.mark.conformance


def test_no_part_is_missing(described):
    assert {*described["features"]} == FEATURES


@pytest.mark.parametrize("script", CLIENTS)
def test_client(described, script, capsys):
    environment = CLIENTS[script]
    python = Path(sys.executable)
    if environment:
        python = ENVIRONMENTS / environment / "bin" / "python"
        assert python.exists(), f"expected {python}: make conformance"
    ran = subprocess.run(
        [python, HERE / "clients" / f"{script}.py"],
        input=json.dumps(described),
        capture_output=True,
        text=True,
        timeout=380,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    failed = [f"{line['check']}: {line['detail']}" for line in lines if line.get("ok") is False]
    passed = sum(line.get("ok") is True for line in lines)
    with capsys.disabled():
        print(f" {script}: {passed} checks passed")
    assert not failed, "\n".join([f"{len(failed)} of {len(lines)} checks failed:", *failed])
    assert passed == len(lines) > 0
