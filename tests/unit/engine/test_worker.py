"""Children of the server: how the writer's process ends, and what the jobs' waits for."""

import threading
import time

import pytest

from quadriga.engine.config.settings import Settings
from quadriga.engine.processes import worker
from quadriga.monitor.drift.watch import schedules as drift
from quadriga.monitor.drift.watch.schedules import drift_schedules
from quadriga.monitor.evaluation import schedules as evaluation
from quadriga.monitor.evaluation.schedules import evaluation_schedules
from quadriga.monitor.watch.schedules import ScheduleStore

pytest.importorskip("clickhouse_connect")


class Sink:
    """Sends until it is told to stop."""

    ended = False

    def __init__(self, *_: object) -> None:
        self.has_unsent = lambda _: False
        self.sent_until = lambda _: 0
        self.erase = lambda *_: None

    def run(self, stop: threading.Event) -> None:
        Sink.ended = stop.wait(20)


class Writer:
    """Fails at once."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def run(self, _: threading.Event) -> None:
        raise RuntimeError("a fault")


def test_failed_writer_stops_the_sender(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(worker, "_call_on_stop", lambda _: None)
    monkeypatch.setattr("quadriga.extras.clickhouse.sending.ClickHouseSender", Sink)
    monkeypatch.setattr("quadriga.store.writing.writer.Writer", Writer)
    settings = Settings(
        data=str(tmp_path), extras={"clickhouse": {"url": "http://127.0.0.1:9/none"}}
    )
    with pytest.raises(RuntimeError, match="a fault"):
        worker._run_writer(settings)
    assert Sink.ended


def test_the_jobs_process_opens_nothing_until_there_is_a_job(tmp_path, monkeypatch) -> None:
    stop_calls = []
    done = threading.Event()

    def run(*_: object) -> None:
        done.set()

    monkeypatch.setattr(worker, "_call_on_stop", stop_calls.append)
    monkeypatch.setattr(worker, "_POLL_INTERVAL_S", 0.005)
    monkeypatch.setattr("quadriga.store.jobs.runner.JobRunner.run", run)
    settings = Settings(data=str(tmp_path))
    child = threading.Thread(target=worker._run_jobs, args=(settings,))
    child.start()
    assert not done.wait(0.05)
    settings.jobs_directory.mkdir()
    assert done.wait(20)
    child.join(20)
    waiting = threading.Thread(target=worker._run_jobs, args=(Settings(data=str(tmp_path / "b")),))
    waiting.start()
    while len(stop_calls) < 2:
        time.sleep(0.005)
    stop_calls[1]()
    waiting.join(20)
    assert not waiting.is_alive()


@pytest.mark.parametrize("kind", ["drift", "evaluation"])
def test_schedules_run_once_there_is_one(tmp_path, monkeypatch, kind) -> None:
    stop_calls = []
    begun = threading.Event()

    def keep_scheduled(schedules: ScheduleStore, *_: object) -> None:
        if schedules.models() == [kind]:
            begun.set()

    monkeypatch.setattr(worker, "_call_on_stop", stop_calls.append)
    monkeypatch.setattr(worker, "_POLL_INTERVAL_S", 0.005)
    monkeypatch.setattr("quadriga.monitor.watch.schedules.run_scheduler", keep_scheduled)
    settings = Settings(data=str(tmp_path))
    child = threading.Thread(target=worker._run_jobs, args=(settings,))
    child.start()
    assert not begun.wait(0.05)
    body = b'{"every": "1h"}'
    if kind == "drift":
        schedules: ScheduleStore = drift_schedules(settings.drift_directory)
        schedules.put(kind, drift.decode_schedule(kind, body))
    else:
        schedules = evaluation_schedules(settings.evaluation_directory)
        schedules.put(kind, evaluation.decode_schedule(body))
    assert begun.wait(20)
    stop_calls[0]()
    child.join(20)
    assert not child.is_alive()
