"""One running server for the tests that only ask it, and a browser for those that look at its pages."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.server_process import IMAGES, ServerProcess


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve the sample models."""
    running = ServerProcess(tmp_path_factory.mktemp("server") / "data").start()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Open a browser for the tests of a file."""
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def photo() -> bytes:
    """A JPEG of the detector's sample images."""
    return (IMAGES / "detection" / "scene_01.jpg").read_bytes()


@pytest.fixture(scope="session")
def photo_truth() -> list[dict[str, object]]:
    """What is on `photo`."""
    line = (IMAGES / "detection" / "annotations.jsonl").read_text().splitlines()[0]
    truth: list[dict[str, object]] = json.loads(line)["annotations"]
    return truth


@pytest.fixture(scope="session")
def shape() -> tuple[bytes, str]:
    """An image of the classifier's with its label."""
    folder = IMAGES / "classification"
    row = json.loads((folder / "annotations.jsonl").read_text().splitlines()[0])
    return (folder / row["path"]).read_bytes(), row["annotations"][0]["class_label"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder for a server of the test's own."""
    return tmp_path / "data"
