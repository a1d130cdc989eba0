"""A model run over a folder and a zip by a job of a running server, also through deaths of its processes."""

import json
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import pytest

from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess

MODEL = "shapes-classifier"
PHOTOS = sorted((IMAGES / "classification").glob("*.jpg"))
LARGE_PHOTOS = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    allowed = tmp_path_factory.mktemp("allowed")
    data = tmp_path_factory.mktemp("bulk") / "data"
    with ServerProcess(data, SAMPLE_MODELS / MODEL, "--bulk-folder", str(allowed)) as running:
        yield running


@pytest.fixture
def folder(server: ServerProcess, request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own below the one that the server may read, with three photos."""
    made = Path(server.flags[1]) / f"set-{request.node.name}"
    made.mkdir()
    for photo in PHOTOS[:3]:
        shutil.copy(photo, made)
    return made


def submit(server: ServerProcess, **parameters: Any) -> str:
    status, job = server.call("POST", "/api/inferences/bulk", {"model": MODEL, **parameters})
    assert status == 202, job
    assert (job["kind"], job["parameters"]["model"]) == ("bulk-inference", MODEL)
    return job["id"]


def results(server: ServerProcess, job_id: str) -> list[dict[str, Any]]:
    status, _, data = server.request("GET", f"/api/jobs/{job_id}/result")
    assert status == 200
    return [json.loads(line) for line in data.splitlines()]


def test_a_folder_and_a_zip_become_ordinary_inferences(server: ServerProcess, folder: Path) -> None:
    (folder / "broken.jpg").write_bytes(b"no image")
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w") as archive:
        archive.write(PHOTOS[0], "below/first.jpg")
    for source, paths in (
        (folder.name, [photo.name for photo in PHOTOS[:3]]),
        (f"{folder.name}.zip", ["below/first.jpg"]),
    ):
        metadata = {"campaign": source}
        parameters = {"action": "predict_proba"}
        job_id = submit(server, source=source, metadata=metadata, parameters=parameters)
        job = server.ended(job_id)
        assert job["state"] == "succeeded", job
        records = server.query({"meta.job_id": job_id})
        assert sorted(record["metadata"]["path"] for record in records) == sorted(paths)
        assert {record["metadata"]["campaign"] for record in records} == {source}
        assert {record["action"] for record in records} == {"predict_proba"}
        ids = {
            line["path"]: line["inference_id"]
            for line in results(server, job_id)
            if "error" not in line
        }
        assert ids == {record["metadata"]["path"]: record["id"] for record in records}
        failed = [line["path"] for line in results(server, job_id) if "error" in line]
        assert failed == (["broken.jpg"] if source == folder.name else [])
        assert f"{len(paths)} of {len(paths) + len(failed)} images answered" in job["log"]
        total = len(paths) + len(failed)
        assert job["progress"] == {"done": total, "total": total}


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"source": "../data"}, 400, "folder or zip not found below the bulk_folder"),
        ({"source": "none"}, 400, "folder or zip not found below the bulk_folder"),
        ({"source": ".", "model": "shapes-clasifier"}, 404, "did you mean shapes-classifier"),
        ({"source": ".", "threads": 2}, 400, "threads"),
        ({}, 400, "source"),
    ],
)
def test_wrong_requests_are_refused(server: ServerProcess, body, status, error) -> None:
    jobs = server.call("GET", "/api/jobs")
    answer = server.call("POST", "/api/inferences/bulk", {"model": MODEL, **body})
    assert answer[0] == status
    assert error in answer[1]["error"]
    assert server.call("GET", "/api/jobs") == jobs


def test_an_unknown_version_fails_the_job(server: ServerProcess, folder: Path) -> None:
    job = server.ended(submit(server, source=folder.name, version="7"))
    assert job["state"] == "failed"
    assert "expected a version of" in job["error"]


def test_without_the_setting_it_is_off(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS / MODEL) as running:
        body = {"model": MODEL, "source": "."}
        status, answer = running.call("POST", "/api/inferences/bulk", body)
    assert (status, answer["error"]) == (
        400,
        "bulk inference is off: the setting bulk_folder names no folder",
    )


@pytest.mark.parametrize("role", ["jobs", "0", "everything"])
def test_deaths_make_no_image_be_asked_twice(
    server: ServerProcess, folder: Path, role: str
) -> None:
    """The process of jobs dies, or the worker, or the server is stopped and started again.

    The photos are large, so that the job is at work for seconds after its first record.
    """
    large = cv2.resize(cv2.imread(str(PHOTOS[0])), (4000, 3000))
    cv2.imwrite(str(folder / "000.jpg"), large)
    for number in range(1, LARGE_PHOTOS):
        os.link(folder / "000.jpg", folder / f"{number:03}.jpg")
    total = LARGE_PHOTOS + 3
    job_id = submit(server, source=folder.name)
    path = f"/api/jobs/{job_id}"
    server.wait_until(lambda: server.query({"meta.job_id": job_id}, limit=1))
    if role == "everything":
        assert server.stop() == 0
        server.start()
    elif role == "jobs":
        server.kill_child("jobs")
    else:
        server.kill_child("worker")
        server.wait_until(lambda: server.call("GET", "/v2/health/ready")[0] == 200)
    job = server.ended(job_id)
    assert job["state"] == "succeeded", job
    assert job["starts"] == (2 if role == "jobs" else 1), job
    assert server.call("GET", path)[1]["progress"] == {"done": total, "total": total}
    records = server.query({"meta.job_id": job_id})
    counts = Counter(record["metadata"]["path"] for record in records)
    assert len(counts) == total
    assert set(counts.values()) == {1}
    lines = results(server, job_id)
    assert {line["inference_id"] for line in lines} == {record["id"] for record in records}
