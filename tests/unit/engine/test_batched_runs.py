"""Runs that requests share: each gets its own rows, and what happens to one happens to no other."""

import gc
import random
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from quadriga.engine.measures.model_counts import begin_events, stages_ms, take_events
from quadriga.engine.models.runners import batched_runs
from quadriga.engine.models.runners.batched_runs import BatchedRuns, Batching
from quadriga.proto.errors import ClientLeft, DeadlineExceeded
from quadriga.proto.request import Deadline, RequestContext, set_current_request

LONG_S = 20.0
NAMES = ["y", "sum"]


class Options:
    """Options of a run, as onnxruntime's."""

    terminate = False


class GatedGraph:
    """Y = 2 x and the sum of each row, once the gate is open; a row that begins with -1 is refused."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.sizes: list[int] = []
        self.most_at_once = self.running = 0
        self.delay_s = 0.0

    def run(self, names, feeds, options):
        x = feeds["x"]
        self.sizes.append(len(x))
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        time.sleep(self.delay_s)
        end_s = time.monotonic() + LONG_S
        while not self.gate.wait(0.002):
            assert time.monotonic() < end_s
            if options.terminate:
                self.running -= 1
                raise RuntimeError("terminated")
        self.running -= 1
        if (x[:, 0] == -1).any():
            raise ValueError(f"refused among {len(x)}")
        outputs = {"y": x * 2, "sum": x.sum(1)}
        return [outputs[name] for name in names]


class Clients:
    """Threads that each run rows of their own; `stop` ends the request of one."""

    def __init__(self, runs: BatchedRuns) -> None:
        self.runs = runs
        self.outcomes: dict[str, object] = {}
        self.deadlines: dict[str, Deadline] = {}
        self.threads: dict[str, threading.Thread] = {}

    def start(self, name: str, x, names=NAMES) -> None:
        deadline = self.deadlines[name] = Deadline()

        def work():
            set_current_request(RequestContext(deadline=deadline))
            try:
                self.outcomes[name] = self.runs.run(names, {"x": np.array(x, np.float32)})
            except Exception as error:  # noqa: BLE001 - compared below
                self.outcomes[name] = error

        self.threads[name] = threading.Thread(target=work)
        self.threads[name].start()

    def stop(self, name: str) -> None:
        self.deadlines[name].stop(ClientLeft(name))

    def join(self, *names: str) -> None:
        for name in names or tuple(self.threads):
            self.threads[name].join(LONG_S)
            assert not self.threads[name].is_alive(), name

    def until_waiting(self, count: int) -> None:
        until(lambda: len(self.runs._waiting) == count)

    def check(self, name: str, x) -> None:
        """Check that a client has its own answer."""
        outcome = self.outcomes[name]
        assert isinstance(outcome, list), (name, outcome)
        rows = np.array(x, np.float32)
        np.testing.assert_array_equal(outcome[0], rows * 2)
        np.testing.assert_array_equal(outcome[1], rows.sum(1))


def until(condition) -> None:
    end_s = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


@pytest.fixture
def graph() -> Iterator[GatedGraph]:
    graph = GatedGraph()
    yield graph
    graph.gate.set()


def clients_of(graph, runs_at_once=1, **batching) -> Clients:
    runs = BatchedRuns(
        graph.run,
        Options,
        Batching(**batching),
        runs_at_once=runs_at_once,
    )
    return Clients(runs)


def start_behind_a_run(clients: Clients, graph: GatedGraph, rows: dict[str, object]) -> None:
    """Start a run, and then clients one after the other, which wait for it to end."""
    graph.gate.clear()
    clients.start("first", [[0, 0]])
    until(lambda: graph.running == 1)
    for count, (name, x) in enumerate(rows.items(), 1):
        clients.start(name, x)
        clients.until_waiting(count)


ROWS = {"a": [[1, 2]], "b": [[3, 4], [5, 6]], "c": [[7, 8]], "d": [[9, 9]]}


def test_what_waits_runs_together_and_each_gets_its_own_rows(graph):
    clients = clients_of(graph)
    start_behind_a_run(clients, graph, ROWS)
    graph.gate.set()
    clients.join()
    assert graph.sizes == [1, 5]
    for name, x in ROWS.items():
        clients.check(name, x)


@pytest.mark.parametrize(
    ("rows", "batching", "sizes"),
    [
        (ROWS, {"max": 2}, [2, 2, 1]),  # a and c, for b fills a run alone
        (ROWS, {"max": 3}, [3, 2]),
        ({"a": [[1, 1]], "b": [[2, 2, 2]], "c": [[3, 3]]}, {}, [2, 1]),
        ({"a": [[1, 1]] * 20, "b": [[2, 2]], "c": [[3, 3]]}, {}, [20, 2]),
        ({"none": np.zeros((0, 2)), "b": [[2, 2]], "c": [[3, 3]]}, {}, [0, 2]),
    ],
    ids=["two", "three", "other-shape", "larger-than-a-run", "no-row"],
)
def test_only_what_fits_runs_together_and_the_first_to_come_never_waits_longer(
    graph, rows, batching, sizes
):
    clients = clients_of(graph, **batching)
    start_behind_a_run(clients, graph, rows)
    graph.sizes.clear()
    graph.gate.set()
    clients.join()
    assert graph.sizes == sizes
    for name, x in rows.items():
        clients.check(name, x)


def test_the_inputs_of_a_run_have_a_limit_in_bytes(graph, monkeypatch):
    monkeypatch.setattr(batched_runs, "MAX_SHARED_BYTES", 3 * 2 * 4)
    clients = clients_of(graph)
    start_behind_a_run(clients, graph, ROWS)
    graph.gate.set()
    clients.join()
    assert graph.sizes == [1, 3, 2]


def test_requests_for_other_outputs_do_not_share_a_run(graph):
    clients = clients_of(graph)
    start_behind_a_run(clients, graph, {"a": [[1, 2]]})
    clients.start("sums", [[1, 2]], ["sum"])
    clients.until_waiting(2)
    graph.gate.set()
    clients.join()
    assert graph.sizes == [1, 1, 1]
    assert [array.tolist() for array in clients.outcomes["sums"]] == [[3]]


def test_inputs_of_different_numbers_of_rows_run_alone():
    sizes = []

    def run(names, feeds, options):
        sizes.append([len(array) for array in feeds.values()])
        time.sleep(0.01)
        return [feeds["a"].sum() + feeds["b"].sum()]

    batching = Batching(delay_ms=1000)
    runs = BatchedRuns(run, Options, batching, runs_at_once=1)
    answers = {}

    def client(number):
        feeds = {"a": np.full(2, number), "b": np.full(3, number)}
        answers[number] = runs.run(["y"], feeds)

    threads = [threading.Thread(target=client, args=[number]) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert sizes == [[2, 3]] * 5
    assert answers == {number: [5 * number] for number in range(5)}


def test_without_a_delay_nobody_waits_while_a_run_may_begin(graph):
    clients = clients_of(graph, runs_at_once=2)
    graph.gate.clear()
    clients.start("a", [[1, 1]])
    until(lambda: graph.running == 1)
    clients.start("b", [[2, 2]])
    until(lambda: graph.running == 2)
    clients.start("c", [[3, 3]])
    clients.until_waiting(1)
    graph.gate.set()
    clients.join()
    assert graph.sizes == [1, 1, 1]
    assert graph.most_at_once == 2


@pytest.mark.parametrize("runs_at_once", [1, 3])
def test_with_a_delay_the_first_waits_for_others_until_the_run_is_full(graph, runs_at_once):
    clients = clients_of(graph, runs_at_once, max=3, delay_ms=60_000)
    for name in "abc":
        clients.start(name, [[ord(name), 0]])
    clients.join()  # which waits less than the delay
    assert graph.sizes == [3]
    for name in "abc":
        clients.check(name, [[ord(name), 0]])


def test_a_delay_ends_with_fewer_than_a_full_run_and_counts_from_the_arrival(graph):
    clients = clients_of(graph, max=3, delay_ms=60)
    started_s = time.monotonic()
    clients.start("a", [[1, 0]])
    clients.join("a")
    assert time.monotonic() - started_s >= 0.06
    start_behind_a_run(clients, graph, {"b": [[2, 0]]})
    time.sleep(0.1)
    graph.gate.set()
    clients.join()
    for name, x in (("a", [[1, 0]]), ("b", [[2, 0]])):
        clients.check(name, x)


@pytest.mark.parametrize("leaving", ["a", "b", "d"], ids=["leads", "follows", "last"])
@pytest.mark.parametrize("moment", ["waiting", "running"])
def test_who_leaves_is_told_so_and_the_others_are_answered(graph, leaving, moment):
    clients = clients_of(graph)
    if moment == "waiting":
        start_behind_a_run(clients, graph, ROWS)
        clients.stop(leaving)
        clients.join(leaving)
    else:
        clients.runs.batching = Batching(max=5, delay_ms=1000)
        graph.gate.clear()
        clients.start("a", ROWS["a"])
        until(lambda: clients.runs._is_collecting)
        for name in "bcd":
            clients.start(name, ROWS[name])
        until(lambda: graph.sizes == [5])
        clients.stop(leaving)
        if leaving != "a":  # whose thread runs the graph for the others
            clients.join(leaving)
        time.sleep(0.02)  # in which the graph would see that it is to end
        assert graph.running == 1
    graph.gate.set()
    clients.join()
    if moment == "running":
        assert graph.sizes == [5], "the run that the others shared went on"
    assert isinstance(clients.outcomes[leaving], ClientLeft)
    for name, x in ROWS.items():
        if name != leaving:
            clients.check(name, x)


def test_a_run_for_which_nobody_waits_ends_early_and_the_next_begins(graph):
    clients = clients_of(graph, max=5, delay_ms=1000)
    graph.gate.clear()
    for name, x in ROWS.items():
        clients.start(name, x)
    until(lambda: graph.sizes == [5])
    for name in ROWS:
        assert graph.running == 1
        clients.deadlines[name].stop(clients.deadlines[name].exceeded())
    clients.join()
    assert all(isinstance(clients.outcomes[name], DeadlineExceeded) for name in ROWS)
    assert graph.sizes == [5]
    graph.gate.set()
    clients.start("later", [[1, 1]])
    clients.join()
    clients.check("later", [[1, 1]])


def test_a_leader_that_leaves_while_it_waits_for_others_lets_the_next_lead(graph):
    clients = clients_of(graph, max=4, delay_ms=1000)
    clients.start("a", [[1, 1]])
    until(lambda: clients.runs._is_collecting)
    clients.start("b", [[2, 2]])
    clients.until_waiting(1)
    clients.stop("a")
    clients.join("a")
    clients.start("c", [[3, 3]] * 3)
    clients.join()
    assert graph.sizes == [4]
    assert isinstance(clients.outcomes["a"], ClientLeft)
    clients.check("b", [[2, 2]])


def test_a_request_that_is_stopped_before_its_run_never_runs(graph):
    clients = clients_of(graph)
    deadline = Deadline()
    deadline.stop(ClientLeft("gone"))
    set_current_request(RequestContext(deadline=deadline))
    with pytest.raises(ClientLeft):
        clients.runs.run(NAMES, {"x": np.ones((1, 2), np.float32)})
    set_current_request(None)
    assert graph.sizes == []


@pytest.mark.parametrize("faulty", ["a", "c"], ids=["leads", "follows"])
def test_an_error_of_one_fails_no_other(graph, faulty):
    rows = {**ROWS, faulty: [[-1, 0]]}
    clients = clients_of(graph)
    start_behind_a_run(clients, graph, rows)
    graph.gate.set()
    clients.join()
    assert str(clients.outcomes[faulty]) == "refused among 1"
    for name, x in rows.items():
        if name != faulty:
            clients.check(name, x)
    assert graph.sizes == [1, 5, 1, 2, 1, 1]


def test_an_output_without_the_rows_of_the_input_reaches_nobody(graph):
    """The graph answers rows alone rightly, and one row too few where several run together."""

    def run(names, feeds, options):
        outputs = graph.run(names, feeds, options)
        return outputs if len(feeds["x"]) == 1 else [outputs[0][1:], outputs[1][1:]]

    clients = clients_of(graph)
    clients.runs._run_graph = run
    rows = {name: [[ord(name), 0]] for name in "abc"}
    start_behind_a_run(clients, graph, rows)
    graph.gate.set()
    clients.join()
    assert graph.sizes == [1, 3, 1, 1, 1]
    for name, x in rows.items():
        clients.check(name, x)


def test_what_runs_and_what_waits_gives_up_its_place_up_to_a_full_run(graph):
    clients = clients_of(graph, max=2)
    parked = []

    class Place:
        def __enter__(self):
            parked.append(threading.current_thread().name)

        def __exit__(self, *_):
            pass

    def work(number):
        set_current_request(RequestContext(give_up_place=Place))
        clients.runs.run(NAMES, {"x": np.full((1, 2), number, np.float32)})

    graph.gate.clear()
    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=work, args=[number], name=str(number)))
        threads[-1].start()
        until(lambda: graph.running == 1 and len(clients.runs._waiting) == number)  # noqa: B023 - called at once
    graph.gate.set()
    for thread in threads:
        thread.join(LONG_S)
    assert parked == ["0", "1", "2"]  # 0 runs, and two rows are a full run


@pytest.mark.parametrize("first", [1, -1], ids=["answered", "refused"])
def test_nothing_of_a_request_is_held_after_its_answer(graph, first):
    clients = clients_of(graph)
    x = np.full((1, 2), first, np.float32)
    reference = weakref.ref(x)
    deadline = Deadline()
    set_current_request(RequestContext(deadline=deadline))
    gc.disable()
    try:
        with suppress(ValueError):
            clients.runs.run(NAMES, {"x": x})
        set_current_request(None)
        del x
        assert reference() is None, "neither the runs nor the deadline hold it"
    finally:
        gc.enable()


def test_the_wait_for_a_run_is_part_of_the_queue(graph):
    clients = clients_of(graph)
    request = RequestContext()
    set_current_request(request)
    graph.gate.clear()
    clients.start("first", [[0, 0]])
    until(lambda: graph.running == 1)
    threading.Timer(0.05, graph.gate.set).start()
    begin_events(request)
    clients.runs.run(NAMES, {"x": np.ones((3, 2), np.float32)})
    events = take_events(request)
    set_current_request(None)
    clients.join()
    assert [event[2] for event in events] == [-1, -1, 3, 0]
    stages = stages_ms(0, events)
    assert stages["queue"] >= 40
    assert stages["preprocess"] + stages["infer"] + stages["postprocess"] < 40


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("delay_ms", [0, 1])
def test_under_load_with_faults_and_leaving_clients_every_answer_is_its_own(graph, seed, delay_ms):
    """One thousand requests of 40 threads; one in ten is refused by the graph, one in ten is stopped."""
    chance = random.Random(seed)
    clients = clients_of(graph, 2, max=8, delay_ms=delay_ms)
    plans = [
        [
            (chance.random() < 0.1, chance.random() < 0.1, chance.randint(1, 3), chance.random())
            for _ in range(25)
        ]
        for _ in range(40)
    ]
    wrong: list[object] = []

    def work(number, plan):
        for turn, (is_faulty, leaves, rows, after) in enumerate(plan):
            x = np.full((rows, 2), number * 100 + turn + 1, np.float32)
            x[:, 1] = np.arange(rows)
            if is_faulty:
                x[-1, 0] = -1
            deadline = Deadline()
            set_current_request(RequestContext(deadline=deadline))
            timer = threading.Timer(after * 0.004, deadline.stop, [ClientLeft("")])
            if leaves:
                timer.start()
            outcome: object = None
            try:
                outcome = clients.runs.run(NAMES, {"x": x})
                is_right = not is_faulty and np.array_equal(outcome[0], x * 2)
                is_right = is_right and np.array_equal(outcome[1], x.sum(1))
            except ValueError as error:
                outcome, is_right = error, is_faulty
            except ClientLeft as error:
                outcome, is_right = error, leaves
            timer.cancel()
            if not is_right:
                wrong.append((number, turn, plan[turn], outcome))

    graph.delay_s = 0.001
    threads = [
        threading.Thread(target=work, args=[number, plan]) for number, plan in enumerate(plans)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []
    assert max(graph.sizes) == 8
    assert graph.most_at_once <= 2
    assert not clients.runs._waiting
    assert clients.runs._leaders == 0
