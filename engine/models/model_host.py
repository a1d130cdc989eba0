"""What a worker gives to the models in it: their counts, and the runner of their graphs, here or isolated."""

import math
import os
from pathlib import Path
from typing import Literal

import msgspec

from quadriga.engine.measures.model_counts import ModelCounters
from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.engine.models.recognition.model_toml import RuntimeOptions
from quadriga.engine.models.runners.crashes import ModelRuns
from quadriga.engine.models.runners.isolated_runner import IsolatedRunner, ProcessLimits
from quadriga.engine.models.runners.session import LocalRunner, Runner

DEFAULT_MEMORY_MB = 2048
"""MiB that the process of a model may take besides four times the size of its files."""

_MIB = 1024 * 1024


class ModelHost(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The part of a worker that its models share."""

    counts: SharedCounts = msgspec.field(default_factory=SharedCounts)
    """Counts of the server, with the crashes of its models."""
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

    def counters(self, name: str, version: str) -> ModelCounters:
        """Return the counters of a model; a trial adds nothing to what processes share."""
        return ModelCounters(None if self.origin == "trial" else self.counts, name, version)

    def runner(self, runtime: RuntimeOptions, runs: ModelRuns, path: Path) -> Runner:
        """Return what runs the graphs of a model version, whose file or folder is `path`."""
        is_isolated = (
            (self.origin == "trial" or runtime.isolation == "process" or runs.is_shared)
            or (self.origin == "client" and self.isolation != "none")  # whatever the client says
            or (not self.ignores_crashes and runs.needs_isolation())
            or (self.isolation == "all" and runtime.isolation is None)
        )
        runs.note_isolation(is_isolated=is_isolated)
        if not is_isolated:
            return LocalRunner(runs, self.load_timeout_s, ends_with_device=self.is_server)
        own_mb = DEFAULT_MEMORY_MB + 4 * math.ceil(files_bytes(path) / _MIB)
        memory_mb = runtime.memory_limit_mb or own_mb
        if self.origin != "repository":
            memory_mb = min(memory_mb, own_mb)
        cpu_s = math.ceil(self.load_timeout_s * (os.cpu_count() or 1))
        limits = ProcessLimits(
            memory_mb=memory_mb,
            run_s=runtime.run_limit_s,
            load_s=self.load_timeout_s,
            cpu_s=cpu_s if self.origin == "trial" else 0,
        )
        return IsolatedRunner(runs, limits)


def files_bytes(path: Path) -> int:
    """Return the size of a model's file and of the files beside it, which may have its weights."""
    folder = path if path.is_dir() else path.parent
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
