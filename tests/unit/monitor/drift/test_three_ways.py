"""A change inside a window is judged alike in files, in stored windows, and by a schedule with a saved baseline."""

from threading import Event

import msgspec
import numpy as np
import pytest

from quadriga.monitor.drift.baselines import BaselineRequest
from quadriga.monitor.drift.files.compare_files import ColumnOptions, compare_files
from quadriga.monitor.drift.job import BaselineJob, run_baseline, run_drift
from quadriga.monitor.drift.parameters import DriftParameters, StoredWindow
from quadriga.monitor.drift.stored import compare_stored
from quadriga.monitor.drift.watch.schedules import DriftSchedule, drift_schedules
from quadriga.monitor.report.schema import Report
from quadriga.monitor.watch.schedules import Scheduler
from quadriga.store.jobs.runner import JobRun
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import ModelReference, timestamp_text
from tests.unit.store.conftest import make_record

MODEL = ModelReference("detector", "1", "a" * 64)
DAY_S, DAY_MS, ROW_MS = 86_400, 86_400_000, 40_000
FIRST_DAY, CHANGED_DAY = 20_450, 20_452
"""Days since 1970 of the baseline and of the window."""


def independent(draw, count):
    return [{"x": value} for value in draw.normal(size=count).tolist()]


def cameras(draw, count):
    """Make frames of four cameras in turns, each with a memory of its own frames."""
    values = draw.normal(size=count)
    for at in range(4, count):
        values[at] = 0.9 * values[at - 4] + values[at] * np.sqrt(1 - 0.81)
    return [{"x": value, "camera_id": f"camera{at % 4}"} for at, value in enumerate(values.tolist())]  # fmt: skip


def stepped(rows):
    return [row | {"x": row["x"] + 2 * (at >= 300)} for at, row in enumerate(rows)]


def missing(rows):
    return [row if at < 300 else {} for at, row in enumerate(rows)]


def said(report):
    return report.status, [
        (signal.name, signal.status, signal.alarm, signal.moved, signal.began and (signal.began.row, signal.began.end),
         signal.p, signal.p_part, signal.p_adjusted, signal.effect.value)
        for signal in report.signals
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("world", "change"), [(independent, stepped), (cameras, stepped), (independent, missing)]
)
def test_files_stored_windows_and_schedules_say_the_same(store, tmp_path, world, change):
    draw, files = np.random.default_rng(5), []
    for day, rows in ((FIRST_DAY, world(draw, 2000)), (CHANGED_DAY, change(world(draw, 1000)))):
        times_ms = [day * DAY_MS + at * ROW_MS for at in range(len(rows))]
        store.commit(
            *(
                make_record(smallest_id_at(time_ms), model=MODEL, metadata=row)
                for time_ms, row in zip(times_ms, rows, strict=True)
            )
        )
        lines = [
            {"created_at": timestamp_text(time_ms)} | {f"meta.{key}": value for key, value in row.items()}
            for time_ms, row in zip(times_ms, rows, strict=True)
        ]  # fmt: skip
        files.append(tmp_path / f"{day}.jsonl")
        files[-1].write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    begin, middle, end = (timestamp_text(day * DAY_MS) for day in (FIRST_DAY, CHANGED_DAY, CHANGED_DAY + 1))  # fmt: skip
    baseline, names = StoredWindow(begin, middle), ["meta.x"]

    def run(work, job):
        directory = store.jobs.directory / job.id
        return directory / work(JobRun(job, directory, store.inferences, store.blobs, Event()))

    request = BaselineJob(MODEL.name, BaselineRequest(start=begin, end=middle))
    run(run_baseline, store.jobs.submit("baseline", request))
    schedules = drift_schedules(tmp_path / "drift")
    schedules.put(MODEL.name, DriftSchedule("1d", signals=names), CHANGED_DAY * DAY_S)
    Scheduler(schedules, store.jobs).step((CHANGED_DAY + 1) * DAY_S + 60)
    (scheduled,) = (job for job in store.jobs.all() if job.kind == "drift")
    source_key = "meta.camera_id" if world is cameras else None
    of_files = compare_files(*files, ColumnOptions(source_key=source_key))
    of_store = compare_stored(
        store.inferences,
        DriftParameters(MODEL.name, start=middle, end=end, baseline=baseline, signals=names),
    )
    of_schedule = msgspec.json.decode(run(run_drift, scheduled).read_bytes(), type=Report)
    assert of_files.status in ("drift", "insufficient")
    assert said(of_files) == said(of_store) == said(of_schedule)
