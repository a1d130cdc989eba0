"""Exports as jobs of a running server, and imports beside one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess, image_input

PATH = "/v2/models/shapes-classifier/infer"
MODEL = SAMPLE_MODELS / "shapes-classifier"


def submit(server: ServerProcess, **parameters: object) -> str:
    status, job = server.call("POST", "/api/exports", parameters)
    assert status == 202, job
    return job["id"]


def wait(server: ServerProcess, job_id: str) -> dict[str, object]:
    server.wait_until(lambda: server.call("GET", f"/api/jobs/{job_id}")[1]["ended_at"])
    return server.call("GET", f"/api/jobs/{job_id}")[1]


def command(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "engine.cli", *map(str, arguments)],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_one_server_answered_is_imported_beside_another(server, tmp_path, photo) -> None:
    where = {"meta.exported": True}
    for number in range(3):
        metadata = {"exported": True, "number": number}
        body = {"inputs": [image_input(photo, metadata=metadata)]}
        assert server.call("POST", PATH, body)[0] == 200
    job = wait(server, submit(server, where=where, format="jsonl", images=True))
    assert (job["state"], job["progress"]) == ("succeeded", {"done": 3, "total": 3})
    status, _, data = server.request("GET", f"/api/jobs/{job['id']}/result")
    assert (status, len(data)) == (200, job["result"]["bytes"])
    (tmp_path / "all.zip").write_bytes(data)
    here = tmp_path / "here.jsonl"
    command("export", json.dumps(where), "--output", here, "--data", server.data)
    assert list(map(json.loads, here.read_text().splitlines())) == server.query(where, order="ts")

    with ServerProcess(tmp_path / "two", MODEL) as second:
        flags = ("--data", tmp_path / "two")
        assert "3 inferences, 3 images" in command("import", tmp_path / "all.zip", *flags)
        records = second.query({})
        assert records == server.query(where)
        assert second.request("GET", f"/api/inferences/{records[0]['id']}/input")[2] == photo
        line = {"path": f"{records[0]['id']}.jpg", "annotations": [{"class_label": "circle"}]}
        (tmp_path / "truth.jsonl").write_text(json.dumps(line))
        flags = ("--as", "ground-truth", *flags)
        assert "1 ground truths" in command("import", tmp_path / "truth.jsonl", *flags)
        assert second.query({})[0]["ground_truth"] == [{"label": "circle"}]


def test_jobs_outlive_kills(tmp_path, photo) -> None:
    with ServerProcess(tmp_path / "data", MODEL) as server:
        assert server.call("POST", PATH, {"inputs": [image_input(photo)]})[0] == 200
        for _ in range(2):
            for pid in server.child_pids()[1:]:
                if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0jobs\0"):
                    os.kill(pid, signal.SIGKILL)
            job_id = submit(server)
            assert wait(server, job_id)["state"] == "succeeded"
    server.start()
    assert server.call("GET", f"/api/jobs/{job_id}")[1]["state"] == "succeeded"
    assert server.request("GET", f"/api/jobs/{job_id}/result")[2].count(b"\n") == 1
    assert server.stop() == 0
