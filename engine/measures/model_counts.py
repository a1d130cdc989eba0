"""Times of requests by stage, and what a model counts: how often, for how long, by size of batch; for itself and for metrics.

The stages of a request follow from the runs of its graph: what precedes a run prepares its input, what follows it
reads its output; what it waited for a run that requests share counts as its queue. That costs a request of one run 1.4 us.

A request costs a search among the bounds for each duration, and about a dozen additions.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from quadriga.engine.measures.shared_counts import CELLS, OTHER, SharedCounts
from quadriga.proto.messages import BatchStatistics, Duration, ModelStatistics
from quadriga.proto.request import RequestContext, current_request, wire_protocol

Counted = TypeVar("Counted", ModelStatistics, BatchStatistics)


class SharedRun:
    """A run of the graph for several requests; it is counted with the first of them that is answered."""

    __slots__ = ("is_counted",)

    def __init__(self) -> None:
        self.is_counted = False


Event = tuple[int, int, int, SharedRun | None]
"""Start and end in ns of `time.perf_counter_ns`, the batch of a run of the graph, and the run if requests share it; of a
moment from which input was prepared start and batch are 0; of one at which a request began or went on, and of the time
for which it waited for a run, the batch is -1."""

_now = time.perf_counter_ns


def begin_events(request: RequestContext) -> None:
    """Begin to note what the model of a request does, or continue with it."""
    request.events = [(0, _now(), -1, None)]


def take_events(request: RequestContext) -> list[Event]:
    """Note no more of a request, until it goes on; return its events in order."""
    events = request.events or []
    request.events = None
    events.append((0, _now(), 0, None))
    return events


def record_run(started_ns: int, batch: int) -> None:
    """Note a run of the graph that has just ended, for the request that this thread answers, if any."""
    if (events := _events()) is not None:
        events.append((started_ns, _now(), batch, None))


def record_shared_run(
    waited_from_ns: int, span_ns: tuple[int, int], *, batch: int, run: SharedRun
) -> None:
    """Note a run for several requests, with its start and end, and the time for which this one waited for it."""
    if (events := _events()) is not None:
        started_ns, ended_ns = span_ns
        events.append((waited_from_ns, started_ns, -1, None))
        events.append((started_ns, ended_ns, batch, run))


def record_preparation() -> None:
    """Note that the outputs of the last run are read, and that the input of the next one is prepared."""
    if (events := _events()) is not None:
        events.append((0, _now(), 0, None))


def _events() -> list[Event] | None:
    request = current_request()
    return None if request is None else request.events


class _Run:
    """Times of one run of the graph, in nanoseconds."""

    __slots__ = ("batch", "infer_ns", "input_ns", "output_ns", "shared")

    def __init__(self, batch: int, input_ns: int, infer_ns: int, shared: SharedRun | None) -> None:
        self.batch = batch
        self.input_ns, self.infer_ns, self.output_ns = input_ns, infer_ns, 0
        self.shared = shared


def _runs(events: list[Event]) -> tuple[list[_Run], int]:
    """Return the runs of the graph, and the nanoseconds for which the request waited for them."""
    previous_ns, input_ns, waited_ns = events[0][1], 0, 0
    if len(events) == 3 and events[1][2] > 0:  # one run, as of most requests: a third of the time
        _, (start_ns, end_ns, batch, shared), (_, read_ns, _, _) = events
        only = _Run(batch, start_ns - previous_ns, end_ns - start_ns, shared)
        only.output_ns = read_ns - end_ns
        return [only], 0
    runs = []
    run: _Run | None = None  # whose outputs are being read
    for start_ns, end_ns, batch, shared in events:
        if start_ns:
            if run is None:
                input_ns += start_ns - previous_ns
            else:
                run.output_ns += start_ns - previous_ns
            if batch < 0:
                waited_ns += end_ns - start_ns
            else:
                run = _Run(batch, input_ns, end_ns - start_ns, shared)
                runs.append(run)
                input_ns = 0
            previous_ns = end_ns
        elif batch < 0:
            previous_ns = end_ns
        elif run is not None:
            run.output_ns += end_ns - previous_ns
            run, previous_ns = None, end_ns
    return runs, waited_ns


def stages_ms(queue_ns: int, events: list[Event]) -> dict[str, float]:
    """Return the milliseconds of each stage of a request, from the events of `take_events`."""
    preprocess_ns = total_infer_ns = postprocess_ns = 0
    runs, waited_ns = _runs(events)
    for run in runs:
        preprocess_ns += run.input_ns
        total_infer_ns += run.infer_ns
        postprocess_ns += run.output_ns
    return {  # whole microseconds: rounding would cost more than all of it
        "queue": (queue_ns + waited_ns) // 1000 / 1000,
        "preprocess": preprocess_ns // 1000 / 1000,
        "infer": total_infer_ns // 1000 / 1000,
        "postprocess": postprocess_ns // 1000 / 1000,
    }


class ModelCounters:
    """Statistics of one version of a model since it was loaded; safe to use from several threads.

    Args:
        counts: Counts of all processes since the server's start, to which the same is added; None for none.
        model: Name of the model.
        version: Its version.
    """

    def __init__(
        self, counts: SharedCounts | None = None, model: str = "", version: str = ""
    ) -> None:
        self._counts = counts
        self._model = model, version
        self._lock = threading.RLock() if counts is None else counts.lock
        self._runs = self._row(RUNS)
        self._stages = [self._row(STAGE, stage) for stage in STAGES]
        self._successes: dict[str, memoryview[int]] = {}
        """Cells of durations by protocol, as requests name it."""
        self._failures: dict[str, memoryview[int]] = {}
        self._epoch_ns = time.time_ns() - _now()
        self._batches: dict[int, list[int]] = {}
        """Number of runs, and nanoseconds of input, inference and output, by batch size."""
        self._shared_infer_ns = 0
        """Nanoseconds of shared runs, as often as a request shared one that is counted with another."""
        self._images = self._succeeded = self._failed = 0
        self._success_ns = self._fail_ns = self._queue_ns = self._last_ns = 0

    def _row(self, kind: str, *labels: str) -> "memoryview[int]":
        if self._counts is None:
            return memoryview(bytearray(8 * CELLS)).cast("q")
        return self._counts.row((kind, *self._model, *labels), (kind, OTHER, OTHER, *labels)).cells

    def _add_protocol(self, protocol: str) -> None:
        """Make the rows of a protocol, given as requests name it."""
        wire = wire_protocol(protocol)
        self._successes[protocol] = self._row(REQUEST, "success", wire)
        self._failures[protocol] = self._row(REQUEST, "failure", wire)

    def count_success(
        self, images: int, queue_ns: int, events: list[Event], protocol: str = "v2"
    ) -> None:
        """Count a request that was answered, with its number of images or rows and its time in the queue."""
        runs, waited_ns = _runs(events)
        queue_ns += waited_ns
        input_ns = infer_ns = output_ns = 0
        end_ns = events[-1][1]
        duration_ns = queue_ns - waited_ns + end_ns - events[0][1]
        bounds, total, find, least = _BOUNDS_NS, SUM, bisect_left, _LEAST_NS
        with self._lock:
            sizes = self._runs
            for run in runs:
                batch = run.batch
                times = self._batches.setdefault(batch, [0, 0, 0, 0])
                times[1] += run.input_ns
                times[3] += run.output_ns
                input_ns += run.input_ns
                infer_ns += run.infer_ns
                output_ns += run.output_ns
                if run.shared is not None:
                    if run.shared.is_counted:
                        self._shared_infer_ns += run.infer_ns
                        continue
                    run.shared.is_counted = True
                times[0] += 1
                times[2] += run.infer_ns
                sizes[_SMALL[batch] if batch < len(_SMALL) else _BEYOND] += 1
                sizes[SIZE_SUM] += batch
            sizes[IMAGES] += images
            self._images += images
            self._succeeded += 1
            self._queue_ns += queue_ns
            self._last_ns = end_ns
            self._success_ns += duration_ns
            if protocol not in self._successes:
                self._add_protocol(protocol)
            durations_ns = duration_ns, queue_ns, input_ns, infer_ns, output_ns
            rows = self._successes[protocol], *self._stages
            for cells, ns in zip(rows, durations_ns, strict=True):
                cells[0 if ns <= least else find(bounds, ns)] += 1
                cells[total] += ns

    def count_failure(self, queue_ns: int, events: list[Event], protocol: str = "v2") -> None:
        """Count a request that failed."""
        duration_ns = queue_ns + events[-1][1] - events[0][1]
        with self._lock:
            self._failed += 1
            self._fail_ns += duration_ns
            if protocol not in self._failures:
                self._add_protocol(protocol)
            cells = self._failures[protocol]
            cells[bisect_left(_BOUNDS_NS, duration_ns)] += 1
            cells[SUM] += duration_ns

    def statistics(self, name: str, version: str) -> ModelStatistics:
        """Return the statistics."""
        with self._lock:
            batches = [
                BatchStatistics(
                    batch_size=size,
                    compute_input=Duration(count, input_ns),
                    compute_infer=Duration(count, infer_ns),
                    compute_output=Duration(count, output_ns),
                )
                for size, (count, input_ns, infer_ns, output_ns) in sorted(self._batches.items())
            ]
            requests = self._succeeded
            durations = {
                phase: Duration(requests, sum(getattr(batch, phase).ns for batch in batches))
                for phase in ("compute_input", "compute_infer", "compute_output")
            }
            of_runs = durations["compute_infer"]
            durations["compute_infer"] = Duration(requests, of_runs.ns + self._shared_infer_ns)
            return ModelStatistics(
                name=name,
                version=version,
                last_inference_ms=(self._epoch_ns + self._last_ns) // 1_000_000 if requests else 0,
                inference_count=self._images,
                execution_count=sum(batch.compute_infer.count for batch in batches),
                success=Duration(requests, self._success_ns),
                fail=Duration(self._failed, self._fail_ns),
                queue=Duration(requests, self._queue_ns),
                **durations,
                batches=batches,
            )


def merge_statistics(statistics: Iterable[ModelStatistics]) -> ModelStatistics:
    """Add up the statistics of one version of one model from several processes, at least one."""
    merged, *others = statistics
    for other in others:
        by_size = {batch.batch_size: batch for batch in merged.batches}
        for batch in other.batches:
            existing = by_size.get(batch.batch_size, BatchStatistics(batch_size=batch.batch_size))
            by_size[batch.batch_size] = _add(existing, batch)
        batches = [by_size[size] for size in sorted(by_size)]
        merged = msgspec.structs.replace(_add(merged, other), batches=batches)
    return merged


def _add(first: Counted, second: Counted) -> Counted:
    """Add two structs field by field; sizes, names and lists stay those of the first."""
    sums: dict[str, object] = {}
    for name in first.__struct_fields__:
        left, right = getattr(first, name), getattr(second, name)
        if isinstance(left, Duration):
            sums[name] = Duration(left.count + right.count, left.ns + right.ns)
        elif name.endswith("_count"):
            sums[name] = left + right
        elif name == "last_inference_ms":
            sums[name] = max(left, right)
    return msgspec.structs.replace(first, **sums)


BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of durations."""

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper bounds of the buckets of the sizes of runs."""

STAGES = ("queue", "input", "infer", "output")

REQUEST, STAGE, RUNS = "request", "stage", "runs"
"""Kinds of rows, the first text of their names."""

SUM = len(BOUNDS_S) + 1
"""Cell of the sum of durations in ns; before it are those of the buckets, with that of what is beyond all bounds."""

SIZE_SUM = len(BATCH_SIZES) + 1
"""Cell of the sum of the sizes of runs; before it are those of the buckets."""

IMAGES = SIZE_SUM + 1
"""Cell of the number of images or rows of requests that were answered."""

_BOUNDS_NS = tuple(round(bound * 1e9) for bound in BOUNDS_S)

_LEAST_NS = _BOUNDS_NS[0]  # most stages take less, and a comparison takes half of a search

_SMALL = tuple(bisect_left(BATCH_SIZES, size) for size in range(BATCH_SIZES[-1] + 1))

_BEYOND = len(BATCH_SIZES)
