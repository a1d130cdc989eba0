"""What models have done: how often, for how long, by phase of a request and by size of batch.

The times of a request are read off the runs of its graph: what precedes a run prepares its input, what
follows it reads its output. That costs a request of one run 1.4 us.
"""

import threading
import time
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from quadriga.proto.messages import BatchStatistics, Duration, ModelStatistics

Counted = TypeVar("Counted", ModelStatistics, BatchStatistics)

Event = tuple[int, int, int]
"""Start and end in ns of `time.perf_counter_ns`, and the batch of a run of the graph; of a moment from
which input was prepared start and batch are 0; of one at which a request began or went on the batch is -1."""

_now = time.perf_counter_ns


class Stopwatch(threading.local):
    """The runs of the request that the current thread answers; outside of one nothing is kept."""

    def __init__(self) -> None:
        self.events: list[Event] | None = None

    def start(self) -> None:
        """Begin a request, or go on with one."""
        self.events = [(0, _now(), -1)]

    def ran(self, started_ns: int, batch: int) -> None:
        """Note a run of the graph that has just ended."""
        if self.events is not None:
            self.events.append((started_ns, _now(), batch))

    def prepares(self) -> None:
        """Note that what follows prepares the next run: the outputs of the last one are read."""
        if self.events is not None:
            self.events.append((0, _now(), 0))

    def stop(self) -> list[Event]:
        """End the request; returns what happened, in its order, up to this end."""
        events = self.events or []
        self.events = None
        events.append((0, _now(), 0))
        return events


def _runs(events: list[Event]) -> list[list[int]]:
    """Give of each run of the graph its batch, and ns of input, inference and output."""
    runs = []
    run: list[int] | None = None  # whose outputs are being read
    before = events[0][1]
    for started, ended, batch in events:
        if started:
            prepared_ns = 0
            if run is None:
                prepared_ns = started - before
            else:
                run[3] += started - before
            run = [batch, prepared_ns, ended - started, 0]
            runs.append(run)
            before = ended
        elif batch < 0:
            before = ended
        elif run is not None:
            run[3] += ended - before
            run, before = None, ended
    return runs


def stages_ms(queue_ns: int, events: list[Event]) -> dict[str, float]:
    """Give the milliseconds of each stage of a request, from what `Stopwatch.stop` gives."""
    preparing = running = reading = 0
    for _, input_ns, infer_ns, output_ns in _runs(events):
        preparing += input_ns
        running += infer_ns
        reading += output_ns
    return {  # whole microseconds: rounding would cost more than all of it
        "queue": queue_ns // 1000 / 1000,
        "preprocess": preparing // 1000 / 1000,
        "infer": running // 1000 / 1000,
        "postprocess": reading // 1000 / 1000,
    }


class Counters:
    """What one version of a model has done since it was loaded; safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch_ns = time.time_ns() - _now()
        self._batches: dict[int, list[int]] = {}
        """By size: how many, and ns of input, inference and output."""
        self._images = self._succeeded = self._failed = 0
        self._success_ns = self._fail_ns = self._queue_ns = self._last_ns = 0

    def succeeded(self, images: int, queue_ns: int, events: list[Event]) -> None:
        """Count a request that was answered: of so many images or rows, it waited so long."""
        runs, ended = _runs(events), events[-1][1]
        with self._lock:
            for batch, input_ns, infer_ns, output_ns in runs:
                times = self._batches.setdefault(batch, [0, 0, 0, 0])
                times[0] += 1
                times[1] += input_ns
                times[2] += infer_ns
                times[3] += output_ns
            self._images += images
            self._succeeded += 1
            self._queue_ns += queue_ns
            self._last_ns = ended
            self._success_ns += queue_ns + ended - events[0][1]

    def failed(self, queue_ns: int, events: list[Event]) -> None:
        """Count a request that was not answered."""
        with self._lock:
            self._failed += 1
            self._fail_ns += queue_ns + events[-1][1] - events[0][1]

    def statistics(self, name: str, version: str) -> ModelStatistics:
        """Give what was counted."""
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
            spent = {
                phase: Duration(requests, sum(getattr(each, phase).ns for each in batches))
                for phase in ("compute_input", "compute_infer", "compute_output")
            }
            return ModelStatistics(
                name=name,
                version=version,
                last_inference_ms=(self._epoch_ns + self._last_ns) // 1_000_000 if requests else 0,
                inference_count=self._images,
                execution_count=sum(each.compute_infer.count for each in batches),
                success=Duration(requests, self._success_ns),
                fail=Duration(self._failed, self._fail_ns),
                queue=Duration(requests, self._queue_ns),
                **spent,
                batches=batches,
            )


def merged(parts: Iterable[ModelStatistics]) -> ModelStatistics:
    """Add up what several processes counted of one version of one model; at least one."""
    first, *others = parts
    for other in others:
        sizes = {each.batch_size: each for each in first.batches}
        for each in other.batches:
            known = sizes.get(each.batch_size, BatchStatistics(batch_size=each.batch_size))
            sizes[each.batch_size] = _added(known, each)
        batches = [sizes[size] for size in sorted(sizes)]
        first = msgspec.structs.replace(_added(first, other), batches=batches)
    return first


def _added(first: Counted, other: Counted) -> Counted:
    """Add two of a kind, field by field; sizes, names and lists stay the first's."""
    sums: dict[str, object] = {}
    for name in first.__struct_fields__:
        mine, more = getattr(first, name), getattr(other, name)
        if isinstance(mine, Duration):
            sums[name] = Duration(mine.count + more.count, mine.ns + more.ns)
        elif name.endswith("_count"):
            sums[name] = mine + more
        elif name == "last_inference_ms":
            sums[name] = max(mine, more)
    return msgspec.structs.replace(first, **sums)
