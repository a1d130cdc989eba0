"""Evaluations as jobs, and their reports over HTTP."""

import json

import msgspec
import pytest

from quadriga.engine.api.monitoring.evaluations import evaluation_routes
from quadriga.engine.jobs.job_kinds import JOB_KINDS
from quadriga.monitor.evaluation import stored
from quadriga.monitor.evaluation.evaluators import EVALUATORS
from quadriga.monitor.evaluation.schedules import (
    decode_schedule,
    evaluation_schedules,
    read_history,
)
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Report
from quadriga.monitor.watch.schedules import Scheduler
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.jobs import runner as runner_module
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.jobs.runner import JobRunner
from quadriga.store.records.ids import EPOCH_MS
from quadriga.store.records.records import InputReference, ModelReference, TruthStatement
from tests.background import in_background, until
from tests.server_process import IMAGES
from tests.unit.http_client import client_of
from tests.unit.monitor.evaluation.evaluation_images import stable_report
from tests.unit.store.conftest import make_record

PHOTO = (IMAGES / "detection" / "scene_01.jpg").read_bytes()
DAY_S = 86_400
MODEL = ModelReference("<one>", "1", "aa" * 32)


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setitem(
        EVALUATORS,
        "OBJECT_DETECTION",
        "tests.unit.monitor.evaluation.label_evaluator:LabelEvaluator",
    )
    monkeypatch.setattr(stored, "SHARD_SIZE", 3)
    monkeypatch.setattr(runner_module, "POLL_INTERVAL_S", 0.005)
    return Jobs(tmp_path / "jobs")


@pytest.fixture
def store(store):
    """Seven answers, every third of which is wrong; the last one's truth is not known."""
    digest = FileBlobs(store.root / "blobs").put(PHOTO)
    image = InputReference("image", digest, 640, height=480, mime="image/jpeg", kept=True)
    for at in range(1, 8):
        label = "ab"[at % 3 == 0]
        predictions = [{"label": label, "score": 0.5, "xmin": 1, "ymin": 2, "xmax": 30, "ymax": 40}]
        store.commit(make_record(at, model=MODEL, input=image, predictions=predictions))
        labels = [{"label": "a"}] if at < 7 else None
        store.commit_changes(TruthStatement("id", str(at), labels, task="OBJECT_DETECTION"))
    return store


@pytest.fixture
def client(jobs, store):
    with client_of(evaluation_routes(jobs, store.inferences, ReportStore(jobs))) as http_client:
        yield http_client


def runner(jobs, store):
    blobs = FileBlobs(store.root / "blobs")
    return in_background(JobRunner(jobs, JOB_KINDS, store.inferences, blobs).run)


def finished(jobs, store, job_id):
    with runner(jobs, store):
        until(lambda: jobs.read(job_id).ended_at is not None)
    return jobs.read(job_id, with_log=True)


def submit(client, **parameters):
    body = json.dumps({"model": "<one>", "resamples": 10, **parameters})
    answer = client.post("/api/evaluations", content=body)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def report_of(jobs, job_id):
    report = msgspec.json.decode(jobs.result(job_id).read_bytes(), type=Report)
    assert report.id == job_id
    return stable_report(report)


def test_an_evaluation_is_submitted_and_its_report_fetched(client, jobs, store):
    assert client.get("/api/reports").json() == {"reports": [], "unreadable": []}
    job_id = submit(client, by=["hour"])
    assert client.get(f"/api/reports/{job_id}").status_code == 404
    job = finished(jobs, store, job_id)
    assert (job.state, job.kind, job.progress.done, job.progress.total) == (
        "succeeded",
        "evaluation",
        7,
        7,
    )
    assert "6 images evaluated" in job.log
    assert job.result.file == "report.json"
    answer = client.get(f"/api/reports/{job_id}")
    assert answer.headers["content-type"] == "application/json"
    report = answer.json()
    assert report["id"] == job_id
    assert report["metrics"][0]["value"] == 4 / 6
    assert report["data"]["excluded"] == {"no_truth": 1, "unseen_label": 0}
    assert [image["inference_id"] for image in report["worst"]] == ["3"]  # 6 is the same image
    assert report["worst"][0]["predictions"][0]["label"] == "b"
    assert report["worst"][0]["ground_truth"] == [{"label": "a"}]
    (listed,) = client.get("/api/reports").json()["reports"]
    assert listed == {
        "id": job_id,
        "kind": "evaluation",
        "task": "OBJECT_DETECTION",
        "model": {"name": "<one>", "version": "1", "sha256": "aa" * 32, "is_pooled": False},
        "created": report["created"],
        "status": "ok",
        "n": 6,
        "headline": report["metrics"][0],
        "undecided": [],
        "is_scheduled": False,
        "filter": None,
        "from": report["data"]["current"]["from"],
        "to": report["data"]["current"]["to"],
    }
    assert not (jobs.directory / job_id / "shards").exists()


def test_a_report_is_a_page_in_which_nothing_runs(client, jobs, store):
    job_id = submit(client)
    finished(jobs, store, job_id)
    answer = client.get(f"/api/reports/{job_id}/page")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"].split("; ")
    assert "default-src 'none'" in policy
    assert "sandbox" in policy
    assert not any(rule.startswith("script-src") for rule in policy)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "&lt;one&gt;" in answer.text
    assert "<one>" not in answer.text
    assert "data:image/jpeg;base64," in answer.text


def test_reports_are_listed_newest_first(client, jobs, store):
    ids = [submit(client), submit(client, where="label=b")]
    jobs.submit("export", {})
    finished(jobs, store, jobs.ids()[-1])
    for _ in range(2):
        assert [report["id"] for report in client.get("/api/reports").json()["reports"]] == ids[
            ::-1
        ]
    jobs.remove_old(-1)
    assert client.get("/api/reports").json() == {"reports": [], "unreadable": []}


def test_a_job_that_is_stopped_goes_on_later(client, jobs, store, monkeypatch):
    expected = submit(client, by=["hour"], compare=[{"model": "<one>"}])
    finished(jobs, store, expected)
    read, real = [], stored.read_shard
    with runner(jobs, store) as stop:

        def reading_ends(*arguments):
            read.append(1)
            if len(read) == 2:
                stop.set()
            return real(*arguments)

        monkeypatch.setattr(stored, "read_shard", reading_ends)
        job_id = submit(client, by=["hour"], compare=[{"model": "<one>"}])
        until(lambda: len(read) == 2 and jobs.read(job_id).state == "queued")
    assert len(list((jobs.directory / job_id / "shards").glob("whole-*.msgpack"))) == 2
    job = finished(jobs, store, job_id)
    assert (job.state, len(read)) == ("succeeded", 3)
    assert "continuing with the shards that were read before" in job.log
    assert report_of(jobs, job_id) == report_of(jobs, expected)


def test_a_job_that_is_cancelled_ends_between_shards(client, jobs, store, monkeypatch):
    job_id = submit(client)
    read, real = [], stored.read_shard

    def reading_ends(*arguments):
        read.append(1)
        jobs.cancel(job_id)
        return real(*arguments)

    monkeypatch.setattr(stored, "read_shard", reading_ends)
    assert (finished(jobs, store, job_id).state, len(read)) == ("cancelled", 1)
    assert client.get(f"/api/reports/{job_id}").status_code == 404


def test_failed_evaluation_has_a_reason(client, jobs, store):
    job = finished(jobs, store, submit(client, model="nobody"))
    assert job.state == "failed"
    assert job.error == "no inferences of 'nobody' match the filter"


def test_windows_of_a_schedule_are_recorded(client, jobs, store):
    directory, start_s = jobs.directory.parent / "evaluation", EPOCH_MS // 1000
    schedules = evaluation_schedules(directory)
    schedules.put("<one>", decode_schedule(b'{"every": "1d", "at_least": 0.99}'), start_s)
    late = range(8, 48)
    predictions = [{"label": "b", "score": 0.5}]
    store.commit(*(make_record(at, model=MODEL, predictions=predictions) for at in late))

    def windows_after(days):
        Scheduler(schedules, jobs).step(start_s + days * DAY_S + 60)
        finished(jobs, store, jobs.ids()[-1])
        windows = read_history(directory, "<one>").windows
        return [(window.status, window.n, window.report) for window in windows]

    assert windows_after(1) == [("insufficient", 6, jobs.ids()[0])]
    labels = [{"label": "a"}]
    for at in late:
        store.commit_changes(TruthStatement("id", str(at), labels, task="OBJECT_DETECTION"))
    windows = windows_after(2)
    first, again, empty = jobs.ids()
    assert windows == [("fall", 46, again), ("insufficient", 0, empty)]
    window, nothing = read_history(directory, "<one>").windows
    metric = report_of(jobs, again).metrics[0]
    assert (window.value, (window.low, window.high)) == (metric.value, metric.ci95)
    assert nothing.reason == jobs.read(empty).error == "no inferences of '<one>' match the filter"
    reports = client.get("/api/reports").json()["reports"]
    assert [report["id"] for report in reports] == [again, first]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (b'"top_k": [0]', "Expected `int` >= 1 - at `$.top_k[0]`"),
        (b'"top_k": [1,2,3,4,5,6,7,8,9,10,11]', "Expected `array` of length <= 10 - at `$.top_k`"),
        (b'"iou": []', "Expected `array` of length >= 1 - at `$.iou`"),
        (b'"iou": 0.5', "Expected `array | null`, got `float` - at `$.iou`"),
        (b'"score": [1.5]', "Expected `float` <= 1.0 - at `$.score[0]`"),
        (b'"bins": 101', "Expected `int` <= 100 - at `$.bins`"),
    ],
)
def test_a_threshold_out_of_range_is_named(client, field, reason):
    answer = client.post("/api/evaluations", content=b'{"model": "a", ' + field + b"}")
    assert answer.status_code == 400
    assert reason in answer.json()["error"]


def test_chosen_thresholds_are_in_the_report(client, jobs, store, monkeypatch):
    classifier = "quadriga.monitor.evaluation.labels.classification:ClassificationEvaluator"
    monkeypatch.setitem(EVALUATORS, "OBJECT_DETECTION", classifier)
    job_id = submit(client, top_k=[1, 2], bins=4, score=[0.25])
    assert finished(jobs, store, job_id).state == "succeeded"
    report = client.get(f"/api/reports/{job_id}").json()
    chosen = {"top_k": [1, 2], "bins": 4, "score": [0.25]}
    assert report["parameters"].items() >= chosen.items()
    parameters = {metric["type"]: metric["parameters"] for metric in report["metrics"]}
    assert parameters["TopKAccuracy"] == {"k": 2}
    assert parameters["ECE"]["bins"] == 4
    assert report["warnings"][-1:] == [
        "score has no effect: each image has one true label, and its prediction is the label with the highest score"
    ]


def test_a_threshold_that_the_task_does_not_have_ends_the_job(client, jobs, store):
    job_id = submit(client, iou=[0.5])
    job = finished(jobs, store, job_id)
    assert (job.state, job.error) == (
        "failed",
        "iou is no setting of OBJECT_DETECTION, which has none",
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "expected the body to be a JSON object with model, version, where, by, slices, "),
        (b"{", "expected the body to be a JSON object with model"),
        (b'{"model": 5}', "expected the body to be a JSON object with model"),
        (b'{"model": "a", "wher": {}}', "expected the body to be a JSON object with model"),
        (b'{"model": "a", "resamples": 1001}', "expected the body to be a JSON object with model"),
        (b'{"model": "a", "resamples": -1}', "expected the body to be a JSON object with model"),
        (b'{"model": "a", "seed": -1}', "expected the body to be a JSON object with model"),
        (b'{"model": "a", "iou": [0.5, 0.5]}', "iou: expected each value once, got 0.5 twice"),
        (b'{"model": "a", "score": [0.12345]}', "score: expected at most 4 decimals, got 0.12345"),
        (b'{"model": "a", "compare": [{}]}', "expected the body to be a JSON object with model"),
        (b'{"model": "a", "where": {"nothing": 1}}', "expected where.nothing to"),
        (b'{"model": "a", "where": 5}', "expected where to be an object, got an integer"),
        (b'{"model": "a", "slices": {"dark": "5"}}', "slices.dark: expected"),
        (b'{"model": "a", "compare": [{"model": "b", "where": 5}]}', "compare[0]: expected where"),
        (b'{"model": "a", "by": ["camera"]}', "expected meta.<path>, hour, day, month to slice by"),
        (
            b'{"model": "a", "by": ["hour"], "slices": {"hour": {}}}',
            "expected each slice once, got 'hour' in by and in slices",
        ),
    ],
)
def test_an_evaluation_that_means_nothing_is_refused(client, jobs, body, message):
    answer = client.post("/api/evaluations", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(message)
    assert jobs.ids() == []


@pytest.mark.parametrize("page", ["", "/page"])
@pytest.mark.parametrize("report_id", ["5", "0" * 19 + "-abcd", "..%2F..%2Fetc"])
def test_unknown_report_is_not_found(client, page, report_id):
    answer = client.get(f"/api/reports/{report_id}{page}")
    assert answer.status_code == 404


@pytest.mark.parametrize("page", ["", "/page"])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_result_of_another_job_is_not_a_report(client, jobs, store, page):
    job_id = jobs.submit("export", {}).id
    finished(jobs, store, job_id)
    answer = client.get(f"/api/reports/{job_id}{page}")
    assert answer.status_code == 404
    assert answer.json()["error"] == f"report not found: {job_id} is the id of another job"


def test_a_page_that_an_earlier_version_saved_stays_as_it_is(client, jobs, store):
    job_id = submit(client)
    finished(jobs, store, job_id)
    (jobs.directory / job_id / "report.html").write_text("<!DOCTYPE html>saved")
    assert client.get(f"/api/reports/{job_id}/page").text == "<!DOCTYPE html>saved"


def test_a_page_says_which_images_are_not_stored(client, jobs, store):
    job_id = submit(client)
    finished(jobs, store, job_id)
    for path in (store.root / "blobs").glob("??/*"):
        path.unlink()
    page = client.get(f"/api/reports/{job_id}/page").text
    assert "data:image/jpeg;base64," not in page
    assert "The image is not kept." in page


@pytest.mark.parametrize(
    ("content", "status"), [(None, 404), ("{", 409), ('{"schema": "report/9"}', 409)]
)
def test_no_page_is_drawn_of_a_report_that_cannot_be_read(client, jobs, store, content, status):
    job_id = submit(client)
    finished(jobs, store, job_id)
    report = jobs.directory / job_id / "report.json"
    if content is None:
        report.unlink()
    else:
        report.write_text(content)
    assert client.get(f"/api/reports/{job_id}/page").status_code == status
