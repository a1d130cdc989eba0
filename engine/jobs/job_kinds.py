"""The kinds of jobs and the functions that do their work, each imported when a job of its kind starts."""

from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name
from ssl import SSLContext
from typing import Annotated, Any

import msgspec

from quadriga.engine.config.extras import dataset_formats
from quadriga.engine.models.runners.free_memory import return_free_memory
from quadriga.store.jobs.jobs import EndWebhook
from quadriga.store.jobs.runner import JobRun, JobWork
from quadriga.store.query.request import decode_body
from quadriga.store.records.errors import QueryError


def import_when_run(target: str, **options: Callable[[], Any]) -> JobWork:
    """Return work that imports its function, `module:attribute`, when a job starts, and makes its options then."""

    def work(run: JobRun) -> str:
        function: Callable[..., str] = resolve_name(target)
        try:
            return function(run, **{name: make() for name, make in options.items()})
        finally:
            return_free_memory()

    return work


JOB_KINDS: Mapping[str, JobWork] = {
    "baseline": import_when_run("quadriga.monitor.drift.job:run_baseline"),
    "drift": import_when_run("quadriga.monitor.drift.job:run_drift"),
    "evaluation": import_when_run("quadriga.monitor.evaluation.stored:run_evaluation"),
    "export": import_when_run("quadriga.store.exchange.export:run_export", formats=dataset_formats),
}
"""The work of each kind. Names of kinds are stored in `job.json`: do not change them."""

BULK_INFERENCE, REPLAY = "bulk-inference", "replay"
"""Kinds of the jobs that run a model over images: hours may pass, so a runner of its own does them."""

MAX_REPLAYED = 100_000
"""Maximum number of inferences that a job replays."""


class ReplayParameters(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}
):
    """A version of a model, and the stored inferences of the model to replay."""

    model: str
    version: str
    where: Any = None
    """Filter of the inferences, in the form of a query's."""
    start: str | None = None
    """Time of the oldest inference, as a filter takes it; None for no limit."""
    end: str | None = None
    """Time before which inferences were made; None for that of the job."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_REPLAYED)] = 10_000
    """Maximum number of inferences: the newest."""
    parameters: dict[str, Any] = {}
    """Parameters of each request, besides the action and the prompts of the inference."""
    webhook: EndWebhook = msgspec.UNSET
    """URL that is called when the job has ended."""
    sha256: str = ""
    """Hash of the version's file, so that a file that replaced another one is replayed anew."""

    @property
    def selection(self) -> Any:
        """The filter of the inferences to replay: those that another version answered, within the times."""
        times = {"ge": self.start, "lt": self.end}
        conditions = [
            {"model": self.model},
            {"not": {"version": self.version}},
            *({"ts": {name: time}} for name, time in times.items() if time is not None),
            *([] if self.where is None else [self.where]),
        ]
        return {"and": conditions}


def decode_replay(body: bytes) -> ReplayParameters:
    """Decode the parameters of a replay from JSON.

    Raises:
        QueryError: They cannot be understood.
    """
    parameters = decode_body(body, ReplayParameters)
    if parameters.sha256:
        raise QueryError("expected no sha256: the version names the file")
    if "metadata" in parameters.parameters:
        raise QueryError("expected parameters without metadata, which is that of each inference")
    return parameters


def model_jobs(
    url: str, folder: str, max_bytes: int, key: str, *, tls: Callable[[], SSLContext] | None = None
) -> dict[str, JobWork]:
    """Return the work of the jobs that send images to the server.

    Args:
        url: URL of the server.
        folder: Folder of bulk inference that the operator allows.
        max_bytes: Maximum size of an image.
        key: Key to send with the requests; empty for none.
        tls: Returns the context of a new connection; None without TLS.
    """

    def work(run: JobRun, target: str, **arguments: Any) -> str:
        name: str = resolve_name(target)(run, url=url, key=key, tls=tls, **arguments)
        return name

    bulk = "quadriga.engine.jobs.bulk_inference:run_bulk_inference"
    return {
        BULK_INFERENCE: partial(work, target=bulk, folder=folder, max_bytes=max_bytes),
        REPLAY: partial(work, target="quadriga.engine.jobs.replay:run_replay"),
    }
