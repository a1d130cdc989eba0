"""Drift reports and baselines as clients ask for them: requests are checked, and jobs submitted or cancelled."""

import time
from contextlib import suppress
from typing import Literal

from msgspec.structs import replace

from quadriga.monitor.drift.baselines import (
    Baseline,
    BaselineRequest,
    BaselineState,
    BaselineStore,
    decode_baseline,
)
from quadriga.monitor.drift.job import BaselineJob
from quadriga.monitor.drift.parameters import (
    decode_parameters,
    resolve_times,
    with_model_name,
)
from quadriga.monitor.report.schema import Window
from quadriga.store.jobs.jobs import Job, Jobs
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import NotFoundError, QueryError, StoreError
from quadriga.store.records.records import now_text
from quadriga.store.records.scope import Scope


class DriftService:
    """Submits drift jobs, and keeps the baselines of models; safe to use from several threads.

    Methods raise a `QueryError` if the body or the name of a model or baseline cannot be understood, and a
    `NotFoundError` if there is no such model or baseline.
    """

    def __init__(self, jobs: Jobs, inferences: InferenceReader, baselines: BaselineStore) -> None:
        self._jobs = jobs
        self._team_jobs = jobs
        """Jobs of the team: a baseline may be read by one that sees more than the caller."""
        self._inferences = inferences
        self._baselines = baselines

    def within(self, scope: Scope) -> "DriftService":
        """Return a service that compares what a scope admits, and keeps the baselines of its team."""
        service = DriftService(
            self._jobs.within(scope), self._inferences.within(scope), self._baselines.within(scope)
        )
        service._team_jobs = self._jobs.within(Scope(scope.team))
        return service

    def submit(self, body: bytes) -> Job:
        """Submit the comparison of a window with its baseline."""
        parameters = resolve_times(decode_parameters(body), time.time_ns() // 1000)
        parameters = with_model_name(parameters, self._inferences)
        parameters = self._baselines.resolve_rolling(parameters)
        if isinstance(parameters.baseline, str):
            self.check_baseline(parameters.model, parameters.baseline)
        return self._jobs.submit("drift", parameters)

    def check_baseline(self, model: str, name: str) -> None:
        """Check that a model has a baseline that windows can be compared with, now or once it is read."""
        baseline = current_state(self._baselines.get(model, name), self._team_jobs)
        if baseline.state == "failed":
            raise QueryError(f"the baseline {baseline.name} has failed: {baseline.error}")

    def baseline_state(self, model: str, name: str) -> BaselineState | Literal["missing"]:
        """Return the state of a baseline, which may have been removed, or never made."""
        try:
            baseline = self._baselines.get(model, name)
        except NotFoundError:
            return "missing"
        return current_state(baseline, self._team_jobs, self._newest_sha256(model)).state

    def list_baselines(self, model: str) -> list[Baseline]:
        """Return the baselines of a model in their current states, by name."""
        model = self._inferences.names.resolve(model)
        return self.current_baselines(model, self._newest_sha256(model))

    def current_baselines(self, model: str, newest_sha256: str) -> list[Baseline]:
        """Return the baselines of a model, by its exact name, given the hash of the file of its newest inference."""
        return [
            current_state(baseline, self._team_jobs, newest_sha256)
            for baseline in self._baselines.all(model)
        ]

    def put_baseline(self, model: str, body: bytes) -> Baseline:
        """Create a baseline, with the job that reads it, in place of its namesake."""
        model = self._inferences.names.resolve(model)
        request = decode_baseline(model, body, time.time_ns() // 1000)
        self._inferences.check_where(request.where)
        namesakes = [
            baseline for baseline in self._baselines.all(model) if baseline.name == request.name
        ]
        created = self._create(model, request)
        for baseline in namesakes:
            self._cancel(baseline)
        return created

    def delete_baseline(self, model: str, name: str) -> Baseline:
        """Remove a baseline, and return what it was."""
        model = self._inferences.names.resolve(model)
        baseline = current_state(self._baselines.get(model, name), self._team_jobs)
        self._cancel(baseline)
        self._baselines.remove(model, name)
        return baseline

    def _create(self, model: str, request: BaselineRequest) -> Baseline:
        """Save a new baseline; unless it is rolling, submit the job that reads it."""
        baseline = Baseline(
            name=request.name,
            model=model,
            state="building",
            created="",
            version=request.version or "",
            window=Window(request.start, request.end, filter=request.window.where),
        )
        if request.rolling is None:
            job = self._jobs.submit("baseline", BaselineJob(model, request))
            return self._baselines.save_pending(
                replace(baseline, created=job.created_at, job=job.id)
            )
        created = now_text()
        return self._baselines.save_pending(
            replace(baseline, state="ready", created=created, rolling=request.rolling)
        )

    def _cancel(self, baseline: Baseline) -> None:
        """Cancel the job that is still reading a baseline."""
        if baseline.job is not None and baseline.state == "building":
            with suppress(NotFoundError):
                self._team_jobs.cancel(baseline.job)

    def _newest_sha256(self, model: str) -> str:
        """Return the hash of the model file of the newest inference, or an empty text if unknown."""
        filter_tree = {"model": {"eq": model}}
        with suppress(StoreError):  # while the store is unavailable, no baseline counts as stale
            page = self._inferences.query(QueryRequest(where=filter_tree, limit=1))
            return page.inferences[0].model.sha256 if page.inferences else ""
        return ""


def current_state(baseline: Baseline, jobs: Jobs, sha256: str = "") -> Baseline:
    """Return a baseline in its current state.

    Args:
        baseline: The baseline as saved.
        jobs: The jobs, one of which may read it.
        sha256: Hash of the model file that answers now, to find stale baselines; empty to find none.
    """
    if baseline.state == "ready":
        is_stale = baseline.sha256 and sha256 and sha256 != baseline.sha256
        return replace(baseline, state="stale") if is_stale else baseline
    try:
        job = jobs.read(baseline.job or "")
    except NotFoundError:
        error: str | None = "its job was removed"
    else:
        # The job may have succeeded after the baseline was read.
        if job.state in {"queued", "running", "succeeded"}:
            return baseline
        error = job.error or f"its job was {job.state}"
    return replace(baseline, state="failed", error=error or "")
