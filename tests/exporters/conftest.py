"""The Python that runs the exporters: asked for by name, so that a run that lacks it fails."""

import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def exporter_python() -> str:
    """The Python that `EXPORTER_PYTHON` names."""
    named = os.environ.get("EXPORTER_PYTHON", "")
    assert named, "expected EXPORTER_PYTHON to name a Python with torch, got none"
    return named


@pytest.fixture(scope="module")
def exports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, exporter_python: str
) -> Path:
    """Folder with the models of the script that the test module names as its `EXPORTER`."""
    root = tmp_path_factory.mktemp("exports")
    script = Path(__file__).with_name(request.module.EXPORTER)
    subprocess.run([exporter_python, script, root], check=True, capture_output=True)
    return root
