"""Schedules of evaluations: saved, returned, and each window submitted once and then a few times again."""

import json
import re
import shutil
import stat
from pathlib import Path

import msgspec
import pytest

from quadriga.engine.api.monitoring.evaluations import evaluation_routes
from quadriga.engine.api.monitoring.schedules import evaluation_schedule_routes
from quadriga.monitor.drift.watch.schedules import decode_schedule as decode_drift_schedule
from quadriga.monitor.drift.watch.schedules import drift_schedules
from quadriga.monitor.evaluation.parameters import EvaluationParameters, decode_parameters
from quadriga.monitor.evaluation.schedules import decode_schedule, evaluation_schedules
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Data, Metric, Report, Window
from quadriga.monitor.watch.schedules import MAX_MISSED, Scheduler
from quadriga.store.jobs.jobs import Jobs, Result
from quadriga.store.records.records import timestamp_text
from tests.unit.http_client import NoStore, client_of

DAY_S = 86_400
MIDNIGHT_S = 20_000 * DAY_S
HOUR_S = 3600
PATH = "/api/models/one/evaluation-schedule"


@pytest.fixture
def schedules(tmp_path):
    return evaluation_schedules(tmp_path / "evaluation")


@pytest.fixture
def jobs(tmp_path):
    return Jobs(tmp_path / "jobs")


@pytest.fixture
def client(schedules, jobs):
    names = NoStore()
    routes = evaluation_schedule_routes(schedules.directory, names, ReportStore(jobs))
    with client_of([*routes, *evaluation_routes(jobs, names, ReportStore(jobs))]) as http_client:
        yield http_client


def body(**changes):
    return json.dumps({"every": "1d"} | changes).encode()


def schedule(**changes):
    return decode_schedule(body(**changes))


def text(seconds):
    return timestamp_text(int(seconds) * 1000)


def windows(jobs):
    """Return the hours since `MIDNIGHT_S` at which the windows of all jobs start and end."""
    ends = []
    for job_id in jobs.ids():
        job = jobs.read(job_id)
        assert job.kind == "evaluation"
        window = job.parameters["schedule"]
        limits = job.parameters["where"]["and"][0]["ts"]
        assert limits == {"ge": window["from"], "lt": window["to"]}
        ends.append(tuple(_hour(window[end]) for end in ("from", "to")))
    return ends


def _hour(moment):
    return next(hour for hour in range(-400, 400) if text(MIDNIGHT_S + hour * HOUR_S) == moment)


def save_report(jobs, *metrics, kind="evaluation"):
    """Save a report as a job does, and return its id."""
    job = jobs.submit(kind, {})
    data = Data(Window(n=50))
    report = Report(kind, "OBJECT_DETECTION", data, id=job.id, metrics=list(metrics))
    folder = jobs.directory / job.id
    (folder / "report.json").write_bytes(msgspec.json.encode(report))
    ended = msgspec.structs.replace(job, state="succeeded", result=Result("report.json", 1))
    (folder / "job.json").write_bytes(msgspec.json.encode(ended))
    return job.id


def test_a_schedule_is_saved_returned_and_removed(client, schedules):
    assert client.get(PATH).status_code == 404
    assert client.get(PATH).json()["error"] == "evaluation schedule not found: model 'one' has none"
    hooks = [{"url": "https://example.org/a", "secret": "hush"}]
    parameters = {"window": "7d", "where": "meta.camera_id=north", "webhooks": hooks}
    answer = client.put(PATH, content=body(**parameters))
    assert answer.status_code == 200, answer.text
    state = answer.json()
    assert "hush" not in answer.text
    assert client.get(PATH).json() == state
    assert {name: state[name] for name in ("model", "every", "window", "reference", "at_least", "min_images", "late_windows", "delay")} == {
        "model": "one", "every": "1d", "window": "7d", "reference": "first", "at_least": None,
        "min_images": 30, "late_windows": 3, "delay": "1m",
    }  # fmt: skip
    assert [(hook["url"], hook["signed"]) for hook in state["webhooks"]] == [
        ("https://example.org/a", True)
    ]
    assert state["next"] < state["since"] < state["next_at"]
    (file,) = schedules.directory.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    replaced = client.put(PATH, content=body(at_least=0.5)).json()
    assert (replaced["window"], replaced["reference"], replaced["at_least"]) == ("1d", None, 0.5)
    assert client.delete(PATH).json()["every"] == "1d"
    assert client.delete(PATH).status_code == 404


def test_the_example_of_the_document_is_a_schedule(client):
    page = (Path(__file__).parents[4] / "docs" / "evaluation.md").read_text()
    path, parameters = re.search(
        r"PUT localhost:8080(/\S+/evaluation-schedule) -d '(.*?)'", page, re.DOTALL
    ).groups()
    assert client.put(path, content=parameters).status_code == 200


NO_OBJECT = "expected the body to be a JSON object with every, window, version, where, by, metric, "


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (b"", NO_OBJECT),
        (body(evry="1d"), NO_OBJECT),
        (body(min_images=0), NO_OBJECT),
        (body(late_windows=31), NO_OBJECT),
        (body(late_windows=-1), NO_OBJECT),
        (body(at_least="high"), NO_OBJECT),
        (body(reference="x" * 101), NO_OBJECT),
        (body(metric="x" * 201), NO_OBJECT),
        (body(every="30m"), "expected every to be a part of a day from 1h to 1d, or 1w, got '30m'"),
        (body(every="5h"), "expected every to be a part of a day from 1h to 1d, or 1w, got '5h'"),
        (body(window="week"), "expected window to be a number and one of s, m, h, d, w, got"),
        (body(window="23h"), "expected window to be from every to 366d, got '23h'"),
        (body(window="367d"), "expected window to be from every to 366d, got '367d'"),
        (body(window="999999w"), "expected window to be from every to 366d, got '999999w'"),
        (body(metric="AP[iou]"), "expected NAME=VALUE in the brackets of 'AP[iou]', got 'iou'"),
        (body(metric=" " * 199 + "]"), "expected a metric such as mAP or AP[iou=0.5,label=star], got"),
        (body(metric="AP=0.5"), "expected a metric such as mAP or AP[iou=0.5,label=star], got"),
        (body(where={"nothing": 1}), "expected where.nothing to"),
        (body(by=["camera"]), "expected meta.<path>, hour, day, month to slice by"),
        (body(top_k=[0]), NO_OBJECT),
        (body(iou=[0.05]), NO_OBJECT),
        (body(score=[]), NO_OBJECT),
        (body(bins=101), NO_OBJECT),
        (body(iou=[0.5, 0.5]), "iou: expected each value once, got 0.5 twice"),
        (body(score=[0.12345]), "score: expected at most 4 decimals, got 0.12345"),
        (body(reference="last"), "reference: report not found: 'last'"),
        (body(reference="../x"), "reference: report not found: '../x'"),
        (body(reference="0" * 19 + "-abcd"), "reference: report not found: '0"),
        (body(webhooks=[{"url": "ftp://a"}]), "expected webhooks[0].url to be http or https"),
        (
            body(reference_metric={"report": "x", "task": "y", "metric": {"type": "AP", "value": 1}}),
            "expected no reference_metric: it is that of the reference",
        ),
    ],
)  # fmt: skip
def test_invalid_schedules_are_refused(client, schedules, parameters, message):
    answer = client.put(PATH, content=parameters)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(message)
    assert schedules.models() == []


@pytest.mark.parametrize(
    ("metrics", "kind", "message"),
    [
        ([], "evaluation", "reference: expected an evaluation with metrics, got evaluation "),
        ([Metric("AP", 0.5)], "drift", "reference: expected an evaluation with metrics, got drift "),
        ([Metric("AP", 0.5, ci_reason="fewer than 40 objects")], "evaluation", "reference: AP of report "),
        ([Metric("AP", None)], "evaluation", "reference: AP of report "),
        ([Metric("AR", 0.5, ci95=(0.4, 0.6))], "evaluation", "reference: metric not found: AP"),
    ],
)  # fmt: skip
def test_a_report_that_nothing_can_be_compared_with_is_refused(
    client, jobs, metrics, kind, message
):
    report_id = save_report(jobs, *metrics, kind=kind)
    answer = client.put(PATH, content=body(reference=report_id, metric="AP"))
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(message)


def test_the_metric_of_a_report_outlives_the_report(client, jobs, schedules):
    recall = Metric("AR", 0.7, {"max": 100}, ci95=(0.6, 0.8))
    report_id = save_report(jobs, Metric("AP", 0.5, ci95=(0.4, 0.6)), recall)
    parameters = body(reference=report_id, metric="ar[max=100]")
    assert client.put(PATH, content=parameters).status_code == 200
    jobs.remove_old(-1)
    for path in (jobs.directory / report_id).iterdir():
        path.unlink()
    replaced = body(reference=report_id, metric="ar[max=100]", late_windows=0)
    assert client.put(PATH, content=replaced).json()["late_windows"] == 0
    saved = schedules.get("one")
    assert saved.schedule.reference_metric.metric == recall
    Scheduler(schedules, jobs).step(saved.first_s + DAY_S + 60)
    job = jobs.read(jobs.ids()[-1])
    reference = msgspec.convert(job.parameters, EvaluationParameters).schedule.reference
    assert (reference.report, reference.metric) == (report_id, recall)
    assert client.put(PATH, content=body(reference=report_id)).status_code == 400  # another metric


def test_windows_are_evaluated_with_the_chosen_thresholds(client, jobs, schedules):
    chosen = {"top_k": [2, 3], "iou": [0.3, 0.5], "score": [0.4], "bins": 10}
    assert client.get("/api/models/one/evaluation").json()["windows"] == []
    state = client.put(PATH, content=body(**chosen)).json()
    assert {name: state[name] for name in chosen} == chosen
    saved = schedules.get("one")
    Scheduler(schedules, jobs).step(saved.first_s + DAY_S + 60)
    (parameters,) = (jobs.read(job_id).parameters for job_id in jobs.ids())
    assert {name: parameters[name] for name in chosen} == chosen
    by_hand = decode_parameters(json.dumps({"model": "one", **chosen}).encode())
    assert msgspec.convert(parameters, EvaluationParameters).chosen == by_hand.chosen


def test_other_thresholds_start_a_new_series(schedules, jobs):
    series = []
    for changes in ({}, {"bins": 10}, {"bins": 20}, {"bins": 10}, {"by": ["day"]}):
        schedules.put("one", schedule(**changes), MIDNIGHT_S)
        schedules.mark_done("one", MIDNIGHT_S - DAY_S)
        for job_id in jobs.ids():
            shutil.rmtree(jobs.directory / job_id)
        Scheduler(schedules, jobs).step(MIDNIGHT_S + DAY_S + 60)
        series.append(jobs.read(jobs.ids()[-1]).parameters["schedule"]["series"])
    assert len(set(series)) == 3
    assert (series[1], series[0]) == (series[3], series[4])


def test_a_schedule_without_chosen_thresholds_is_the_file_that_earlier_versions_read(schedules):
    schedules.put("one", schedule(at_least=0.5), MIDNIGHT_S)
    (file,) = schedules.directory.glob("*.schedule.json")
    assert json.loads(file.read_bytes())["schedule"] == {"every": "1d", "at_least": 0.5}


def test_requests_cannot_claim_to_be_scheduled(client, jobs, schedules):
    schedules.put("one", schedule(), MIDNIGHT_S)
    Scheduler(schedules, jobs).step(MIDNIGHT_S + DAY_S + 60)
    parameters = jobs.read(jobs.ids()[0]).parameters
    answer = client.post("/api/evaluations", content=json.dumps(parameters))
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("expected no schedule: PUT it on the model's")


def test_a_window_is_evaluated_once_it_has_ended_and_again_with_later_ones(schedules, jobs):
    schedules.put("one", schedule(every="1h", late_windows=2), MIDNIGHT_S + 600)
    scheduler = Scheduler(schedules, jobs)
    scheduler.step(MIDNIGHT_S + HOUR_S + 59)
    assert windows(jobs) == []
    expected = []
    for hour, late in enumerate(([], [0], [0, 1], [1, 2]), 1):
        for seconds in (60, 61):
            scheduler.step(MIDNIGHT_S + hour * HOUR_S + seconds)
        expected += [(start, start + 1) for start in (*late, hour - 1)]
        assert windows(jobs) == expected


@pytest.mark.parametrize(
    ("changes", "step_h", "expected"),
    [
        ({}, 24, [(0, 24)]),
        ({"window": "7d"}, 24, [(-144, 24)]),
        ({"every": "6h", "window": "1d"}, 6, [(-18, 6)]),
        ({"every": "6h", "window": "1d"}, 12, [(-18, 6), (-12, 12)]),
        ({"every": "1w"}, 72, [(-96, 72)]),
    ],
)
def test_windows_slide(schedules, jobs, changes, step_h, expected):
    schedules.put("one", schedule(**changes), MIDNIGHT_S + 5 * HOUR_S)
    Scheduler(schedules, jobs).step(MIDNIGHT_S + step_h * HOUR_S + 60)
    assert windows(jobs) == expected


def test_missed_windows_are_caught_up_once(schedules, jobs, caplog):
    schedules.put("one", schedule(every="1h", late_windows=1), MIDNIGHT_S)
    Scheduler(schedules, jobs).step(MIDNIGHT_S + 30 * HOUR_S + 60)
    assert windows(jobs) == [(hour, hour + 1) for hour in range(30 - MAX_MISSED - 1, 30)]
    assert "evaluation of one: 6 windows from " in caplog.text


def test_no_window_is_submitted_twice_over_restarts(schedules, jobs):
    schedules.put("one", schedule(every="1h", late_windows=2), MIDNIGHT_S)
    for hour in range(1, 4):
        Scheduler(schedules, jobs).step(MIDNIGHT_S + hour * HOUR_S + 60)
    expected = [(0, 1), (0, 1), (1, 2), (0, 1), (1, 2), (2, 3)]
    assert windows(jobs) == expected
    schedules.mark_done("one", MIDNIGHT_S + 2 * HOUR_S)  # it died before it saved the last one
    Scheduler(schedules, jobs).step(MIDNIGHT_S + 3 * HOUR_S + 120)
    assert windows(jobs) == expected
    assert schedules.next_s("one", schedules.get("one")) == MIDNIGHT_S + 3 * HOUR_S


def test_a_clock_that_is_set_back_submits_nothing_again(schedules, jobs):
    schedules.put("one", schedule(every="1h"), MIDNIGHT_S)
    scheduler = Scheduler(schedules, jobs)
    scheduler.step(MIDNIGHT_S + 2 * HOUR_S + 60)
    expected = windows(jobs)
    for hour in (1, -300, 2):
        scheduler.step(MIDNIGHT_S + hour * HOUR_S + 70)
    assert windows(jobs) == expected


def test_servers_of_one_database_run_their_own_schedules_alone(tmp_path):
    """A schedule is in the data folder of the server that it was put on, and no other server reads that."""
    folders = [tmp_path / name for name in "ab"]
    evaluation_schedules(folders[0] / "evaluation").put("one", schedule(), MIDNIGHT_S)
    for folder in folders:
        schedules = evaluation_schedules(folder / "evaluation")
        Scheduler(schedules, Jobs(folder / "jobs")).step(MIDNIGHT_S + DAY_S + 60)
    assert [len(Jobs(folder / "jobs").ids()) for folder in folders] == [1, 0]


def test_schedules_of_drift_and_of_evaluations_do_not_meet(tmp_path, schedules, jobs):
    drift = drift_schedules(tmp_path / "drift")
    drift.put("one", decode_drift_schedule("one", b'{"every": "1d"}'), MIDNIGHT_S)
    schedules.put("one", schedule(), MIDNIGHT_S)
    for _ in range(2):
        for store in (drift, schedules):
            Scheduler(store, jobs).step(MIDNIGHT_S + DAY_S + 60)
    kinds = [jobs.read(job_id).kind for job_id in jobs.ids()]
    assert sorted(kinds) == ["drift", "evaluation"]
