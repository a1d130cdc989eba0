"""Exports as jobs of a running server, and imports beside one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.server_process import ROOT, ServerProcess, image_input

PATH = "/v2/models/shapes-detector/infer"


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


def test_what_was_answered_is_exported_and_imported_into_another_server(tmp_path, photo) -> None:
    with ServerProcess(tmp_path / "one") as first, ServerProcess(tmp_path / "two") as second:
        for number in range(3):
            body = {"inputs": [image_input(photo, metadata={"number": number})]}
            assert first.call("POST", PATH, body)[0] == 200
        job = wait(first, submit(first, format="jsonl", images=True))
        assert (job["state"], job["progress"]) == ("succeeded", {"done": 3, "total": 3})
        status, _, data = first.request("GET", f"/api/jobs/{job['id']}/result")
        assert (status, len(data)) == (200, job["result"]["bytes"])
        (tmp_path / "all.zip").write_bytes(data)
        for _ in range(2):
            assert "3 inferences, 3 images" in command(
                "import", tmp_path / "all.zip", "--data", tmp_path / "two"
            )
        records = second.query({})
        assert records == first.query({})
        assert second.request("GET", f"/api/inferences/{records[0]['id']}/input")[2] == photo

        (tmp_path / "truth.jsonl").write_text(
            json.dumps({"path": "x", "annotations": [{"class_label": "circle"}]})
        )
        flags = ("--as", "ground-truth", "--join", "meta.path", "--data", tmp_path / "two")
        assert "1 ground truths" in command("import", tmp_path / "truth.jsonl", *flags)

        output = tmp_path / "here.jsonl"
        command("export", '{"meta.number": 2}', "--output", output, "--data", tmp_path / "one")
        assert json.loads(output.read_text()) == first.query({"meta.number": 2})[0]


def test_jobs_outlive_kills(tmp_path, photo) -> None:
    with ServerProcess(tmp_path / "data") as server:
        assert server.call("POST", PATH, {"inputs": [image_input(photo)]})[0] == 200
        for _ in range(3):
            for pid in server.child_pids()[1:]:
                if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0jobs\0"):
                    os.kill(pid, signal.SIGKILL)
            job_id = submit(server)
            assert wait(server, job_id)["state"] == "succeeded"
    server.start()
    assert server.call("GET", f"/api/jobs/{job_id}")[1]["state"] == "succeeded"
    assert server.request("GET", f"/api/jobs/{job_id}/result")[2].count(b"\n") == 1
    assert server.stop() == 0
