"""Reports that commands compute beside a running server, which shows them; and jobs that call a webhook at their end."""

import json
from collections.abc import Iterator

import pytest

from tests.server_process import SAMPLE_MODELS, ServerProcess, quadriga
from tests.unit.monitor.drift.window_reports import receiver

MODEL = "shapes-classifier"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shape) -> Iterator[ServerProcess]:
    """Serve a model with twelve stored inferences, each with its truth."""
    image, label = shape
    data = tmp_path_factory.mktemp("kept") / "data"
    with ServerProcess(data, SAMPLE_MODELS / MODEL, "--webhook-hosts", "127.0.0.1") as running:
        for number in range(12):
            id_ = running.store(MODEL, image, metadata={"number": number})
            truth = {"annotations": [{"label": label}]}
            assert running.call("PUT", f"/api/inferences/{id_}/ground-truth", truth)[0] == 200
        yield running
        assert running.call("GET", "/v2/health/ready")[0] == 200


def model_page(server: ServerProcess) -> str:
    status, _, page = server.request("GET", f"/console/models/{MODEL}")
    assert status == 200
    return page.decode()


def test_what_commands_find_in_the_data_folder_is_shown_by_the_server(server) -> None:
    assert "not evaluated" in model_page(server)
    here = ("--model", MODEL, "--data", server.data)
    evaluation = json.loads(quadriga("evaluate", *here, "--json").stdout)
    baseline = json.loads(quadriga("baseline", *here, "--json").stdout)
    assert (baseline["state"], baseline["n"]) == ("ready", 12)
    drift = json.loads(quadriga("drift", *here, "--json").stdout)
    for report in (evaluation, drift):
        assert server.call("GET", f"/api/reports/{report['id']}")[1] == report
        assert server.request("GET", f"/console/reports/{report['id']}")[0] == 200
        assert server.request("GET", f"/api/reports/{report['id']}/page")[0] == 200
        job = server.call("GET", f"/api/jobs/{report['id']}")[1]
        assert (job["state"], job["kind"], job["starts"]) == ("succeeded", report["kind"], 1)
    assert "not evaluated" not in model_page(server)
    saved = server.call("GET", f"/api/models/{MODEL}/baseline")[1]["baselines"]
    assert [(entry["name"], entry["state"], entry["n"]) for entry in saved] == [
        ("default", "ready", 12)
    ]
    with_truth = server.call("GET", f"/api/reports/{evaluation['id']}/inferences")[1]
    assert len(with_truth["inferences"]) == 12


def test_a_server_is_asked_with_the_same_flag_by_each_command(server) -> None:
    there = ("--model", MODEL, "--server", server.host)
    quadriga("baseline", *there)
    ids = [
        json.loads(quadriga(command, *there, "--json").stdout)["id"]
        for command in ("evaluate", "drift")
    ]
    listed = [report["id"] for report in server.call("GET", "/api/reports")[1]["reports"]]
    assert listed[:2] == ids[::-1]
    assert f"Kept as report {ids[0][:3]}" in quadriga("evaluate", *there).stdout


def test_a_job_calls_its_webhook_at_its_end(server) -> None:
    where = {"model": MODEL}
    with receiver() as hook:
        hook.first = [503]
        bodies = (
            ("evaluations", {"model": MODEL}, "succeeded"),
            ("exports", {"where": where}, "succeeded"),
            ("drift", {"model": MODEL, "baseline": {"to": "-1d"}}, "failed"),
        )
        jobs = {}
        for path, body, state in bodies:
            status, job = server.call("POST", f"/api/{path}", {**body, "webhook": hook.url})
            assert status == 202, job
            jobs[job["id"]] = state
        server.wait_until(lambda: len(hook.got) == 4)
    told = {}
    for headers, body in hook.got:
        assert headers["Quadriga-Delivery"].startswith(f"{json.loads(body)['job']}-ended-")
        told[json.loads(body)["job"]] = json.loads(body)
    assert {id_: message["state"] for id_, message in told.items()} == jobs
    evaluation, export, drift = (told[id_] for id_ in jobs)
    assert evaluation["kind"] == "evaluation"
    assert server.call("GET", evaluation["report"])[1]["id"] == evaluation["job"]
    assert server.request("GET", export["result"])[2].count(b"\n") == 12
    assert (export["report"], drift["report"], drift["result"]) == (None, None, None)
    assert "has no inferences in the baseline" in drift["error"]
    status, refusal = server.call(
        "POST", "/api/exports", {"where": where, "webhook": "http://10.0.0.1/"}
    )
    assert status == 400
    assert "expected the host of webhook to be an address that the setting" in refusal["error"]
