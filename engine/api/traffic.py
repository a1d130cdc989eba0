"""HTTP routes of a model's traffic: the shares of its versions, and the promotion of a version."""

import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.openapi import (
    NOT_STORED,
    UNKNOWN_MODEL,
    body_errors,
    error_response,
    json_body,
)
from quadriga.engine.api.routes import delete, get, post, put
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.serving.traffic import (
    TrafficRule,
    TrafficRules,
    check_rule,
    check_versions,
    decode_fields,
    decode_rule,
    version_order,
)
from quadriga.proto.errors import InvalidRequest, ModelNotReady, NotFound
from quadriga.proto.messages import ModelState
from quadriga.proto.request import current_caller, note_target
from quadriga.store.query.names import find_model_name, unknown_model_text
from quadriga.store.records.records import timestamp_text

_TRAFFIC_PATH = "/api/models/{name:str}/traffic"
_PROMOTE_PATH = "/api/models/{name:str}/promote"
_UNREADABLE = error_response("The body cannot be understood, or the model has not these versions")
_NO_VERSION = error_response("The version is not ready, or the change could not be stored")


class TrafficVersion(msgspec.Struct, frozen=True):
    """A version of a model, and what it gets of the traffic."""

    version: str
    state: ModelState
    """State on the server that answers."""
    share: float
    """Share of the requests that name no version, as the rule says; without shares 1 for the highest that is ready."""


class TrafficState(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic rule of a model, and its versions."""

    model: str
    shares: dict[str, float]
    """Share of each version; empty: the highest version that is ready answers all."""
    sticky_by: str | None
    changed_at: str | None
    """When the rule was set, RFC 3339, UTC; null without one."""
    changed_by: str | None
    """Name of the key that set it; null for a key of a team, as it may be of another one."""
    versions: list[TrafficVersion]


class Promotion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request that one version answers all."""

    version: str


_RULE = json_body(
    TrafficRule,
    shares="Share of each version, together 1; empty: the highest version that is ready answers all",
    sticky_by="Metadata key: requests with the same value of it are answered by the same version",
)
_PROMOTION = json_body(Promotion, version="The version that answers all requests from now on")


class TrafficControl:
    """Shows and changes the traffic of models that the caller may use.

    Args:
        repository: Models of this worker.
        rules: The rules of all models.
    """

    def __init__(self, repository: ModelRepository, rules: TrafficRules) -> None:
        self._repository = repository
        self._rules = rules

    def show(self, name: str) -> TrafficState:
        """Return the traffic of a model; raises NotFound for an unknown one."""
        model = self._resolve(name)
        rule = self._rules.rules.get(model, TrafficRule())
        stored = self._rules.stored(model)
        statuses = [status for status in self._repository.statuses() if status.name == model]
        ready = [status.version for status in statuses if status.state == "READY"]
        highest = max(ready, key=version_order, default=None)
        shares = rule.shares or ({} if highest is None else {highest: 1.0})
        return TrafficState(
            model=model,
            shares=rule.shares,
            sticky_by=rule.sticky_by,
            changed_at=None if stored is None else timestamp_text(stored.changed_ms),
            changed_by=None if stored is None or current_caller().team else stored.changed_by,
            versions=[
                TrafficVersion(status.version, status.state, shares.get(status.version, 0.0))
                for status in sorted(statuses, key=lambda status: version_order(status.version))
            ],
        )

    def put(self, name: str, rule: TrafficRule) -> TrafficState:
        """Set the rule of a model.

        Raises:
            NotFound: The model is unknown.
            InvalidRequest: It has not these versions, or they do not take the same.
            StoreError: The database does not answer.
        """
        check_rule(rule)
        model = self._resolve(name)
        note_target(model)
        check_versions(rule, model, self._versions(model))
        self._check_alike(rule, model)
        self._rules.put(model, rule, current_caller().name)
        return self.show(model)

    def remove(self, name: str) -> TrafficState:
        """Let the highest version that is ready answer all again; raises as `put`."""
        return self.put(name, TrafficRule())

    def promote(self, name: str, version: str) -> TrafficState:
        """Let one version answer all; raises as `put`.

        Raises:
            ModelNotReady: The version is not ready.
        """
        model = self._resolve(name)
        rule = TrafficRule({version: 1.0})
        check_versions(rule, model, self._versions(model))
        if version not in {ready.version for ready in self._repository.ready_versions(model)}:
            raise ModelNotReady(f"expected version {version} of {model!r} to be ready, it is not")
        return self.put(model, rule)

    def _resolve(self, name: str) -> str:
        scope = caller_scope()
        names = [known for known in self._repository.names() if scope.admits_model(known)]
        model = find_model_name(name, names)
        if model is None:
            raise NotFound(unknown_model_text(name, names))
        return model

    def _versions(self, model: str) -> list[str]:
        return [status.version for status in self._repository.statuses() if status.name == model]

    def _check_alike(self, rule: TrafficRule, model: str) -> None:
        """Check that those versions of a rule that are ready are of one task and take the same inputs."""
        infos = [
            version.info([])
            for version in self._repository.ready_versions(model)
            if version.version in rule.shares
        ]
        for info in infos[1:]:
            first = infos[0]
            if info.task != first.task:
                raise InvalidRequest(
                    f"expected versions of one task, got {first.version} of {first.task} and {info.version} of {info.task}"
                )
            inputs = {(tensor.name, tensor.datatype) for tensor in info.inputs}
            first_inputs = {(tensor.name, tensor.datatype) for tensor in first.inputs}
            if inputs != first_inputs:
                raise InvalidRequest(
                    f"expected versions with the same inputs, got others of {first.version} than of {info.version}"
                )


def traffic_routes(control: TrafficControl) -> list[HTTPRouteHandler]:
    """Return the handlers that show and change the traffic of models."""
    errors = body_errors(_UNREADABLE)

    @get(_TRAFFIC_PATH, need="read", errors={404: UNKNOWN_MODEL})
    def get_traffic(name: FromPath[str]) -> TrafficState:
        """Return how the requests to a model that name no version are divided."""
        return control.show(name)

    @put(_TRAFFIC_PATH, need="operate", operation=_RULE, errors=errors)
    def put_traffic(name: FromPath[str], body: RawBody) -> TrafficState:
        """Divide the requests to a model, in all workers and servers on the same database within 2 s."""
        return control.put(name, decode_rule(body))

    @delete(_TRAFFIC_PATH, need="operate", errors={404: UNKNOWN_MODEL, 503: NOT_STORED})
    def delete_traffic(name: FromPath[str]) -> TrafficState:
        """Let the highest version of a model that is ready answer all again."""
        return control.remove(name)

    @post(_PROMOTE_PATH, need="operate", operation=_PROMOTION, errors=errors | {503: _NO_VERSION})
    def promote_version(name: FromPath[str], body: RawBody) -> TrafficState:
        """Let one version of a model answer all; to repeat it changes nothing."""
        return control.promote(name, decode_fields(Promotion, body, "version").version)

    return [get_traffic, put_traffic, delete_traffic, promote_version]
