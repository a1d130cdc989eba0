"""Prometheus' standard metrics of processes, `process_*`, for every process of a server."""

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

_PROC = Path("/proc")
_THREADS = "process_threads"
_THREADS_TEXT = (
    "Number of threads of the process. If it only grows, report it with the server's log."
)


class ProcessMetrics(Collector):
    """CPU time, memory, open files and threads of a server's processes, each with its name as the label `process`.

    Args:
        worker: Number of the worker that collects.
        supervisor: Process id of the supervisor, whose children are collected too; None for a single process.
    """

    def __init__(self, worker: int, supervisor: int | None = None) -> None:
        self._worker = worker
        self._supervisor = supervisor

    def collect(self) -> Iterable[Metric]:
        """Yield every metric, with a sample for each process; none where the system has no /proc."""
        metrics: dict[str, Metric] = {}
        for name, pid in self._processes().items():
            with suppress(OSError, ValueError):  # it has ended since it was listed
                for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                    labelled = metrics.setdefault(
                        metric.name, Metric(metric.name, metric.documentation, metric.type)
                    )
                    for sample in metric.samples:
                        labelled.add_sample(sample.name, {"process": name}, sample.value)
                threads = metrics.setdefault(_THREADS, Metric(_THREADS, _THREADS_TEXT, "gauge"))
                count = sum(1 for _ in (_PROC / str(pid) / "task").iterdir())
                threads.add_sample(_THREADS, {"process": name}, count)
        return metrics.values()

    def _processes(self) -> dict[str, int]:
        """Return the ids of all processes by their names, such as `worker-0`."""
        processes = {f"worker-{self._worker}": os.getpid()}
        if self._supervisor is not None:
            processes["supervisor"] = self._supervisor
            with suppress(OSError):
                tasks = _PROC / str(self._supervisor) / "task"
                for children in tasks.glob("*/children"):
                    for pid in map(int, children.read_text().split()):
                        processes |= _child(pid)
        return processes


def _child(pid: int) -> dict[str, int]:
    """Return the id of a child of the supervisor by its name, the last word of its command line."""
    with suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        if b"quadriga.engine.processes.worker" in words:
            return {words[-1].decode(errors="replace"): pid}
    return {}
