"""A job of bulk inference begun again, and one whose server fails, against a server that notes what it is asked."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from quadriga.engine.jobs import bulk_inference
from quadriga.engine.jobs.bulk_inference import run_bulk_inference
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.jobs.runner import JobRun
from quadriga.store.records.errors import QueryError, StoreError
from tests.background import listening
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness


class Server:
    """What the server was asked, and how it behaves."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.behaviour: dict[str, list[int]] = {}
        """Statuses of the requests for an image, in order; 0 ends the connection."""
        self.ready = [200]
        self.bodies: list[dict[str, Any]] = []


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(server.ready.pop(0) if len(server.ready) > 1 else server.ready[0], {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            text = json.loads(body[: int(self.headers["Inference-Header-Content-Length"])])
            parameters = text["inputs"][0]["parameters"]
            path = json.loads(parameters["metadata"])["path"]
            server.asked[path] += 1
            server.bodies.append(parameters)
            statuses = server.behaviour.get(path)
            status = statuses.pop(0) if statuses else 200
            if status == 0:
                self.close_connection = True
                return
            output = {"data": [[]], "parameters": {"inference_id": f"id of {path}"}}
            self.answer(status, {"outputs": [output]} if status == 200 else {"error": "refused"})

        def answer(self, status: int, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with listening(Handler) as address:
        yield f"http://{address}"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_inference, "_RETRY_S", 0.01)
    monkeypatch.setattr(bulk_inference, "IN_FLIGHT_S", 0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "allowed").mkdir()
    for name in "abcdef":
        (tmp_path / "allowed" / f"{name}.png").write_bytes(b"image")
    return tmp_path / "allowed"


@pytest.fixture
def run(store: StoreHarness, tmp_path: Path) -> JobRun:
    parameters = {"model": "m", "source": ".", "parameters": {"top_k": 2}, "metadata": {"a": 1}}
    jobs = Jobs(tmp_path / "jobs")
    job = jobs.submit("bulk-inference", parameters)
    directory = jobs.directory / job.id
    store.writer.drain()
    return JobRun(job, directory, store.inferences, store.blobs, threading.Event())


def outcomes(run: JobRun) -> dict[str, Any]:
    lines = (run.directory / "images.jsonl").read_text().splitlines()
    return {line.pop("path"): line for line in map(json.loads, lines)}


pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_every_image_is_asked_once_with_the_jobs_metadata(url, server, folder, run) -> None:
    assert run_bulk_inference(run, url=url, folder=str(folder), max_bytes=100) == "images.jsonl"
    paths = [f"{name}.png" for name in "abcdef"]
    assert server.asked == dict.fromkeys(paths, 1)
    assert list(outcomes(run)) == paths
    assert outcomes(run)["c.png"] == {"inference_id": "id of c.png"}
    metadata = [json.loads(parameters["metadata"]) for parameters in server.bodies]
    assert all(entry["a"] == 1 and entry["job_id"] == run.job.id for entry in metadata)
    assert {parameters["top_k"] for parameters in server.bodies} == {2}
    assert (run.job.progress.done, run.job.progress.total) == (6, 6)


def test_a_job_that_is_begun_again_asks_for_no_image_twice(
    url, server, folder, run, store: StoreHarness
) -> None:
    """Images were answered, refused, stored but not noted, on their way, or cut off while noted."""
    noted = [
        {"path": "a.png", "sent": True},
        {"path": "b.png", "sent": True},
        {"path": "c.png", "sent": True},
        {"path": "d.png", "sent": True},
        {"path": "a.png", "inference_id": "1"},
        {"path": "b.png", "error": "refused before"},
        {"path": "gone.png", "inference_id": "2"},
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in noted) + '{"path": "e.png", "infer'
    (run.directory / "progress.jsonl").write_text(text)
    metadata = {"job_id": run.job.id, "path": "c.png"}
    store.commit(
        make_record(3, metadata=metadata),
        make_record(4, metadata={"job_id": "another", "path": "d.png"}),
    )
    run_bulk_inference(run, url=url, folder=str(folder), max_bytes=100)
    assert server.asked == {"d.png": 1, "e.png": 1, "f.png": 1}
    results = outcomes(run)
    assert results["a.png"] == {"inference_id": "1"}
    assert results["b.png"] == {"error": "refused before"}
    assert results["c.png"] == {"inference_id": "3"}
    assert "gone.png" not in results
    assert run.job.progress.done == 6
    (run.directory / "images.jsonl").unlink()
    run_bulk_inference(run, url=url, folder=str(folder), max_bytes=100)
    assert server.asked.total() == 3
    assert len(outcomes(run)) == 6


def test_failures_are_named_and_the_rest_goes_on(url, server, folder, run) -> None:
    server.behaviour = {"a.png": [400], "b.png": [0, 0, 0], "c.png": [0], "d.png": [503] * 5}
    server.ready = [400, 200]
    (folder / "large.png").write_bytes(bytes(101))
    run_bulk_inference(run, url=url, folder=str(folder), max_bytes=100)
    results = outcomes(run)
    assert {path: result["error"] for path, result in results.items() if "error" in result} == {
        "a.png": "refused (400)",
        "b.png": "the server did not answer 3 times",
        "large.png": "expected an image of at most 100 bytes, got more",
    }
    assert (server.asked["b.png"], server.asked["c.png"], server.asked["d.png"]) == (3, 2, 6)
    log = (run.directory / "log.txt").read_text()
    assert "4 of 7 images answered, 3 failed" in log
    assert "'b.png': the server did not answer 3 times" in log


def test_what_was_stored_without_an_answer_is_not_asked_again(
    url, server, folder, run, store: StoreHarness
) -> None:
    server.behaviour = {"a.png": [0, 0, 0], "b.png": [0, 0, 0]}
    metadata = {"job_id": run.job.id, "path": "a.png"}
    store.commit(make_record(3, metadata=metadata))
    store.commit(make_record(5, metadata=metadata | {"path": "b.png"}, status=500))
    run_bulk_inference(run, url=url, folder=str(folder), max_bytes=100)
    assert outcomes(run)["a.png"] == {"inference_id": "3"}
    assert outcomes(run)["b.png"] == {"error": "the model failed"}
    assert (server.asked["a.png"], server.asked["b.png"]) == (1, 1)


def test_a_job_without_any_answer_fails(url, server, folder, run, monkeypatch) -> None:
    server.behaviour = {f"{name}.png": [400] for name in "abcdef"}
    with pytest.raises(
        QueryError, match=r"none of 6 images was answered: 'a.png': refused \(400\)"
    ):
        run_bulk_inference(run, url=url, folder=str(folder), max_bytes=100)
    (run.directory / "progress.jsonl").unlink()
    server.behaviour = {"c.png": [404]}
    with pytest.raises(StoreError, match=r"refused \(404\)"):
        run_bulk_inference(run, url=url, folder=str(folder), max_bytes=100)
    (run.directory / "progress.jsonl").unlink()
    monkeypatch.setattr(bulk_inference, "PATIENCE_S", 0.02)
    server.behaviour, server.ready = {"a.png": [503]}, [400]
    with pytest.raises(StoreError, match="not ready after"):
        run_bulk_inference(run, url=url, folder=str(folder), max_bytes=100)
