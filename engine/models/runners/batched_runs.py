"""Runs of a graph that requests share: what waits for the same model runs together, along the first axis of its inputs.

The first request that waits leads: it takes what waits beside it and fits, runs the graph in its own thread, and hands
each its rows of the outputs. Whoever comes while no run is going on waits for nobody, unless a delay is set. A run ends
early only if no request waits for it any more; where one fails, each of its requests runs alone. A request that waits gives up
its place among those that run. Whether a graph answers rows alike alone and beside others is tried with examples.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from quadriga.engine.measures.model_counts import SharedRun, record_shared_run
from quadriga.proto.request import check_deadline, current_deadline, current_request

TOLERANCE = 1e-5
"""Largest difference between a number of a row that ran alone and beside others, as a share of it if it is above 1."""
HALF_TOLERANCE = 2e-3
"""The same of outputs of 16 bits, which have three digits."""

Feeds = Mapping[str, npt.NDArray[Any]]
"""Arrays by input."""


class DependentRowsError(ValueError):
    """A graph whose rows cannot run together."""


def check_rows(names: Sequence[str], outputs: Sequence[Any], rows: int) -> None:
    """Check that each output has the rows of the input as its first axis.

    Raises:
        DependentRowsError: One has not.
    """
    for name, output in zip(names, outputs, strict=True):
        shape = np.shape(output)
        if shape[:1] != (rows,):
            raise DependentRowsError(
                f"expected output {name!r} to have the {rows} rows of the input as its first axis, got the shape "
                f"{list(shape)}"
            )


def check_independent(
    run: Callable[[dict[str, Any]], Mapping[str, Any]], examples: Sequence[Feeds], size: int
) -> None:
    """Check that rows are answered alike alone and beside others.

    Args:
        run: Runs the graph, and returns its outputs by name.
        examples: Inputs of one row each, which differ.
        size: Number of rows that run together.

    Raises:
        DependentRowsError: Outputs have no rows, or rows change each other.
    """
    alone = [run(dict(example)) for example in examples]
    for outputs in alone:
        check_rows([*outputs], [*outputs.values()], 1)
    positions = [row % len(examples) for row in range(size)]
    beside = run(
        {
            name: np.concatenate([examples[position][name] for position in positions])
            for name in examples[0]
        }
    )
    check_rows([*beside], [*beside.values()], size)
    for name, rows in beside.items():
        tolerance = HALF_TOLERANCE if rows.dtype == np.float16 else TOLERANCE
        for position, row in zip(positions, rows, strict=True):
            difference = largest_difference(np.asarray(alone[position][name][0]), np.asarray(row))
            if difference > tolerance:
                raise DependentRowsError(
                    f"expected output {name!r} of a row to be the same beside {size - 1} others as alone, within "
                    f"{tolerance:g}, got a difference of {difference:.3g}: the graph mixes rows"
                )


def largest_difference(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    """Return the largest difference, as a share of numbers above 1; infinite between shapes, whole numbers and texts."""
    if object in (first.dtype, second.dtype):  # maps from classes to scores, or texts
        first, second = _numbers(first), _numbers(second)
    if first.shape != second.shape:
        return np.inf
    if first.dtype.kind != "f":
        return 0.0 if np.array_equal(first, second) else np.inf
    first, second = first.astype(np.float64), second.astype(np.float64)
    is_finite = np.isfinite(first)
    if not np.array_equal(first[~is_finite], second[~is_finite], equal_nan=True):
        return np.inf
    scale = np.maximum(np.abs(first[is_finite]), 1.0)
    return float(np.max(np.abs(first - second)[is_finite] / scale, initial=0.0))


def _numbers(row: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the scores of a row's map, in the order of the classes; a text as it is."""
    value = row[()]
    if isinstance(value, dict):
        return np.array([value[key] for key in sorted(value)], np.float32)
    return row.astype(str)


def without_place() -> AbstractContextManager[None]:
    """Let another request run in place of this thread's while the block waits; nothing outside of a request."""
    request = current_request()
    if request is None or request.give_up_place is None:
        return nullcontext()
    return request.give_up_place()


MAX_SHARED_BYTES = 256 << 20
"""Maximum bytes of the inputs of a run that requests share."""

RunGraph = Callable[[Sequence[str], dict[str, Any], Any], Sequence[Any]]
"""Runs the graph once: names of outputs, arrays by input, and onnxruntime's options."""


class Batching(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Key `batching` of `[runtime]`: how requests share runs."""

    max: Annotated[int, Meta(ge=2, le=128)] = 8
    """Maximum number of images or rows of a run that requests share."""
    delay_ms: Annotated[float, Meta(ge=0, le=1000)] = 0.0
    """Milliseconds that a request waits for others, if they do not fill a run."""


class _Run:
    """A run that has begun, and the members that wait for it."""

    def __init__(self, members: "list[_Member]", options: Any) -> None:
        self.members, self.options = members, options
        self.rows = sum(member.rows for member in members)
        self.shared = SharedRun()
        self.started_ns, self.ended_ns = time.perf_counter_ns(), 0


class _Member:
    """The inputs of one request, which wait for a run or are in one."""

    def __init__(self, names: Sequence[str], feeds: dict[str, Any], max_rows: int) -> None:
        self.names = tuple(names)
        self.feeds = feeds
        counts = [len(array) if array.ndim else 0 for array in feeds.values()]
        self.rows = counts[0] if counts else 0
        self.size_bytes = sum(array.nbytes for array in feeds.values())
        self.is_alone = len(set(counts)) != 1 or not 0 < self.rows < max_rows
        """Whether it shares no run: it fills one, its inputs have no rows in common, or a run with it failed."""
        self.kind = (self.names, [(name, a.dtype, a.shape[1:]) for name, a in feeds.items()])
        """What members of one run have in common."""
        self.arrived_ns = time.perf_counter_ns()
        self.turn = threading.Event()
        """Set when it leads, when its run has ended, and when its request is stopped."""
        self.leads = False
        self.collects = False
        """Whether it leads, and waits for others first."""
        self.has_left = False
        self.run: _Run | None = None
        self.results: list[Any] | None = None
        self.error: BaseException | None = None


class BatchedRuns:
    """Runs a graph for several threads at once; safe to use from several threads.

    Args:
        run: Runs the graph.
        options: Makes onnxruntime's options of a run.
        batching: How many rows run together, and how long they wait for others.
        runs_at_once: Maximum runs at the same time.
        paused: Notes that the current thread waits.
    """

    def __init__(
        self,
        run: RunGraph,
        options: Callable[[], Any],
        batching: Batching,
        *,
        runs_at_once: int,
        paused: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.batching = batching
        self.runs_at_once = runs_at_once
        self._run_graph = run
        self._options = options
        self._paused = paused
        self._lock = threading.Lock()
        """Lock of everything below, and of the members."""
        self._arrived = threading.Condition(self._lock)
        """Tells the leader that waits for others about them."""
        self._waiting: deque[_Member] = deque()
        self._leaders = 0
        """Members that lead: at most `runs_at_once`."""
        self._is_collecting = False
        """Whether one of them waits for others."""

    def run(self, names: Sequence[str], feeds: dict[str, Any]) -> list[Any]:
        """Run the graph once for this thread, and for others that wait.

        Raises:
            Exception: What the graph raised when it ran for this thread alone.
            quadriga.proto.errors.ProtocolError: The request was stopped; see `Deadline.check`.
        """
        member = _Member(names, feeds, self.batching.max)
        if (deadline := current_deadline()) is not None:
            deadline.interrupt_by(partial(self._leave, member))
        with self._lock:
            self._waiting.append(member)
            self._choose_leaders()
            self._arrived.notify_all()
            rows_ahead = sum(ahead.rows for ahead in self._waiting if ahead is not member)
        # Beyond a full run requests keep their place, so that no further ones are taken into memory.
        may_give_up_place = member.leads or rows_ahead < self.batching.max
        with without_place() if may_give_up_place else nullcontext():
            run, results = self._wait_for_results(member)
        span_ns = run.started_ns, run.ended_ns
        record_shared_run(member.arrived_ns, span_ns, batch=run.rows, run=run.shared)
        member.run, member.results, member.feeds = None, None, {}  # its deadline may hold it
        return results

    def _wait_for_results(self, member: _Member) -> tuple[_Run, list[Any]]:
        """Wait for the results of a member, and lead a run if its turn comes; raises as `run`."""
        while member.results is None:
            if not member.turn.is_set():
                with self._paused():
                    member.turn.wait()
            member.turn.clear()
            if member.leads:
                self._lead(member)
            if member.has_left:
                check_deadline()
            if (error := member.error) is not None:
                member.error, member.feeds = None, {}
                try:
                    raise error
                finally:
                    del error  # its traceback holds this frame
        assert member.run is not None, "who has results has had a run"
        return member.run, member.results

    def _choose_leaders(self) -> None:
        """Let the first that wait lead, as long as runs may begin; called with the lock held."""
        while self._waiting and self._leaders < self.runs_at_once and not self._is_collecting:
            leader = self._waiting.popleft()
            leader.leads = True
            self._leaders += 1
            leader.collects = bool(self.batching.delay_ms) and not leader.is_alone
            self._is_collecting = leader.collects
            leader.turn.set()

    def _leave(self, member: _Member) -> None:
        """Wake a member whose request is stopped, in any thread; its run ends once all of its members have left."""
        with self._lock:
            member.has_left = True
            if member in self._waiting:
                self._waiting.remove(member)
            if member.run is not None and all(other.has_left for other in member.run.members):
                member.run.options.terminate = True
            self._arrived.notify_all()
        member.turn.set()

    def _lead(self, leader: _Member) -> None:
        """Run the graph for a member and those beside it, and hand each its results."""
        error: BaseException | None = None
        members = [leader]
        answers: list[list[Any]] = []
        try:
            if leader.collects:
                with self._paused():
                    self._wait_for_others(leader)
            run = self._begin(leader)
            members = run.members
            answers = self._run(run) if members else []
            run.ended_ns = time.perf_counter_ns()
        except BaseException as raised:  # noqa: BLE001 - it belongs to whoever waits for the results
            error = raised
        with self._lock:
            leader.leads = False
            self._end_collecting(leader)
            self._leaders -= 1
            self._hand_out(members, answers, error)
            self._choose_leaders()
        del error  # its traceback holds this frame

    def _begin(self, leader: _Member) -> _Run:
        """Take what runs with a member: nothing, not even itself, if its request is stopped."""
        options = self._options()
        with self._lock:
            self._end_collecting(leader)
            members = [] if leader.has_left else self._members_with(leader)
            for member in members[1:]:
                self._waiting.remove(member)
            run = _Run(members, options)
            for member in members:
                member.run = run
            self._choose_leaders()
        return run

    def _end_collecting(self, leader: _Member) -> None:
        if leader.collects:
            leader.collects = self._is_collecting = False

    def _hand_out(
        self, members: Sequence[_Member], answers: Sequence[list[Any]], error: BaseException | None
    ) -> None:
        """Give members their results or their error, or let them run alone; called with the lock held."""
        if error is not None and len(members) > 1:
            for member in reversed(members):
                member.run, member.is_alone = None, True
                if not member.has_left:
                    self._waiting.appendleft(member)
            return
        for index, member in enumerate(members):
            member.results = answers[index] if answers else None
            member.error = error
            member.turn.set()  # last: whoever wakes looks at the rest without the lock

    def _wait_for_others(self, leader: _Member) -> None:
        """Wait until a run is full, or its first member has waited as long as it may."""
        end_ns = leader.arrived_ns + int(self.batching.delay_ms * 1e6)
        with self._lock:
            while not leader.has_left:
                rest_s = (end_ns - time.perf_counter_ns()) / 1e9
                rows = sum(member.rows for member in self._members_with(leader))
                if rest_s <= 0 or rows >= self.batching.max:
                    return
                self._arrived.wait(rest_s)

    def _members_with(self, leader: _Member) -> list[_Member]:
        """Return a member and those that wait and fit beside it, in the order of their arrival."""
        members, rows, size_bytes = [leader], leader.rows, leader.size_bytes
        if leader.is_alone:
            return members
        for member in self._waiting:
            fits = rows + member.rows <= self.batching.max
            fits = fits and size_bytes + member.size_bytes <= MAX_SHARED_BYTES
            if fits and not member.is_alone and member.kind == leader.kind:
                members.append(member)
                rows, size_bytes = rows + member.rows, size_bytes + member.size_bytes
        return members

    def _run(self, run: _Run) -> list[list[Any]]:
        """Run the graph for the members of a run; return the outputs of each."""
        first = run.members[0]
        if len(run.members) == 1:
            return [list(self._run_graph(first.names, first.feeds, run.options))]
        feeds = {
            name: np.concatenate([member.feeds[name] for member in run.members])
            for name in first.feeds
        }
        outputs = self._run_graph(first.names, feeds, run.options)
        check_rows(first.names, outputs, run.rows)
        answers, start = [], 0
        for member in run.members:
            answers.append([output[start : start + member.rows] for output in outputs])
            start += member.rows
        return answers
