import os
import re

import msgspec
import pytest

from quadriga.engine.assembly import store_metrics
from quadriga.engine.assembly.store_metrics import StoreMetrics
from quadriga.engine.config.settings import Settings
from quadriga.engine.jobs.job_kinds import BULK_INFERENCE, JOB_KINDS, REPLAY
from quadriga.engine.measures.metrics import TEXTS
from quadriga.monitor.drift.watch.schedules import DriftSchedule, drift_schedules
from quadriga.monitor.report.saved import REPORT_FILE, ReportStore
from quadriga.monitor.report.schema import (
    Data,
    Effect,
    Metric,
    PastWindow,
    Report,
    ReportedModel,
    Signal,
    Window,
)
from quadriga.store.database.sizes import StoredSize, write_size
from quadriga.store.jobs.jobs import JOB_STATES, Jobs, Result, write_job
from quadriga.store.journal.journal import Journal
from quadriga.store.records.ids import EPOCH_MS, IMPORT_WORKER, TIME_SHIFT
from quadriga.store.records.scope import Scope
from quadriga.store.writing.writer import Writer
from tests.unit.store.conftest import make_record


def record_at(minutes: int):
    """Make a record so many minutes after the first possible id."""
    return make_record((minutes * 60_000 << TIME_SHIFT) + 1)


class Place:
    """The data folder of a server, and the metrics of it an hour after the first id."""

    def __init__(self, data) -> None:
        self.settings = Settings(data=str(data), models=str(data / "models"))
        self.data = data
        self.jobs = Jobs(self.settings.jobs_directory)
        self.metrics = StoreMetrics(
            self.settings, self.jobs, ReportStore(self.jobs),
            clock=lambda: EPOCH_MS / 1000 + 3600,
        )  # fmt: skip

    def report(self, kind, model, team="", state="succeeded", **fields) -> str:
        """Write a job with its report, or one that has none."""
        jobs = self.jobs.within(Scope(team=team)) if team else self.jobs
        job = jobs.submit(kind, {})
        folder = self.settings.jobs_directory / job.id
        result = None
        if state == "succeeded":
            report = Report(
                id=job.id, kind=kind, task="OBJECT_DETECTION", data=Data(Window(n=7)),
                model=ReportedModel(model, "1"), **fields,
            )  # fmt: skip
            data = msgspec.json.encode(report)
            (folder / REPORT_FILE).write_bytes(data)
            result = Result(REPORT_FILE, len(data))
        write_job(folder, msgspec.structs.replace(job, state=state, result=result))
        return job.id

    def samples(self) -> dict:
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in self.metrics.collect()
            for sample in family.samples
        }


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(store_metrics, "REPORTS_S", 0.0)


def test_an_empty_folder_has_numbers_too(place):
    samples = place.samples()
    jobs = {key: samples.pop(key) for key in [*samples] if key[0] == "quadriga_jobs"}
    kinds = {*JOB_KINDS, BULK_INFERENCE, REPLAY}
    assert jobs == {("quadriga_jobs", kind, state): 0 for kind in kinds for state in JOB_STATES}
    assert samples.pop(("quadriga_disk_free_bytes", "data")) > 0
    assert samples == {
        ("quadriga_store_oldest_waiting_seconds",): 0,
        ("quadriga_store_dead_records",): 0,
        ("quadriga_store_dead_segments",): 0,
        ("quadriga_store_damaged_databases",): 0,
        ("quadriga_jobs_waiting",): 0,
    }


def test_the_oldest_record_that_waits_has_an_age(place):
    first, second = (Journal(place.settings.journal_directory, worker) for worker in (0, 1))
    first.append([record_at(20), record_at(50)])
    Journal(place.settings.journal_directory, IMPORT_WORKER).append([record_at(1)])  # of any time
    second.append([record_at(30)])
    assert place.samples()["quadriga_store_oldest_waiting_seconds",] == 40 * 60
    writer = Writer(place.settings.journal_directory, place.settings.database_url)
    writer.drain()
    samples = place.samples()
    assert samples["quadriga_store_oldest_waiting_seconds",] == 0
    files = [place.data / f"store.db{suffix}" for suffix in ("", "-wal")]
    sizes = [file.stat().st_size for file in files if file.exists()]
    assert samples["quadriga_store_database_bytes",] == sum(sizes) > 0
    second.append([record_at(59)])
    assert place.samples()["quadriga_store_oldest_waiting_seconds",] == 60
    second.append([record_at(180)])  # from a clock that is ahead
    writer.drain()
    first.append([record_at(120)])
    assert place.samples()["quadriga_store_oldest_waiting_seconds",] == 0
    writer.close()


def test_what_was_put_aside_is_counted(place):
    file = place.data / "dead.jsonl"
    file.write_bytes(b'{"id": "1"}\n{"id": "2"}\n')
    (place.data / "dead").mkdir()
    (place.data / "dead" / "a.journal.7").write_bytes(b"x")
    assert place.samples()["quadriga_store_dead_records",] == 2
    assert place.samples()["quadriga_store_dead_segments",] == 1
    with file.open("ab") as more:
        more.write(b"x" * (3 << 20) + b"\n")
    assert place.samples()["quadriga_store_dead_records",] == 3
    file.unlink()
    assert place.samples()["quadriga_store_dead_records",] == 0
    file.write_bytes(b'{"id": "4"}\n')
    assert place.samples()["quadriga_store_dead_records",] == 1


def test_the_images_may_have_a_disk_of_their_own(place):
    (place.data / "blobs").mkdir()
    free = os.statvfs(place.data)
    total = free.f_blocks * free.f_frsize
    samples = place.samples()
    for folder in ("data", "images"):
        assert 0 < samples["quadriga_disk_free_bytes", folder] <= total


def test_jobs_count_by_kind_and_state(place, at_once):
    place.report("drift", "m", state="failed")
    place.report("drift", "m", state="failed")
    place.report("evaluation", "m", state="running")
    samples = place.samples()
    assert samples["quadriga_jobs", "drift", "failed"] == 2
    assert samples["quadriga_jobs", "evaluation", "running"] == 1
    assert samples["quadriga_jobs_waiting",] == 1


def signal(name, *, alarm):
    effect = Effect("difference", 0.1, 0.05)
    return Signal(name, "numeric", "ks", effect, n=(10, 10), alarm=alarm)


def test_the_newest_reports_of_each_model_and_team(place, at_once):
    old, new = "2025-01-01T00:00:00Z", "2025-01-02T00:00:00.5Z"
    alarms = [signal("a", alarm=True), signal("b", alarm=False), signal("c", alarm=True)]
    place.report("drift", "m", status="ok", created=old)
    place.report("drift", "m", status="drift", created=new, signals=alarms)
    place.report("drift", "m", team="red", status="ok", created=new)
    place.report("drift", "n", status="insufficient", created="")
    place.report("evaluation", "m", created=old, metrics=[Metric("AP", 0.75), Metric("AR", 0.5)])
    place.report("evaluation", "n", created=old, metrics=[Metric("AP", None)])
    samples = place.samples()
    assert samples["quadriga_drift_alarm", "m", ""] == 1
    assert samples["quadriga_drift_alarmed_signals", "m", ""] == 2
    assert samples["quadriga_drift_report_timestamp_seconds", "m", ""] == 1_735_776_000.5
    assert samples["quadriga_drift_alarm", "m", "red"] == 0
    assert samples["quadriga_drift_alarm", "n", ""] == 0
    assert samples["quadriga_evaluation_metric", "m", "", "AP"] == 0.75
    assert ("quadriga_evaluation_metric", "m", "", "AR") not in samples
    assert ("quadriga_evaluation_metric", "n", "", "AP") not in samples
    assert samples["quadriga_evaluation_timestamp_seconds", "n", ""] == 1_735_689_600
    place.report("drift", "m", status="ok", created=new)
    assert place.samples()["quadriga_drift_alarm", "m", ""] == 0


def test_what_is_compared_beside_a_schedule_is_not_told(place, at_once):
    """One alarm by hand is newer than the schedule's last comparison, which had none."""
    history = [PastWindow(None, None, 9, "ok", "r")]
    place.report("drift", "m", status="drift", history=history)
    place.report("drift", "m", status="ok", history=history)
    place.report("drift", "m", status="drift")
    assert place.samples()["quadriga_drift_alarm", "m", ""] == 1
    schedules = drift_schedules(place.settings.drift_directory)
    schedules.within(Scope(team="red")).put("m", DriftSchedule("1d"))
    assert place.samples()["quadriga_drift_alarm", "m", ""] == 1
    schedules.put("m", DriftSchedule("1d"))
    assert place.samples()["quadriga_drift_alarm", "m", ""] == 0


def test_a_damaged_report_leaves_the_other_metrics(place, at_once):
    job_id = place.report("drift", "m", status="drift", created="2025-01-01T00:00:00Z")
    (place.settings.jobs_directory / job_id / REPORT_FILE).write_bytes(b"{")
    samples = place.samples()
    assert samples["quadriga_jobs", "drift", "succeeded"] == 1
    assert ("quadriga_drift_alarm", "m", "") not in samples


def test_jobs_and_reports_are_read_now_and_then_alone(place):
    assert place.samples()["quadriga_jobs", "drift", "failed"] == 0
    place.report("drift", "m", state="failed")
    assert place.samples()["quadriga_jobs", "drift", "failed"] == 0


def test_sizes_are_those_that_were_measured_and_have_their_time(place):
    write_size(place.data, "images", StoredSize(bytes=700, count=3, measured_at=1000.5))
    write_size(place.data, "database", StoredSize(bytes=9, measured_at=2000.5))
    samples = place.samples()
    assert samples["quadriga_store_images",] == 3
    assert samples["quadriga_store_image_bytes",] == 700
    assert samples["quadriga_store_measured_timestamp_seconds", "images"] == 1000.5
    assert samples["quadriga_store_database_bytes",] == 9
    assert samples["quadriga_store_measured_timestamp_seconds", "database"] == 2000.5


def test_a_file_of_sqlite_goes_before_what_was_measured_of_another_database(place):
    write_size(place.data, "database", StoredSize(bytes=9, measured_at=2000.5))
    (place.data / "store.db").write_bytes(b"x" * 4096)
    samples = place.samples()
    assert samples["quadriga_store_database_bytes",] == 4096
    assert ("quadriga_store_measured_timestamp_seconds", "database") not in samples


@pytest.mark.parametrize("content", [b"", b"{", b'{"bytes": "many"}', b"\xff"])
def test_damaged_sizes_are_left_out(place, content):
    (place.data / "sizes").mkdir()
    (place.data / "sizes" / "images.json").write_bytes(content)
    assert ("quadriga_store_images",) not in place.samples()


def test_a_server_has_no_more_than_so_many_series_of_models(place, at_once, monkeypatch):
    monkeypatch.setattr(store_metrics, "MAX_REPORTED", 3)
    for number in range(5):
        place.report("drift", f"m{number}", status="ok")
    found = [key for key in place.samples() if key[0] == "quadriga_drift_alarm"]
    assert len(found) == 3


def test_each_metric_has_its_text(place):
    for family in place.metrics.collect():
        name = re.sub("_total$", "", family.name)
        assert family.documentation == TEXTS[name]
