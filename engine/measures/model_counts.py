"""What the requests to a model add to the counts that processes share: durations as histograms, images and runs of the graph.

A request costs a search among the bounds for each duration, and about a dozen additions, written out as calls would cost more.
"""

from bisect import bisect_left

from quadriga.engine.measures.shared_counts import OTHER, CountRow, SharedCounts
from quadriga.proto.request import wire_protocol

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


class ModelCounts:
    """The rows of one version of a model; its methods are called with `lock` held.

    Args:
        counts: The counts that processes share.
        model: Name of the model.
        version: Its version.
    """

    def __init__(self, counts: SharedCounts, model: str, version: str) -> None:
        self._counts = counts
        self._model = model, version
        self.lock = counts.lock
        self._runs = self._row(RUNS).cells
        self._queue, self._input, self._infer, self._output = (
            self._row(STAGE, stage).cells for stage in STAGES
        )
        self._successes: dict[str, memoryview[int]] = {}
        """Cells of durations by protocol, as requests name it."""
        self._failures: dict[str, memoryview[int]] = {}
        self._add_protocol("v2")  # a series that begins at 0 has a rate from its first request on

    def _add_protocol(self, protocol: str) -> None:
        """Make the rows of a protocol, given as requests name it."""
        wire = wire_protocol(protocol)
        self._successes[protocol] = self._row(REQUEST, "success", wire).cells
        self._failures[protocol] = self._row(REQUEST, "failure", wire).cells

    def note_success(
        self,
        protocol: str,
        duration_ns: int,
        images: int,
        stages_ns: tuple[int, int, int, int],
    ) -> None:
        """Count a request that was answered, with its images or rows and the times of `STAGES`."""
        queue_ns, input_ns, infer_ns, output_ns = stages_ns
        bounds, total, find, least = _BOUNDS_NS, SUM, bisect_left, _LEAST_NS
        if protocol not in self._successes:
            self._add_protocol(protocol)
        cells = self._successes[protocol]
        cells[0 if duration_ns <= least else find(bounds, duration_ns)] += 1
        cells[total] += duration_ns
        cells = self._queue
        cells[0 if queue_ns <= least else find(bounds, queue_ns)] += 1
        cells[total] += queue_ns
        cells = self._input
        cells[0 if input_ns <= least else find(bounds, input_ns)] += 1
        cells[total] += input_ns
        cells = self._infer
        cells[0 if infer_ns <= least else find(bounds, infer_ns)] += 1
        cells[total] += infer_ns
        cells = self._output
        cells[0 if output_ns <= least else find(bounds, output_ns)] += 1
        cells[total] += output_ns
        self._runs[IMAGES] += images

    def note_failure(self, protocol: str, duration_ns: int) -> None:
        """Count a request that failed."""
        if protocol not in self._failures:
            self._add_protocol(protocol)
        cells = self._failures[protocol]
        cells[bisect_left(_BOUNDS_NS, duration_ns)] += 1
        cells[SUM] += duration_ns

    def note_run(self, batch: int) -> None:
        """Count a run of the graph, with its number of images or rows."""
        cells = self._runs
        cells[_SMALL[batch] if batch < len(_SMALL) else _BEYOND] += 1
        cells[SIZE_SUM] += batch

    def _row(self, kind: str, *labels: str) -> CountRow:
        return self._counts.row((kind, *self._model, *labels), (kind, OTHER, OTHER, *labels))
