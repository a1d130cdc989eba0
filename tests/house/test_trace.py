"""How many of our files a request enters, with all that follows it: a figure to watch."""

import os
import time
from pathlib import Path

import pytest

from tests.server_process import IMAGES, ROOT, SAMPLE_MODELS, ServerProcess

PACKAGES = ("client/", "engine/", "extras/", "monitor/", "proto/", "store/", "tasks/")
FOLLOWS_S = 2.0
"""How long what follows an answer may take: the writer, the signals of the image."""
REQUESTS = {
    "an inference of a JPEG": ("POST", "/v2/models/shapes-detector/infer"),
    "a query": ("GET", "/api/inferences?meta.camera=north"),
    "the list page": ("GET", "/console/inferences"),
    "the overview": ("GET", "/console/"),
    "an evaluation": ("POST", "/api/evaluations"),
    "the page of an evaluation": ("GET", "/console/reports/{report}"),
    "the comparison of two models": (
        "GET",
        "/console/compare?a=shapes-classifier:1&b=shapes-detector:1",
    ),
}
MOST = {
    "an inference of a JPEG": 36,
    "a query": 22,
    "the list page": 36,
    "the overview": 39,
    "an evaluation": 45,
    "the page of an evaluation": 25,
    "the comparison of two models": 37,
}
"""Files entered at most. Lower a figure when the code goes below it; never raise it without a reason."""


class TracedServer:
    """A server whose processes note which files they enter."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.server = ServerProcess(folder / "data", SAMPLE_MODELS)
        self.server.environment = {
            "PYTHONPATH": str(Path(__file__).with_name("entered_files")),
            "ENTERED_FILES": str(self.notes),
            "ENTERED_ROOT": str(ROOT),
        }

    def entered(self, work) -> set[str]:
        """Return the files that are entered while something is done, and shortly after."""
        for path in self.notes.glob("*.txt"):
            path.unlink()
        (self.notes / "on").touch()
        time.sleep(0.2)
        work()
        time.sleep(FOLLOWS_S)
        (self.notes / "on").unlink()
        children = self.server.child_pids()
        self.server.wait_until(
            lambda: all((self.notes / f"{pid}.txt").exists() for pid in children)
        )
        files = {name for path in self.notes.glob("*.txt") for name in path.read_text().split("\n")}
        return {name for name in files if name.startswith(PACKAGES)}


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    traced = TracedServer(tmp_path_factory.mktemp("traced"))
    with traced.server as server:
        image = (IMAGES / "detection" / "scene_05.jpg").read_bytes()
        for _ in range(3):  # what is made once is made
            server.store("shapes-detector", image, metadata='{"camera": "north"}')
            server.store("shapes-classifier", image, metadata='{"camera": "north"}')
        yield traced


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_enters_few_files(traced, name) -> None:
    server, (method, path) = traced.server, REQUESTS[name]
    image = (IMAGES / "detection" / "scene_05.jpg").read_bytes()
    if "{report}" in path:
        job = server.call("POST", "/api/evaluations", {"model": "shapes-detector"})[1]
        path = path.format(report=server.ended(job["id"])["id"])

    def ask() -> None:
        if name == "an evaluation":
            server.ended(server.call(method, path, {"model": "shapes-detector"})[1]["id"])
            return
        body = image if method == "POST" else None
        status, _, answer = server.request(
            method, path, body, {"Content-Type": "image/jpeg"} if body else {}
        )
        assert status == 200, answer

    ask()
    time.sleep(2 * FOLLOWS_S)
    by_itself = traced.entered(lambda: None)
    # Twice, as what a server does now and then is entered once at most.
    files = sorted(traced.entered(ask) & traced.entered(ask) - by_itself)
    if folder := os.environ.get("ENTERED_LISTS"):
        Path(folder, f"{name}.txt").write_text("\n".join(files) + "\n")
        Path(folder, f"{name}.self").write_text("\n".join(by_itself) + "\n")
    assert 5 < len(files) <= MOST[name], "\n".join(files)
