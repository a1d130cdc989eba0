"""The Python that runs the exporters: asked for by name, so that a run that lacks it fails."""

import os

import pytest


@pytest.fixture(scope="session")
def exporter_python() -> str:
    """The Python that `EXPORTER_PYTHON` names."""
    named = os.environ.get("EXPORTER_PYTHON", "")
    assert named, "expected EXPORTER_PYTHON to name a Python with torch, got none"
    return named
