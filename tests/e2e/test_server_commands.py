"""Commands that ask a server for its jobs, reports and schedules."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_process import SAMPLE_MODELS, ServerProcess, quadriga

MODEL = "shapes-detector"


@pytest.fixture(scope="module")
def serving(tmp_path_factory, photo, photo_truth) -> Iterator[ServerProcess]:
    """A server with an inference, its ground truth, an evaluation, an export, and two schedules."""
    folder = tmp_path_factory.mktemp("commands")
    with ServerProcess(folder / "data", SAMPLE_MODELS / MODEL) as server:
        server.infer(MODEL, photo)
        (stored,) = server.query({})
        path = f"/api/inferences/{stored['id']}/ground-truth"
        assert server.call("PUT", path, {"annotations": photo_truth})[0] == 200
        for path, body in (("evaluations", {"model": MODEL}), ("exports", {"format": "jsonl"})):
            status, job = server.call("POST", f"/api/{path}", body)
            assert status == 202, job
            assert server.ended(job["id"])["state"] == "succeeded"
        window = {"from": "-1d", "to": "now"}
        assert server.call("PUT", f"/api/models/{MODEL}/baseline", window)[0] in {200, 202}
        hooks = [{"url": "https://alerts.example/a"}]
        put = server.call(
            "PUT", f"/api/models/{MODEL}/drift-schedule", {"every": "1d", "webhooks": hooks}
        )
        assert put[0] == 200, put
        put = server.call("PUT", f"/api/models/{MODEL}/evaluation-schedule", {"every": "1d"})
        assert put[0] == 200, put
        yield server


def asked(server: ServerProcess, *words: object, code: int = 0) -> str:
    wide = {**os.environ, "COLUMNS": "200"}
    finished = quadriga(*words, "--server", f"http://{server.host}", code=code, env=wide)
    return finished.stdout + finished.stderr


def jobs_of(server: ServerProcess, kind: str) -> list[dict[str, object]]:
    jobs = json.loads(asked(server, "jobs", "--json"))["jobs"]
    return [job for job in jobs if job["kind"] == kind]


def test_jobs_are_listed_shown_and_waited_for(serving, tmp_path):
    (job,) = jobs_of(serving, "export")
    assert re.search(rf"{job['id']} +export +succeeded +1 of 1 ", asked(serving, "jobs"))
    assert asked(serving, "jobs", "--state", "failed") == "no jobs\n"
    shown = asked(serving, "jobs", "show", job["id"])
    assert "state: succeeded" in shown
    assert "parameter format: jsonl" in shown
    assert json.loads(asked(serving, "jobs", "wait", job["id"], "--json"))["id"] == job["id"]
    output = tmp_path / "a.jsonl"
    assert asked(serving, "jobs", "result", job["id"], "--output", output).endswith(" bytes\n")
    assert json.loads(output.read_text())["model"]["name"] == MODEL
    assert asked(serving, "jobs", "result", job["id"], "--output", "-") == output.read_text()


def test_a_job_that_did_not_succeed_fails_who_waits_for_it(serving):
    body = {"model": MODEL, "where": {"meta.none": 1}}
    status, job = serving.call("POST", "/api/evaluations", body)
    assert status == 202, job
    assert "state: failed" in asked(serving, "jobs", "wait", job["id"], code=1)


@pytest.mark.parametrize("word", ["show", "wait", "cancel"])
def test_an_unknown_job_is_an_error_of_one_line(serving, word):
    text = asked(serving, "jobs", word, "../models", code=2)
    assert text.startswith("quadriga: ")
    assert "(404)" in text
    assert text.count("\n") == 1


def test_a_command_of_a_group_asks_the_server_of_the_group(serving):
    (job,) = jobs_of(serving, "export")
    shown = quadriga("jobs", "--server", f"http://{serving.host}", "show", job["id"]).stdout
    assert f"id: {job['id']}" in shown


def test_reports_are_listed_and_written(serving, tmp_path: Path):
    (job,) = [job for job in jobs_of(serving, "evaluation") if job["state"] == "succeeded"]
    assert re.search(rf"{job['id']} +evaluation +{MODEL} +1 ", asked(serving, "reports"))
    assert asked(serving, "reports", "--model", "other") == "no reports\n"
    assert job["id"] in asked(serving, "reports", "--model", f"M-{MODEL.upper()}")
    files = [tmp_path / f"r.{ending}" for ending in ("html", "json", "md", "xml")]
    outputs = [word for file in files for word in ("--output", file)]
    assert f"{MODEL} 1" in asked(serving, "reports", "show", job["id"], *outputs)
    page, report, text, cases = (file.read_text() for file in files)
    assert page.startswith("<!DOCTYPE html>")
    assert json.loads(report)["id"] == job["id"]
    assert text.startswith("### ")
    assert cases.startswith("<testsuites")


def test_schedules_are_listed_with_who_is_alerted(serving):
    text = asked(serving, "schedules")
    assert re.search(rf"{MODEL} +drift +1d .*https://alerts.example/a +0", text)
    assert re.search(rf"{MODEL} +evaluation +1d ", text)
    listed = json.loads(asked(serving, "schedules", "--json"))["schedules"]
    assert [schedule["kind"] for schedule in listed] == ["drift", "evaluation"]
    path, window = f"/api/models/{MODEL}/baseline", {"from": "-1d", "to": "now"}
    assert serving.call("DELETE", f"{path}?baseline=default")[0] == 200
    assert "none: its baseline default is missing" in asked(serving, "schedules")
    assert serving.call("PUT", path, window)[0] in {200, 202}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell):
    assert "_QUADRIGA_COMPLETE" in quadriga("completion", shell).stdout


def test_a_damaged_report_is_named_below_the_others(serving):
    (job,) = [job for job in jobs_of(serving, "evaluation") if job["state"] == "succeeded"]
    jobs_folder = Path(serving.data) / "jobs"
    damaged = jobs_folder / "1000000000000000000-0001"
    shutil.copytree(jobs_folder / str(job["id"]), damaged)
    described = (damaged / "job.json").read_bytes()
    (damaged / "job.json").write_bytes(
        described.replace(str(job["id"]).encode(), damaged.name.encode())
    )
    (damaged / "report.json").write_bytes(b"{")
    try:
        table = asked(serving, "reports")
        listed = json.loads(asked(serving, "reports", "--json"))
    finally:
        shutil.rmtree(damaged)
    assert f"report {damaged.name} is damaged, or of a newer version\n" in table
    assert str(job["id"]) in table
    assert ([report["id"] for report in listed["reports"]], listed["unreadable"]) == (
        [job["id"]],
        [damaged.name],
    )
