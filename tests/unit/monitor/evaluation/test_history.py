"""The history of evaluated windows, and its alerts."""

import json
import logging
import re
from pathlib import Path

import msgspec
import pytest

from quadriga.engine.api.monitoring.schedules import evaluation_schedule_routes
from quadriga.monitor.evaluation.intervals import share_interval
from quadriga.monitor.evaluation.parameters import (
    ReferenceMetric,
    ScheduledWindow,
)
from quadriga.monitor.evaluation.schedules import (
    decode_schedule,
    evaluation_schedules,
    read_history,
    record_failure,
    record_window,
)
from quadriga.monitor.evaluation.state import EvaluationError, NoInferencesError
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Data, Metric, Report, Window
from quadriga.store.jobs.jobs import Jobs
from tests.unit.http_client import NoStore, client_of

MODEL = "shapes-classifier"
HOOK = "http://127.0.0.1:9/hook"
PAGE = Path(__file__).parents[4] / "docs" / "evaluation-reference.md"


@pytest.fixture
def directory(tmp_path):
    folder = tmp_path / "evaluation"
    parameters = {"every": "1d", "webhooks": [{"url": HOOK}]}
    evaluation_schedules(folder).put(MODEL, decode_schedule(json.dumps(parameters).encode()))
    return folder


def window(day, **changes):
    start, end = (f"2026-03-{number:02d}T00:00:00.000Z" for number in (day, day + 1))
    values = {"new_start": start, "series": "s", "metric": None, "min_images": 30, "reference": "first", "at_least": None}  # fmt: skip
    return ScheduledWindow(start=start, end=end, **values | changes)


def report(number, right, images=100, task="IMAGE_CLASSIFICATION"):
    """Return a report with an accuracy; without images that have ground truth it has none."""
    share = right / images if images else None
    bounds = share_interval(right / images, images).bounds if images else None
    accuracy = Metric("Accuracy", share, ci95=bounds, n=images)
    f1 = Metric("F1", share, {"average": "macro"}, ci95=bounds)
    data = Data(Window(n=images))
    return Report("evaluation", task, data, id=f"{number:019d}-0000", metrics=[accuracy, f1])


def queued(directory):
    """Return the bodies of the alerts that wait, and remove them."""
    alerts = []
    for path in sorted((directory / "outbox").glob("*.json")):
        alerts.append(json.loads(json.loads(path.read_bytes())["body"]))
        path.unlink()
    return alerts


def events(directory):
    return [(alert["event"], alert["window"]["from"][8:10]) for alert in queued(directory)]


def statuses(directory):
    return [(past.start[8:10], past.status) for past in read_history(directory, MODEL).windows]


def test_history_is_returned_oldest_first_with_the_latest_evaluation(directory, tmp_path):
    for number, (day, right, images) in enumerate([(2, 48, 50), (1, 9, 10), (1, 85, 100), (3, 60, 100)]):  # fmt: skip
        record_window(directory, report(number, right, images), MODEL, window(day))
    reports = ReportStore(Jobs(tmp_path / "jobs"))
    with client_of(evaluation_schedule_routes(directory, NoStore(), reports)) as client:
        path = f"/api/models/{MODEL}/evaluation"
        history = client.get(path).json()
        windows = history["windows"]
        assert [(past["from"][:10], past["status"], past["n"]) for past in windows] == [
            ("2026-03-01", "ok", 100),
            ("2026-03-02", "ok", 50),
            ("2026-03-03", "fall", 100),
        ]
        low, high = share_interval(0.6, 100).bounds
        assert (windows[2]["value"], windows[2]["low"], windows[2]["high"]) == (0.6, low, high)
        assert windows[2]["metric"] == "Accuracy"
        assert windows[2]["to"] == "2026-03-04T00:00:00.000Z"
        assert windows[2]["reason"].startswith("Accuracy is 0.6, was 0.96 in report 0")
        assert windows[2]["report"] == f"{3:019d}-0000"
        assert windows[2]["evaluated_at"] > "2026"
        assert history["reference"]["report"] == f"{0:019d}-0000"  # the first that was judged
        span = {"from": "2026-03-02T00:00:00Z", "to": "2026-03-03T00:00:00Z"}
        assert client.get(path, params=span).json()["windows"] == windows[1:2]
        assert client.get(path, params={"to": "later"}).status_code == 400
        nothing = {"windows": [], "reference": None}
        assert client.get("/api/models/nobody/evaluation").json() == nothing


OK, FALL, FEW = (95, 100), (60, 100), (5, 10)


@pytest.mark.parametrize(
    ("evaluations", "expected"),
    [
        ([(1, OK), (2, OK), (3, (99, 100))], []),
        ([(1, OK), (2, FEW), (3, (0, 0))], []),
        ([(1, FALL), (2, OK)], []),
        ([(1, OK), (2, FALL), (3, FALL)], [("fall", "02")]),
        ([(1, OK), (2, FALL), (2, FALL), (2, FALL)], [("fall", "02")]),
        ([(1, OK), (2, FEW), (2, FALL), (2, FALL)], [("fall", "02")]),
        ([(1, OK), (2, FALL), (3, FEW), (4, FALL)], [("fall", "02")]),
        ([(1, OK), (2, FALL), (3, OK)], [("fall", "02"), ("recovered", "03")]),
        ([(1, OK), (2, FALL), (2, OK)], [("fall", "02"), ("recovered", "02")]),
        ([(1, OK), (2, FALL), (1, OK), (3, FALL), (2, OK)], [("fall", "02")]),
        # An earlier window that fell is evaluated again: it is known already.
        ([(1, OK), (2, FALL), (3, OK), (2, FALL), (3, OK)], [("fall", "02"), ("recovered", "03")]),
        # The truth of an earlier window arrives after that of a later one.
        ([(1, OK), (2, FEW), (3, OK), (2, FALL), (3, OK)], [("fall", "02"), ("recovered", "03")]),
        # A fall that became too few, as truth was removed, is no recovery.
        ([(1, OK), (2, FALL), (2, FEW), (3, FALL)], [("fall", "02")]),
        ([(1, OK), (2, FALL), (3, OK), (4, FALL)], [("fall", "02"), ("recovered", "03"), ("fall", "04")]),
    ],
)  # fmt: skip
def test_a_fall_is_sent_once_and_again_when_it_is_over(directory, evaluations, expected):
    alerts = []
    for number, (day, answers) in enumerate(evaluations):
        record_window(directory, report(number, *answers), MODEL, window(day))
        alerts += events(directory)
    assert alerts == expected


def test_the_first_window_is_that_of_its_latest_evaluation(directory):
    for number, right in enumerate((60, 95)):  # most of its truth arrived late
        record_window(directory, report(number, right), MODEL, window(1))
    record_window(directory, report(2, 75), MODEL, window(2))
    assert statuses(directory) == [("01", "ok"), ("02", "fall")]
    assert read_history(directory, MODEL).reference.metric.value == 0.95


@pytest.mark.parametrize(
    ("changes", "right", "status"),
    [
        ({"at_least": 0.8}, 60, "fall"),
        ({"at_least": 0.8}, 75, "ok"),
        ({"reference": None, "at_least": 0.5}, 60, "ok"),
        ({"reference": None, "at_least": 0.5, "min_images": 101}, 0, "insufficient"),
        ({"metric": "f1[average=macro]"}, 60, "ok"),
        ({"metric": "F1[average=micro]"}, 60, "error"),
    ],
)
def test_a_window_is_compared_with_what_its_schedule_says(directory, changes, right, status):
    record_window(directory, report(1, right), MODEL, window(1, **changes))
    assert statuses(directory) == [("01", status)]
    assert [event for event, _ in events(directory)] == ["fall"] * (status == "fall")


def test_a_window_is_compared_with_a_report(directory):
    metric = report(7, 90).metrics[1]
    reference = ReferenceMetric("7", "IMAGE_CLASSIFICATION", metric)
    for day, right in enumerate((89, 60), 1):
        record_window(directory, report(day, right), MODEL, window(day, reference=reference))
    assert statuses(directory) == [("01", "ok"), ("02", "fall")]
    past = read_history(directory, MODEL)
    assert past.windows[1].metric == "F1[average=macro]"
    assert past.reference == reference
    other = msgspec.structs.replace(reference, task="OBJECT_DETECTION")
    record_window(directory, report(3, 60), MODEL, window(3, reference=other))
    last = read_history(directory, MODEL).windows[2]
    assert (last.status, last.value) == ("error", None)
    assert last.reason == "expected an evaluation of OBJECT_DETECTION, got IMAGE_CLASSIFICATION"


def test_a_metric_is_not_compared_with_one_of_other_thresholds(directory):
    def error_report(number, **parameters):
        error = Metric("ECE", 0.2, parameters, ci95=(0.1, 0.3))
        return msgspec.structs.replace(report(number, 90), metrics=[error])

    reference = ReferenceMetric("7", "IMAGE_CLASSIFICATION", error_report(7, bins=15).metrics[0])
    compared = [{"bins": 15}, {"bins": 10}, {"bins": 15, "score": 0.4}]
    for day, parameters in enumerate(compared, 1):
        scheduled = window(day, reference=reference, metric="ECE")
        record_window(directory, error_report(day, **parameters), MODEL, scheduled)
    assert statuses(directory) == [("01", "ok"), ("02", "error"), ("03", "error")]
    reason = read_history(directory, MODEL).windows[1].reason
    assert reason == "expected ECE[bins=15], as in report 7, got ECE[bins=10]"


def test_a_window_that_one_image_makes_multi_label_has_not_fallen(directory):
    record_window(directory, report(1, 90), MODEL, window(1))
    multi = Metric("Accuracy", 0.0, {"score": 0.5, "rule": "all labels"}, ci95=(0.0, 0.1))
    judged = msgspec.structs.replace(report(2, 90), metrics=[multi])
    record_window(directory, judged, MODEL, window(2))
    last = read_history(directory, MODEL).windows[1]
    assert (last.status, queued(directory)) == ("error", [])
    assert last.reason.startswith("expected Accuracy, as in report 0")
    assert last.reason.endswith(", got Accuracy[score=0.5,rule=all labels]")


def test_a_score_that_was_found_may_differ_from_the_reference(directory):
    for day, score in enumerate((0.41, 0.43), 1):
        found = Metric("F1", 0.8, {"score": score, "chosen": "best F1"}, ci95=(0.7, 0.9))
        best = msgspec.structs.replace(report(day, 80), metrics=[found])
        record_window(directory, best, MODEL, window(day, metric="F1[chosen=best F1]"))
    assert statuses(directory) == [("01", "ok"), ("02", "ok")]


def test_another_series_starts_anew(directory):
    for day, right in enumerate((95, 60), 1):
        record_window(directory, report(day, right), MODEL, window(day))
    assert events(directory) == [("fall", "02")]
    record_window(directory, report(3, 60), MODEL, window(2, series="other"))
    record_window(directory, report(4, 59), MODEL, window(3, series="other"))
    assert statuses(directory) == [("01", "ok"), ("02", "ok"), ("03", "ok")]
    assert events(directory) == []


def test_recording_a_report_again_changes_nothing(directory, caplog):
    record_window(directory, report(1, 95), MODEL, window(1))
    watch = directory / f"{MODEL}.watch.json"
    before = watch.read_bytes()
    for _ in range(2):
        record_window(directory, report(2, 60), MODEL, window(2))
    assert events(directory) == [("fall", "02")]
    watch.write_bytes(before)  # it died before it was saved: the id of the delivery is the same
    record_window(directory, report(2, 60), MODEL, window(2))
    assert statuses(directory) == [("01", "ok"), ("02", "fall")]
    (delivery,) = (directory / "outbox").glob("*.json")
    assert delivery.name.startswith(f"{2:019d}-0000-fall-")
    assert len((directory / f"{MODEL}.jsonl").read_bytes().splitlines()) == 2
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NoInferencesError("no inferences of 'x' match the filter"), "insufficient"),
        (EvaluationError("expected inferences of one task"), "error"),
    ],
)
def test_a_window_that_cannot_be_evaluated_has_a_reason(directory, caplog, error, status):
    record_failure(directory, "7", MODEL, window(1), error)
    (past,) = read_history(directory, MODEL).windows
    assert (past.status, past.reason, past.n, past.value) == (status, str(error), 0, None)
    assert len(caplog.messages) == (status == "error")
    assert queued(directory) == []


def test_an_alert_and_its_line_are_as_the_page_shows(directory, caplog):
    record_window(directory, report(1, 95), MODEL, window(1))
    with caplog.at_level(logging.WARNING):
        record_window(directory, report(2, 60), MODEL, window(2))
    (alert,) = queued(directory)
    (block,) = [
        text
        for text in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if '"event"' in text
    ]
    shown = json.loads(block)
    assert shown.keys() == alert.keys()
    for key in ("window", "metric"):
        assert shown[key].keys() == alert[key].keys()
    assert alert["report"] == f"/api/reports/{2:019d}-0000"
    (line,) = caplog.messages
    assert line == (
        f"evaluation of {MODEL} from 2026-03-02T00:00:00.000Z to 2026-03-03T00:00:00.000Z: "
        f"{alert['reason']}, report {2:019d}-0000"
    )
