"""What a worker gives to the models in it: how their graphs are opened, and the record of their crashes."""

import math
import os
from pathlib import Path
from typing import Literal

import msgspec

from quadriga.engine.measures.model_counts import ModelCounters, ModelCounts
from quadriga.engine.measures.shared_counts import OTHER, SharedCounts
from quadriga.engine.models.recognition.model_toml import RuntimeOptions
from quadriga.engine.models.runners.crash_record import RUNNING, CrashRecord, RunMark
from quadriga.engine.models.runners.graph_process import ProcessGraphs, ProcessLimits
from quadriga.engine.models.runners.session import GraphSource, LocalGraphs

DEFAULT_MEMORY_MB = 2048
"""MiB that the process of a model may take besides four times the size of its files."""

_MIB = 1024 * 1024


class ModelHost(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The part of a worker that its models share."""

    crashes: CrashRecord = msgspec.field(default_factory=CrashRecord)
    """Crashes of the models of the server."""
    counts: SharedCounts | None = None
    """Counts that processes share; None counts in this process alone."""
    isolation: Literal["none", "clients", "all"] = "none"
    """Models that run in a process of their own, unless their model.toml says otherwise."""
    load_timeout_s: float = 60.0
    """Seconds within which a warm-up must end."""
    origin: Literal["repository", "client", "trial"] = "repository"
    """Origin of the model: our own folder, files of a client, or a trial before a load."""
    is_server: bool = False
    """Whether this process belongs to a server, which starts it again when it ends."""
    ignores_crashes: bool = False
    """Whether a model shares the worker's process although it has crashed."""

    @property
    def always_warms_up(self) -> bool:
        """Whether a model is run once even if its model.toml says no."""
        return self.origin == "trial"

    def counters(self, name: str, version: str) -> ModelCounters:
        """Return the counters of a model; a trial adds nothing to what processes share."""
        if self.counts is None or self.origin == "trial":
            return ModelCounters()
        return ModelCounters(ModelCounts(self.counts, name, version))

    def mark(self, name: str, version: str) -> RunMark:
        """Return the mark of a model's runs in this process."""
        if self.counts is None:
            return RunMark()
        return RunMark(self.counts.row((RUNNING, name, version), (RUNNING, OTHER, OTHER)))

    def is_isolated(self, runtime: RuntimeOptions, name: str, version: str) -> bool:
        """Check whether a model runs in a process of its own."""
        if self.origin == "trial" or runtime.isolation == "process":
            return True
        if self.origin == "client" and self.isolation != "none":
            return True  # whatever the client says
        if not self.ignores_crashes and self.crashes.needs_own_process(name, version):
            return True
        return self.isolation == "all" and runtime.isolation is None

    def graphs(
        self, mark: RunMark, runtime: RuntimeOptions, name: str, version: str, path: Path
    ) -> GraphSource:
        """Return what opens the graphs of a model version, whose file or folder is `path`."""
        is_isolated = mark.is_shared or self.is_isolated(runtime, name, version)
        mark.note_isolation(is_isolated=is_isolated)
        if not is_isolated:
            return LocalGraphs(mark, self.load_timeout_s, ends_with_device=self.is_server)
        own_mb = 4 * math.ceil(files_bytes(path) / _MIB)
        memory_mb = runtime.memory_limit_mb or DEFAULT_MEMORY_MB + own_mb
        if self.origin != "repository":
            memory_mb = min(memory_mb, DEFAULT_MEMORY_MB + own_mb)
        cpu_s = 0
        if self.origin == "trial":
            cpu_s = math.ceil(self.load_timeout_s * (os.cpu_count() or 1))
        limits = ProcessLimits(
            memory_mb=memory_mb,
            run_s=runtime.run_limit_s,
            load_s=self.load_timeout_s,
            cpu_s=cpu_s,
        )
        return ProcessGraphs(name, version, limits, crashes=self.crashes, mark=mark)


def files_bytes(path: Path) -> int:
    """Return the size of a model's file and of the files beside it, which may have its weights."""
    folder = path if path.is_dir() else path.parent
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
