"""The kinds of jobs and the functions that do their work, each imported when a job of its kind starts."""

from collections.abc import Mapping
from importlib import import_module

from quadriga.store.jobs import JobRun, JobWork


def import_when_run(target: str) -> JobWork:
    """Return work that imports its function, `module:attribute`, when a job starts."""

    def work(run: JobRun) -> str:
        module, _, attribute = target.partition(":")
        function: JobWork = getattr(import_module(module), attribute)
        return function(run)

    return work


JOB_KINDS: Mapping[str, JobWork] = {
    "baseline": import_when_run("quadriga.monitor.drift.job:run_baseline"),
    "drift": import_when_run("quadriga.monitor.drift.job:run_drift"),
    "evaluation": import_when_run("quadriga.monitor.evaluation.job:run_evaluation"),
    "export": import_when_run("quadriga.store.exchange.export:run_export"),
}
"""The work of each kind. Names of kinds are stored in `job.json`: do not change them."""
