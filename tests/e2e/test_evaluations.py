"""Evaluations of a running server: asked over the wire, told the truth, killed in the middle."""

import json
import re
import subprocess
from typing import Any

import pytest

from quadriga.store.journal.journal import Journal
from quadriga.store.records.records import (
    InferenceRecord,
    InputReference,
    JournaledChange,
    ModelReference,
    TruthStatement,
)
from tests.server_process import IMAGES, ROOT, SAMPLE_MODELS, ServerProcess

PATH = "/v2/models/shapes-detector/infer"


def scenes() -> list[tuple[bytes, list[dict[str, Any]]]]:
    folder = IMAGES / "detection"
    lines = map(json.loads, (folder / "annotations.jsonl").read_text().splitlines())
    return [((folder / line["path"]).read_bytes(), line["annotations"]) for line in lines]


def submit(server: ServerProcess, **parameters: Any) -> str:
    status, job = server.call("POST", "/api/evaluations", parameters)
    assert status == 202, job
    return job["id"]


def report_of(server: ServerProcess, job_id: str) -> dict[str, Any]:
    job = server.ended(job_id)
    assert job["state"] == "succeeded", job
    status, report = server.call("GET", f"/api/reports/{job_id}")
    assert status == 200, report
    return report


def told(report: dict[str, Any]) -> dict[str, Any]:
    """Return what does not depend on when and how it was computed."""
    return {
        name: value for name, value in report.items() if name not in ("id", "created", "provenance")
    }


def number(report: dict[str, Any], type_: str, **parameters: Any) -> Any:
    """Return the value of a metric."""
    (matching,) = (
        metric
        for metric in report["metrics"]
        if metric["type"] == type_
        and all(metric["parameters"].get(name) == value for name, value in parameters.items())
    )
    return matching


def test_what_was_answered_is_evaluated_against_what_is_true(server) -> None:
    ids = []
    for at, (image, truth) in enumerate(scenes()):
        metadata = {"evaluated": True, "camera": {"id": ["north", "south"][at % 2]}, "lux": at}
        ids.append(server.store("shapes-detector", image, metadata=metadata))
        if at:  # nobody looked at the first
            path = f"/api/inferences/{ids[-1]}/ground-truth"
            assert server.call("PUT", path, {"annotations": truth})[0] == 200
    job_id = submit(
        server,
        model="shapes-detector",
        where={"meta.evaluated": True},
        by=["meta.camera.id"],
        slices={"dark": "meta.lux=lt:2"},
        compare=[{"model": "shapes-detector"}],
    )
    report = report_of(server, job_id)
    n = len(ids) - 1
    assert (report["id"], report["task"], report["status"]) == (job_id, "OBJECT_DETECTION", "ok")
    assert report["data"]["current"]["n"] == n
    assert report["data"]["excluded"]["no_truth"] == 1
    ap = number(report, "AP", iou="0.50:0.95", area="all", label=None)
    assert ap["value"] > 0.8
    assert (ap["ci95"], ap["ci_reason"]) == (None, "fewer than 30 images")
    slices = {(slice_["by"], slice_["value"]): slice_["n"] for slice_ in report["slices"]}
    assert slices["dark", "true"] == 1
    assert slices["meta.camera.id", "north"] + slices["meta.camera.id", "south"] == n
    (same,) = report["comparisons"]
    assert same["n"] == n
    assert {metric["value"] for metric in same["differences"]} <= {0, None}
    listed = server.call("GET", "/api/reports")[1]["reports"]
    assert [slice_["n"] for slice_ in listed if slice_["id"] == job_id] == [n]
    status, headers, page = server.request("GET", f"/api/reports/{job_id}/page")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "sandbox" in headers["content-security-policy"]
    assert b"shapes-detector" in page


def test_the_command_of_the_page_submits_a_job(server) -> None:
    page = (ROOT / "docs" / "evaluation-reference.md").read_text()
    (block,) = (
        block
        for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        if "/api/evaluations" in block
    )
    finished = subprocess.run(
        ["bash", "-ec", block.replace("localhost:8080", server.host)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    job = json.loads(finished.stdout)
    assert (job["kind"], job["state"]) == ("evaluation", "queued")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"model": "a", "where": "nothing"}'])
def test_an_evaluation_that_means_nothing_is_refused(server, body: bytes) -> None:
    status, headers, answer = server.request("POST", "/api/evaluations", body)
    assert (status, headers["content-type"]) == (400, "application/json")
    assert list(json.loads(answer)) == ["error"]


def test_an_evaluation_outlives_kills_and_tells_the_same(data) -> None:
    journal = Journal(data / "journal", 900)
    seconds = range(1, 4001)
    for first in range(0, len(seconds), 500):
        journal.append([record for at in seconds[first : first + 500] for record in stored(at)])
    journal.close()
    with ServerProcess(data, SAMPLE_MODELS / "shapes-classifier") as server:
        counting = {"where": {"ground_truth": {"exists": True}}}
        path = "/api/inferences/count"
        server.wait_until(lambda: server.call("POST", path, counting)[1].get("count") == 4000)
        request = {"model": "old", "by": ["meta.camera"], "resamples": 5, "seed": 7}
        expected = told(report_of(server, submit(server, **request)))
        assert expected["data"]["current"]["n"] == 4000
        job_id = submit(server, **request)
        shards = data / "jobs" / job_id / "shards"
        server.wait_until(lambda: list(shards.glob("whole-*")))
        server.kill_child("jobs")
        server.wait_until(
            lambda: "continuing with" in server.call("GET", f"/api/jobs/{job_id}")[1]["log"]
        )
        server.kill_child("jobs")
        assert told(report_of(server, job_id)) == expected
        job = server.call("GET", f"/api/jobs/{job_id}")[1]
        assert job["starts"] == 3
        assert job["log"].count("continuing with the shards that were read before") == 2


def stored(second: int) -> tuple[InferenceRecord, JournaledChange]:
    """Make an answer of a detector of long ago, and its truth."""
    box = {"xmin": 10.0, "ymin": 10.0, "xmax": 60.0 + second % 7, "ymax": 50.0}
    label = "ab"[second % 2]
    record = InferenceRecord(
        seq=second * 1000 << 22,
        request_id=str(second),
        image_no=0,
        model=ModelReference("old", "1", "aa" * 32),
        task="OBJECT_DETECTION",
        action="predict",
        latency_ms=1.0,
        input=InputReference("image", f"blake3:{second:064x}", 640, 480, "image/jpeg"),
        predictions=[{"label": label, "score": 0.5 + second % 5 / 10, **box}],
        metadata={"camera": second % 3},
    )
    truth = {"label": "ab"[second % 3 == 0], **box, "xmax": 60.0}
    statement = TruthStatement("id", str(record.seq), [truth])
    return record, JournaledChange(record.seq + 1, statement)
