"""What a server connects to: nobody, unless its settings name somebody; a library's telemetry is off."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, quadriga

CLASSIFIER = SAMPLE_MODELS / "shapes-classifier"
TELEMETRY = "ORT_DISABLE_TELEMETRY"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the home of every process, which inherits nothing that switches telemetry off."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(TELEMETRY, raising=False)
    return home


def environment_of(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with."""
    lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize("isolation", ["none", "all"])
def test_no_process_of_a_server_keeps_an_identity_of_the_device(
    home: Path, tmp_path: Path, isolation: str
) -> None:
    server = ServerProcess(tmp_path / "data", CLASSIFIER, "--isolation", isolation)
    with server:
        assert server.call("GET", "/v2/models/shapes-classifier")[0] == 200
        children = server.child_pids()[1:]
        assert children
        assert {environment_of(pid).get(TELEMETRY) for pid in children} == {"1"}
    assert not list(home.rglob("*")), "expected nothing in the home folder"


def test_no_command_keeps_an_identity_of_the_device(home: Path) -> None:
    quadriga("inspect", CLASSIFIER)
    image = next((IMAGES / "classification").glob("*.jpg"))
    quadriga("profile", CLASSIFIER, "--image", image, "--seconds", "0.1")
    assert not list(home.rglob("Microsoft"))


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0"), ("", "")])
def test_a_choice_of_the_user_stays(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TELEMETRY, raising=False)
    if before is not None:
        monkeypatch.setenv(TELEMETRY, before)
    code = f"import os, quadriga.engine; print(os.environ[{TELEMETRY!r}])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ}, capture_output=True, text=True, check=True
    )
    assert done.stdout.removesuffix("\n") == after
