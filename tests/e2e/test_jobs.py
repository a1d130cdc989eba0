"""Exports as jobs of a running server, and imports beside one."""

import json
import re

from tests.server_process import SAMPLE_MODELS, ServerProcess, quadriga

MODEL = SAMPLE_MODELS / "shapes-classifier"


def submit(server: ServerProcess, **parameters: object) -> str:
    status, job = server.call("POST", "/api/exports", parameters)
    assert status == 202, job
    return job["id"]


def test_what_one_server_answered_is_imported_beside_another(server, tmp_path, photo) -> None:
    filter_ = {"meta.exported": True}
    for number in range(3):
        metadata = {"exported": True, "number": number}
        server.infer("shapes-classifier", photo, metadata=metadata)
    job = server.ended(submit(server, where=filter_, format="jsonl", images=True))
    assert (job["state"], job["progress"]) == ("succeeded", {"done": 3, "total": 3})
    status, _, data = server.request("GET", f"/api/jobs/{job['id']}/result")
    assert (status, len(data)) == (200, job["result"]["bytes"])
    (tmp_path / "all.zip").write_bytes(data)
    exported = tmp_path / "here.jsonl"
    quadriga("export", json.dumps(filter_), "--output", exported, "--data", server.data)
    assert list(map(json.loads, exported.read_text().splitlines())) == server.query(
        filter_, order="ts"
    )

    with ServerProcess(tmp_path / "two", MODEL) as second:
        flags = ("--data", tmp_path / "two")
        assert "3 inferences, 3 images" in quadriga("import", tmp_path / "all.zip", *flags).stdout
        records = second.query({})
        assert records == server.query(filter_)
        assert second.request("GET", f"/api/inferences/{records[0]['id']}/input")[2] == photo
        line = {"path": f"{records[0]['id']}.jpg", "annotations": [{"class_label": "circle"}]}
        (tmp_path / "truth.jsonl").write_text(json.dumps(line))
        flags = ("--as", "ground-truth", *flags)
        assert "1 ground truths" in quadriga("import", tmp_path / "truth.jsonl", *flags).stdout
        assert second.query({})[0]["ground_truth"] == [{"label": "circle"}]


def test_jobs_outlive_kills(tmp_path, photo) -> None:
    with ServerProcess(tmp_path / "data", MODEL) as server:
        server.infer("shapes-classifier", photo)
        for _ in range(2):
            server.kill_child("jobs")
            job_id = submit(server)
            assert server.ended(job_id)["state"] == "succeeded"
    server.start()
    assert server.call("GET", f"/api/jobs/{job_id}")[1]["state"] == "succeeded"
    assert server.request("GET", f"/api/jobs/{job_id}/result")[2].count(b"\n") == 1
    assert server.stop() == 0


def test_metrics_have_every_process(tmp_path) -> None:
    with ServerProcess(tmp_path / "data", MODEL, "--workers", "2") as server:
        text = server.request("GET", "/metrics")[2].decode()
    named = set(
        re.findall(r'^process_resident_memory_bytes\{process="([^"]+)"\} ', text, re.MULTILINE)
    )
    assert named == {"supervisor", "worker-0", "worker-1", "writer", "jobs"}
