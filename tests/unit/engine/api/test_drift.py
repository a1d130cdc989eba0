"""Drift reports and baselines as jobs, over HTTP."""

import json

import msgspec
import numpy as np
import pytest

from quadriga.engine.api.monitoring.drift import drift_routes
from quadriga.engine.api.monitoring.evaluations import evaluation_routes
from quadriga.monitor.drift.baselines import Baseline, BaselineStore
from quadriga.monitor.drift.parameters import DriftParameters
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.drift.similarity import References
from quadriga.monitor.drift.watch.schedules import read_history
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Report
from quadriga.store.database.database import migrate
from quadriga.store.jobs import runner as runner_module
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.records.records import (
    ImageSignals,
    InputReference,
    ModelReference,
    SignalsOfImages,
)
from tests.background import until
from tests.unit.engine.api.test_evaluations import finished, runner
from tests.unit.http_client import client_of
from tests.unit.monitor.drift.window_reports import id_at_second, time_at_second
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

MODEL = ModelReference("one", "1", "aa" * 32)
PATH = "/api/models/one/baseline"
LATER = 1000


def fill(store, seconds, shift=0.0, model=MODEL, **metadata):
    draw = np.random.default_rng(min(seconds))
    store.commit(
        *(
            make_record(
                id_at_second(second),
                model=model,
                input=InputReference("image", f"blake3:{second:064x}", 640, 480, "image/jpeg"),
                predictions=[{"label": "a", "score": float(draw.uniform(0.3, 0.6) + shift)}],
                metadata=metadata,
            )
            for second in seconds
        )
    )
    values = draw.normal(shift, 1, (len(seconds), 8)).astype("<f2")
    records = [
        ImageSignals(id_at_second(second), b"", score.tobytes(), "ab" * 8)
        for second, score in zip(seconds, values, strict=True)
    ]
    store.commit_changes(SignalsOfImages(records))


@pytest.fixture
def store(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    migrate(url)
    harness = StoreHarness(tmp_path, url)
    fill(harness, range(1, 151))
    fill(harness, range(LATER, LATER + 60), shift=0.3)
    yield harness
    harness.close()


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(runner_module, "POLL_INTERVAL_S", 0.005)
    return Jobs(tmp_path / "jobs")


@pytest.fixture
def baselines(tmp_path):
    return BaselineStore(tmp_path / "baselines")


@pytest.fixture
def client(jobs, store, baselines):
    drift = DriftService(jobs, store.inferences, baselines)
    handlers = [*evaluation_routes(jobs, store.inferences, ReportStore(jobs)), *drift_routes(drift)]
    with client_of(handlers) as http_client:
        yield http_client


def put(client, **body):
    answer = client.put(PATH, content=json.dumps(body))
    assert answer.status_code == 200, answer.text
    return answer.json()


def listed(client):
    return {baseline["name"]: baseline for baseline in client.get(PATH).json()["baselines"]}


def submit(client, **body):
    answer = client.post("/api/drift", content=json.dumps({"model": "one", **body}))
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def report_of(jobs, store, job_id):
    job = finished(jobs, store, job_id)
    assert job.state == "succeeded", job
    return msgspec.json.decode(jobs.result(job_id).read_bytes(), type=Report)


def test_a_baseline_is_built_and_a_window_compared_with_it(client, jobs, store, tmp_path):
    response = put(client, to=time_at_second(LATER), version="1")
    assert (response["name"], response["state"], response["n"]) == ("default", "building", 0)
    assert response["version"] == "1"
    job_id = submit(client, **{"from": time_at_second(LATER)})
    report = report_of(jobs, store, job_id)
    assert (report.id, report.kind, report.status) == (job_id, "drift", "drift")
    assert {signal.name for signal in report.signals if signal.alarm} >= {"score", "embedding"}
    assert (report.data.baseline.n, report.data.current.n) == (150, 60)
    assert report.data.baseline.end == time_at_second(150)
    assert len(report.unlike) == 12
    baseline = listed(client)["default"]
    assert (baseline["state"], baseline["n"], baseline["sha256"]) == ("ready", 150, "aa" * 32)
    assert (baseline["version"], baseline["references"]) == ("1", 150)
    references = References.read(tmp_path / "baselines" / "one" / "default.similarity")
    assert (len(references.ids), references.space) == (150, "ab" * 8)
    (summary,) = client.get("/api/reports").json()["reports"]
    assert (summary["id"], summary["status"], summary["n"]) == (job_id, "drift", 60)
    assert "score" in client.get(f"/api/reports/{job_id}/page").text


def test_the_filter_of_a_saved_baseline_is_no_drift(client, jobs, store):
    fill(store, range(3000, 3150), run="a", lane=1)
    fill(store, range(4000, 4150), shift=0.3, run="b", lane=2)
    finished(jobs, store, put(client, name="run-a", where={"meta.run": "a"})["job"])
    for baseline, lane in (("run-a", True), ({"where": "meta.run=a & meta.lane=1"}, False)):
        report = report_of(jobs, store, submit(client, baseline=baseline, where="meta.run=b"))
        names = ["meta.run"] if lane else ["meta.lane", "meta.run"]
        assert report.parameters["left_out"] == dict.fromkeys(names, "fixed by the filter")
        alarms = {signal.name for signal in report.signals if signal.alarm}
        assert alarms == {"embedding", "score"} | ({"meta.lane"} if lane else set())


def test_baselines_are_listed_by_name(tmp_path):
    baselines = BaselineStore(tmp_path)
    for name in ("z", "a-b", "a", "a.b"):
        baselines.save_pending(Baseline(name, "one", "ready", "2026-01-01T00:00:00Z"))
    assert [baseline.name for baseline in baselines.all("one")] == ["a", "a-b", "a.b", "z"]


def test_a_baseline_is_stale_once_another_model_answers(client, jobs, store):
    finished(jobs, store, put(client)["job"])
    assert listed(client)["default"]["state"] == "ready"
    fill(store, range(2000, 2002), model=ModelReference("one", "2", "bb" * 32))
    assert listed(client)["default"]["state"] == "stale"
    report = report_of(jobs, store, submit(client, **{"from": time_at_second(LATER)}))
    assert report.parameters["baseline_sha256"] == "aa" * 32


def test_a_baseline_of_nothing_has_failed_and_says_why(client, jobs, store):
    finished(jobs, store, put(client, where="meta.x=1", name="none")["job"])
    baseline = listed(client)["none"]
    assert baseline["state"] == "failed"
    assert baseline["error"] == "the model 'one' has no inferences in the baseline"
    answer = client.post("/api/drift", content='{"model": "one", "baseline": "none"}')
    assert answer.status_code == 400
    assert (
        "the baseline none has failed: the model 'one' has no inferences" in answer.json()["error"]
    )


def test_of_two_baselines_of_one_name_the_newer_wins(client, jobs, store, baselines):
    older, newer = put(client, name="a"), put(client, name="a", to=time_at_second(LATER))
    assert jobs.read(older["job"]).state == "cancelled"
    finished(jobs, store, newer["job"])
    assert (listed(client)["a"]["job"], listed(client)["a"]["n"]) == (newer["job"], 150)
    summary = baselines.read_summary("one", "a")
    first = msgspec.convert(older, Baseline)
    assert baselines.save_ready(first, summary) is None
    assert baselines.save_pending(first).job == newer["job"]


def test_a_baseline_that_is_removed_is_gone(client, jobs, store, tmp_path):
    response = put(client)
    assert client.delete(PATH).json()["name"] == "default"
    assert jobs.read(response["job"]).state == "cancelled"
    finished(jobs, store, put(client, name="b")["job"])
    assert client.delete(PATH, params={"baseline": "b"}).json()["state"] == "ready"
    assert listed(client) == {}
    assert list((tmp_path / "baselines" / "one").glob("[!.]*")) == []
    assert client.delete(PATH).status_code == 404


def test_a_rolling_baseline_moves_along(client, jobs, store):
    response = put(client, name="before", rolling="20m")
    assert (response["state"], response["job"]) == ("ready", None)
    times = {"from": time_at_second(LATER), "to": time_at_second(LATER + 60)}
    job_id = submit(client, baseline="before", **times)
    window = jobs.read(job_id).parameters["baseline"]
    assert (window["from"], window["to"]) == (time_at_second(LATER - 1200), time_at_second(LATER))
    assert report_of(jobs, store, job_id).data.baseline.n == 150
    answer = client.post("/api/drift", content='{"model": "one", "baseline": "before"}')
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("`from` is required with the rolling baseline before")


def test_a_dataset_is_a_baseline(client, jobs, store):
    fill(store, range(3000, 3050), dataset_snapshot_id="scenes")
    finished(jobs, store, put(client, dataset="scenes")["job"])
    baseline = listed(client)["default"]
    assert baseline["n"] == 50
    assert baseline["window"]["filter"] == {"meta.dataset_snapshot_id": {"eq": "scenes"}}


def test_a_killed_report_is_made_again_the_same(client, jobs, store):
    finished(jobs, store, put(client, to=time_at_second(LATER))["job"])
    times = {"from": time_at_second(LATER), "to": "now"}
    expected = report_of(jobs, store, submit(client, **times))
    job_id = submit(client, **times)
    with runner(jobs, store) as stop:
        until(lambda: jobs.read(job_id).starts)
        stop.set()
    report = report_of(jobs, store, job_id)
    assert report.signals == expected.signals
    assert report.unlike == expected.unlike
    window = {"to": time_at_second(LATER)}
    assert (
        report_of(jobs, store, submit(client, **times, baseline=window)).signals == report.signals
    )


def test_windows_of_a_schedule_are_noted(client, jobs, store, tmp_path):
    times = {"start": time_at_second(LATER), "end": time_at_second(LATER + 60)}
    parameters = DriftParameters("one", **times, schedule="1h")
    put(client, name="default", rolling="20m")
    good = jobs.submit("drift", msgspec.to_builtins(parameters)).id
    without_baseline = msgspec.structs.replace(parameters, baseline="none")
    bad = jobs.submit("drift", msgspec.to_builtins(without_baseline)).id
    report = report_of(jobs, store, good)
    assert [window.report for window in report.history] == [good]
    finished(jobs, store, bad)
    assert jobs.read(bad).error.startswith("baseline not found: 'none' of 'one'")
    windows = read_history(tmp_path / "drift", "one").windows
    assert [(window.report, window.status) for window in windows] == [
        (good, "drift"),
        (bad, "error"),
    ]


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        (("POST", "/api/drift", "[]"), "expected the body to be a JSON object with model, version"),
        (("POST", "/api/drift", '{"model": "one", "from": "x"}'), "expected from to be a moment"),
        (("POST", "/api/drift", '{"model": "one", "where": {"x": 1}}'), "expected where.x to name"),
        (
            ("POST", "/api/drift", '{"model": "one", "from": "-1h", "to": "-2h"}'),
            "expected from to be before to, got",
        ),
        (
            ("POST", "/api/drift", '{"model": "one", "baseline": {"from": "now", "to": "-2h"}}'),
            "baseline: expected from to be before to, got",
        ),
        (("POST", "/api/drift", '{"model": "one", "alpha": 1}'), "$.alpha"),
        (
            ("POST", "/api/drift", '{"model": "one"}'),
            "baseline not found: 'default' of 'one'",
        ),
        (
            ("POST", "/api/drift", '{"model": "one", "baseline": "../x"}'),
            "baseline not found: ",
        ),
        (("PUT", PATH, '{"name": "../x"}'), "expected name to be up to 64 of letters"),
        (("PUT", PATH, '{"from": "then"}'), "expected from to be a moment"),
        (
            ("PUT", PATH, '{"to": "9999-12-31T23:59:59.9999Z"}'),
            "years 1 to 9999, got None and 9999",
        ),
        (("PUT", PATH, '{"from": "-1h", "to": "-2h"}'), "expected from to be before to, got"),
        (("PUT", PATH, '{"where": "nothing"}'), "expected"),
        (("PUT", PATH, '{"rolling": "7 days"}'), "expected rolling to be a number and one of"),
        (("PUT", PATH, '{"rolling": "7d", "to": "now"}'), "rolling cannot be used with from"),
        (("PUT", "/api/models/../baseline", "{}"), None),
        (("PUT", "/api/models/%2E%2E/baseline", "{}"), None),
        (("GET", "/api/models/" + 300 * "x" + "/baseline", ""), "expected the name of a model"),
    ],
)
def test_invalid_requests_are_refused(client, tmp_path, request_body, message):
    method, path, body = request_body
    answer = client.request(method, path, content=body)
    assert answer.status_code == 400 if message else answer.status_code in (400, 404, 405)
    if message:
        assert message in answer.json()["error"]
    assert not (tmp_path / "baselines").exists()
    assert not (tmp_path / "default.json").exists()
