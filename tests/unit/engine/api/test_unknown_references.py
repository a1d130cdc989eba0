"""Jobs and schedules that name a report, a model or a baseline that is not there are refused before they are kept."""

import json
from typing import Any

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.store.jobs.jobs import Jobs
from tests.unit.engine.asgi_request import send_request
from tests.unit.engine.drift_reports import MODEL, drift_report, keep_report, numeric

UNKNOWN = "1790000000000000000-abcd"
WINDOW = {"from": "-2d", "to": "-1d"}


def send(server: Application, method: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    response = send_request(server, method, f"/api/{path}", {}, body=json.dumps(body).encode())
    return response.status, response.body.decode()


USES_OF_A_FILTER = [
    ("POST", "exports", lambda where: {"where": where}),
    ("POST", "evaluations", lambda where: {"model": MODEL, "where": where}),
    ("POST", "evaluations", lambda where: {"model": MODEL, "slices": {"some": where}}),
    ("POST", "evaluations", lambda where: {"model": MODEL, "compare": [{"model": MODEL, "where": where}]}),
    ("POST", "drift", lambda where: {"model": MODEL, **WINDOW, "where": where, "baseline": WINDOW}),
    ("POST", "drift", lambda where: {"model": MODEL, **WINDOW, "baseline": WINDOW | {"where": where}}),
    ("PUT", f"models/{MODEL}/baseline", lambda where: {**WINDOW, "where": where}),
    ("PUT", f"models/{MODEL}/drift-schedule", lambda where: {"every": "1d", "where": where}),
    ("PUT", f"models/{MODEL}/evaluation-schedule", lambda where: {"every": "1d", "where": where}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body"), USES_OF_A_FILTER)
@pytest.mark.parametrize(
    ("where", "status", "message"),
    [
        (f"report={UNKNOWN}", 404, f"report not found: {UNKNOWN!r}"),
        (f"status=200 & (report={UNKNOWN} & truth=star)", 404, f"report not found: {UNKNOWN!r}"),
        ("report=../../etc", 404, "report not found: "),
        ("model=shape-detectr", 404, "model not found: "),
        ("truth=star", 400, "beside one report"),
    ],
)
def test_a_filter_of_what_is_not_there_is_refused_at_once(
    server, settings, *, method, path, body, where, status, message
):
    answer, text = send(server, method, path, body(where))
    assert (answer, message in text) == (status, True), text
    assert Jobs(settings.jobs_directory).ids() == []


@pytest.mark.parametrize(("method", "path", "body"), USES_OF_A_FILTER)
def test_a_filter_of_a_report_that_is_there_is_taken(server, settings, method, path, body):
    folder = keep_report(settings, drift_report(1, numeric("score", 5, 7)))
    where = f"report={folder.name} & truth=star"
    assert send(server, method, path, body(where))[0] == 404  # it lists no inferences
    if path.endswith("drift-schedule"):
        assert send(server, "PUT", f"models/{MODEL}/baseline", {"rolling": "7d"})[0] == 200
    (folder / "inferences.jsonl").write_text('{"truth": "star", "predicted": "", "ids": ["7"]}\n')
    answer, text = send(server, method, path, body(where))
    assert answer in {200, 202}, text


@pytest.mark.parametrize("baseline", ["nope", "../default"])
def test_a_baseline_that_is_not_there_is_refused_at_once(server, settings, baseline):
    answer, text = send(server, "POST", "drift", {"model": MODEL, **WINDOW, "baseline": baseline})
    assert answer in {400, 404}, text
    assert Jobs(settings.jobs_directory).ids() == []


SCHEDULE = f"models/{MODEL}/drift-schedule"


@pytest.mark.parametrize("baseline", ["nope", "../default", ""])
def test_a_schedule_of_a_baseline_that_is_not_there_is_refused(server, baseline):
    answer, text = send(server, "PUT", SCHEDULE, {"every": "1d", "baseline": baseline})
    assert answer == 404
    assert "baseline not found: " in text
    assert "create it with `quadriga baseline`" in text
    assert send(server, "GET", SCHEDULE, {})[0] == 404


def test_a_schedule_says_what_became_of_its_baseline(server, settings):
    def state() -> str:
        answer, text = send(server, "GET", SCHEDULE, {})
        assert answer == 200
        return str(json.loads(text)["baseline_state"])

    window, every = f"models/{MODEL}/baseline", {"every": "1d"}
    assert send(server, "PUT", window, WINDOW)[0] == 200
    assert send(server, "PUT", SCHEDULE, every)[0] == 200
    assert state() == "building"
    assert send(server, "PUT", window, {"rolling": "7d"})[0] == 200
    assert state() == "ready"
    assert send(server, "DELETE", f"{window}?baseline=default", {})[0] == 200
    assert state() == "missing"
    assert send(server, "PUT", SCHEDULE, every)[0] == 404  # nor is it replaced
    assert send(server, "PUT", window, WINDOW)[0] == 200
    jobs = Jobs(settings.jobs_directory)
    jobs.cancel(max(jobs.ids()))
    assert state() == "failed"
    answer, text = send(server, "PUT", SCHEDULE, every)
    assert (answer, "the baseline default has failed: its job was cancelled" in text) == (400, True)
    assert send(server, "DELETE", SCHEDULE, {})[0] == 200
