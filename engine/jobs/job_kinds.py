"""The kinds of jobs and the functions that do their work, each imported when a job of its kind starts."""

from collections.abc import Callable, Mapping
from importlib import import_module
from ssl import SSLContext

from quadriga.engine.models.runners.free_memory import return_free_memory
from quadriga.store.job_runner import JobRun, JobWork


def import_when_run(target: str) -> JobWork:
    """Return work that imports its function, `module:attribute`, when a job starts."""

    def work(run: JobRun) -> str:
        module, _, attribute = target.partition(":")
        function: JobWork = getattr(import_module(module), attribute)
        try:
            return function(run)
        finally:
            return_free_memory()

    return work


JOB_KINDS: Mapping[str, JobWork] = {
    "baseline": import_when_run("quadriga.monitor.drift.job:run_baseline"),
    "drift": import_when_run("quadriga.monitor.drift.job:run_drift"),
    "evaluation": import_when_run("quadriga.monitor.evaluation.job:run_evaluation"),
    "export": import_when_run("quadriga.store.exchange.export:run_export"),
}
"""The work of each kind. Names of kinds are stored in `job.json`: do not change them."""

BULK_INFERENCE = "bulk-inference"
"""Kind of the jobs that run a model over images: hours may pass, so a runner of its own does them."""


def bulk_inference(
    url: str, folder: str, max_bytes: int, key: str, *, tls: Callable[[], SSLContext] | None = None
) -> JobWork:
    """Return the work of bulk inference; arguments as of `quadriga.engine.commands.bulk_inference`."""

    def work(run: JobRun) -> str:
        module = import_module("quadriga.engine.commands.bulk_inference")
        name: str = module.run_bulk_inference(
            run, url=url, folder=folder, max_bytes=max_bytes, key=key, tls=tls
        )
        return name

    return work
