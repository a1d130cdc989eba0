"""The slots in which threads note what they run in native code."""

import threading

from quadriga.engine.models.runners.native_runs import NativeRun, NativeRuns, create_native_runs


def test_no_run_is_left_after_runs_that_ended():
    runs = create_native_runs(2)
    worker = NativeRuns(runs.descriptor, 1)
    mark = worker.mark("m", "1")
    assert runs.read(1) == []
    mark.note_request("r")
    mark.begin()
    mark.end()
    assert runs.read(1) == []


def test_a_run_that_did_not_end_is_read_once_by_another_process_with_its_request():
    runs = create_native_runs(2)
    mark = NativeRuns(runs.descriptor, 1).mark("shapes", "3")
    mark.note_request("poison-7")
    mark.begin()
    assert runs.read(0) == []
    assert runs.read(1) == [NativeRun("shapes", "3", "poison-7")]
    assert runs.read(1) == [], "the slots are clear for the next worker"


def test_the_request_of_a_run_is_that_of_its_own_thread_and_the_newest():
    runs = create_native_runs(1)
    worker = NativeRuns(runs.descriptor, 0)
    first, second = worker.mark("a", "1"), worker.mark("b", "2")
    barrier, read = threading.Barrier(3), threading.Event()

    def run(mark, request_ids):
        for request_id in request_ids:
            mark.note_request(request_id)
        mark.begin()
        barrier.wait(30)
        read.wait(30)
        mark.end()

    threads = [
        threading.Thread(target=run, args=(first, ["long-ago", ""])),
        threading.Thread(target=run, args=(second, ["x" * 300])),
    ]
    for thread in threads:
        thread.start()
    barrier.wait(30)
    found = {run.model: run for run in runs.read(0)}
    read.set()
    for thread in threads:
        thread.join(30)
    assert found == {"a": NativeRun("a", "1", ""), "b": NativeRun("b", "2", "x" * 80)}


def test_a_run_within_a_request_leaves_the_request_marked_and_waiting_elsewhere_does_not_count():
    runs = create_native_runs(1)
    mark = NativeRuns(runs.descriptor, 0).mark("m", "1")
    mark.begin()
    mark.end(mark.begin())
    with mark.paused():
        assert runs.read(0) == []
    assert runs.read(0) == [NativeRun("m", "1", "")]


def test_names_and_ids_of_any_length_and_script_fit():
    runs = create_native_runs(1)
    mark = NativeRuns(runs.descriptor, 0).mark("n" * 128, "9" * 200)
    mark.note_request("\N{SNOWMAN}\udcff" * 60)
    mark.begin()
    ((run),) = runs.read(0)
    assert run.model == "n" * 128
    assert run.version == "9" * 31
    assert run.request_id.startswith("\N{SNOWMAN}?")


def test_threads_that_end_give_their_slots_back():
    worker = NativeRuns()
    mark = worker.mark("m", "1")
    for _ in range(600):  # more threads than slots
        thread = threading.Thread(target=mark.begin)
        thread.start()
        thread.join(30)
    assert len(worker._free) > 500
