"""Readiness of the server and of its models, and the report of what is wrong with which part.

The table in `docs/serving.md` says which fault makes which probe fail.
"""

from collections.abc import Callable

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.readiness import JOBS, WRITER, ProcessState, ProcessStates
from quadriga.engine.models.model import Model
from quadriga.engine.models.repository import ModelRepository, models_behind
from quadriga.engine.serving.recording import Recorder
from quadriga.proto.errors import ModelNotReady
from quadriga.proto.messages import HealthPart, HealthReport, HealthState, ProcessHealth

SHUTTING_DOWN = "the server is shutting down"


class ServerHealth:
    """Readiness of a server, as one of its workers sees it.

    Args:
        repository: Models of this worker.
        recorder: Stores the inferences; None where nothing is stored.
        settings: Settings of the server.
    """

    def __init__(
        self, repository: ModelRepository, recorder: Recorder | None, settings: Settings
    ) -> None:
        self._repository = repository
        self._recorder = recorder
        self._settings = settings
        self.draining = False
        self.source_problem: Callable[[], str | None] = lambda: None
        """Returns what is wrong with the source of the models, which are served all the same."""
        self.processes: ProcessStates | None = None
        """States of the server's processes; None for a single process."""

    def unready_reason(self) -> str | None:
        """Return why the server is not ready; None if it is."""
        if self.draining:
            return SHUTTING_DOWN
        failure = None if self.processes is None else self.processes.failure_reason()
        return failure or self._models_reason() or self._process_reason() or self._store_reason()

    def model_unready_reason(self, name: str, version: str | None) -> str | None:
        """Return why the requests to a model are refused; None if they are answered.

        Raises:
            quadriga.proto.errors.NotFound: No such model or version.
        """
        try:
            model = self._repository.get(name, version)
            chain = [model, *models_behind(model, self._repository.get)]
        except ModelNotReady as error:
            return str(error)
        return next(filter(None, map(self._storing_reason, chain)), None)

    def _storing_reason(self, model: Model) -> str | None:
        """Return why the inferences of a model are refused; None if they can be stored."""
        store = model.recognition.written.store
        if self._recorder is None or not store.enabled:
            return None
        durability = store.durability or self._settings.durability
        if durability == "database" and (writer := self._problem_of(WRITER)) is not None:
            return f"inferences are answered once they are in the database: {writer}"
        reason = self._recorder.refusal_reason(model)
        return None if reason is None else f"cannot store inferences: {reason}"

    def report(self) -> HealthReport:
        """Return the state of the processes, the store and the models, each with its reason."""
        process = _part(self._process_reason(), self._first_problem())
        models = _part(self._models_reason(), self.source_problem())
        failed_write = None if self._recorder is None else self._recorder.failed_writes.reason
        store = _part(self._store_reason(), self._problem_of(WRITER) or failed_write)
        if self._recorder is None:
            store = HealthPart("off", "this server stores nothing")
        states = {process.state, models.state, store.state}
        worst: tuple[HealthState, ...] = ("not ready", "degraded", "ready")
        return HealthReport(
            status=next((state for state in worst if state in states), "ready"),
            process=process,
            store=store,
            models=models,
            lag_bytes=None if self._recorder is None else self._recorder.capacity.lag_bytes(),
            processes=[
                msgspec.convert(s, ProcessHealth, from_attributes=True) for s in self._states()
            ],
            versions=self._repository.statuses(),
        )

    def _process_reason(self) -> str | None:
        if self.draining:
            return SHUTTING_DOWN
        if self.processes is None:
            return None
        if (failure := self.processes.failure_reason()) is not None:
            return failure
        unready = ", ".join(self.processes.unready_workers())
        return f"expected every worker to be ready, not yet: {unready}" if unready else None

    def _models_reason(self) -> str | None:
        if not self._repository.names():
            return "the models are still awaited from their source"
        statuses = [s for s in self._repository.statuses() if s.state != "UNLOADED"]
        loading = [f"{s.name} {s.version}" for s in statuses if s.state == "LOADING"]
        if loading:
            return f"expected every model to be loaded, still loading: {', '.join(loading)}"
        failed = [f"{s.name} {s.version} ({s.reason})" for s in statuses if s.state == "FAILED"]
        if failed and (self._settings.strict_readiness or len(failed) == len(statuses)):
            return f"expected every model to load, failed: {'; '.join(failed)}"
        return None

    def _store_reason(self) -> str | None:
        """Return why inferences are refused: of any model, or of all where `strict_readiness` is off."""
        names = {s.name for s in self._repository.statuses() if s.state == "READY"}
        reasons = {name: self.model_unready_reason(name, None) for name in sorted(names)}
        refused = {name: reason for name, reason in reasons.items() if reason is not None}
        if not refused or (len(refused) < len(names) and not self._settings.strict_readiness):
            return None
        name, reason = next(iter(refused.items()))
        return f"model {name!r}: {reason}"

    def _states(self) -> list[ProcessState]:
        if self.processes is None:
            return []
        names = [*self.processes.workers, *((WRITER, JOBS) if self._settings.store else ())]
        return [self.processes.state(name) for name in names]

    def _problem_of(self, name: str) -> str | None:
        for state in self._states():
            if state.name == name and state.state in ("waiting", "ended"):
                return state.reason or f"the process {name} has ended and is started again"
        return None

    def _first_problem(self) -> str | None:
        """Return what is wrong with a process without which requests are answered all the same."""
        for state in self._states():
            if state.name != WRITER and state.state != "ready":
                return state.reason or f"the process {state.name} is {state.state}"
        return None


def _part(reason: str | None, problem: str | None) -> HealthPart:
    if reason is not None:
        return HealthPart("not ready", reason)
    return HealthPart("ready" if problem is None else "degraded", problem)
