"""Models of the server, their versions, traffic, baselines and schedules."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..inference import model_path, read_events
from ..transport.calls import json_call, present
from ..versions import Version, version_texts
from .resource import Names, Resource, Rows

_REPOSITORY = "/v2/repository"


class Models(Resource):
    """`client.models`: what is served, and how."""

    def list(self) -> Rows:
        """Return all models with their versions and what is stored of them."""
        return list(self._get("/api/models")["models"])

    def get(self, name: str) -> dict[str, Any]:
        """Return one model as `list` does."""
        return self._get("/api/models/{}", name)

    def names(self) -> Names:
        """Return the names of the models."""
        return list(self._get("/v2/models")["models"])

    def metadata(self, name: str, version: Version | None = None) -> dict[str, Any]:
        """Return inputs, outputs and task of a model."""
        return self._get(model_path(name, version))

    def config(self, name: str, version: Version | None = None) -> dict[str, Any]:
        """Return a model as Triton's configuration describes it."""
        return self._get(model_path(name, version) + "/config")

    def ready(self, name: str, version: Version | None = None) -> dict[str, Any]:
        """Return `{"name", "ready": True}`.

        Raises:
            ServerRefused: It is not ready, which the text explains.
        """
        return self._get(model_path(name, version) + "/ready")

    def stats(self, name: str | None = None, version: Version | None = None) -> dict[str, Any]:
        """Return counts and times of a model, or of all, since they were loaded."""
        path = "/v2/models" if name is None else model_path(name, version)
        return self._get(path + "/stats")

    def index(self, *, ready: bool | None = None) -> Rows:
        """Return the models of the repository and their states."""
        call = json_call(
            "POST", f"{_REPOSITORY}/index", body=present(ready=ready), is_repeatable=True
        )
        return self._sender.send(call)

    def load(
        self,
        name: str,
        config: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Load a model, or load it again.

        Args:
            name: Folder in the repository, or a new name if `files` are given.
            config: Keys that override those of the folder's model.toml.
            files: Contents by path below the folder.
        """
        parameters: dict[str, Any] = {
            f"file:{path}": base64.b64encode(data).decode() for path, data in (files or {}).items()
        }
        parameters |= present(config=config)
        body = present(parameters=parameters or None)
        self._request("POST", f"{_REPOSITORY}/models/{{}}/load", name, body=body)

    def unload(self, name: str) -> None:
        """Stop serving a model; its folder stays."""
        self._request("POST", f"{_REPOSITORY}/models/{{}}/unload", name, body={})

    def promote(self, name: str, version: Version) -> dict[str, Any]:
        """Let one version answer all requests from now on."""
        body = {"version": str(version)}
        return self._request("POST", "/api/models/{}/promote", name, body=body)

    def generate(
        self,
        name: str,
        text_input: str,
        image: bytes,
        *,
        version: Version | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the answer of an image-text model to a prompt about an image file."""
        body = _generate_body(text_input, image, parameters)
        return self._request("POST", model_path(name, version) + "/generate", body=body)

    def generate_stream(
        self,
        name: str,
        text_input: str,
        image: bytes,
        *,
        version: Version | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the answer of an image-text model piece by piece."""
        body = _generate_body(text_input, image, parameters)
        call = json_call("POST", model_path(name, version) + "/generate_stream", body=body)
        yield from read_events(self._sender.open_stream(call))

    def retention(self, name: str) -> dict[str, Any]:
        """Return how long inferences and images of a model are kept."""
        return self._get("/api/models/{}/retention", name)

    def set_retention(
        self, name: str, *, inputs_days: float | None = None, inferences_days: float | None = None
    ) -> dict[str, Any]:
        """Set how many days images and inferences are kept; None for ever."""
        body = {"inputs_days": inputs_days, "inferences_days": inferences_days}
        return self._request("PUT", "/api/models/{}/retention", name, body=body)

    def baselines(self, name: str) -> dict[str, Any]:
        """Return the baselines that drift of a model is compared with."""
        return self._get("/api/models/{}/baseline", name)

    def set_baseline(self, model: str, **parameters: Any) -> dict[str, Any]:
        """Make a baseline of what is stored; `parameters` as docs/drift.md has them, `from_` for `from`."""
        body = version_texts(parameters)
        return self._request("PUT", "/api/models/{}/baseline", model, body=body)

    def delete_baseline(self, name: str, baseline: str | None = None) -> Any:
        """Remove a baseline; None for the default one."""
        query = {"baseline": baseline}
        return self._request("DELETE", "/api/models/{}/baseline", name, query=query)

    def description(self, model: str) -> dict[str, Any]:
        """Return what the output tensors of a model mean that is served elsewhere."""
        return self._get("/api/models/{}/description", model)

    def set_description(self, model: str, description: Mapping[str, Any]) -> dict[str, Any]:
        """Say what the output tensors of a model mean that is served elsewhere, as docs/elsewhere.md has it."""
        return self._request("PUT", "/api/models/{}/description", model, body=dict(description))

    def delete_description(self, model: str) -> Any:
        """Forget what the output tensors of a model mean."""
        return self._request("DELETE", "/api/models/{}/description", model)


class Traffic(Resource):
    """`client.traffic`: which versions answer which share of the requests."""

    def get(self, model: str) -> Any:
        """Return the rule of a model."""
        return self._get("/api/models/{}/traffic", model)

    def set(
        self,
        model: str,
        shares: Mapping[str, float] | Mapping[int, float] | None = None,
        *,
        sticky_by: str | None = None,
    ) -> Any:
        """Set the share of each version, together 1."""
        named = None if shares is None else {str(version): part for version, part in shares.items()}
        body = version_texts({"shares": named, "sticky_by": sticky_by})
        return self._request("PUT", "/api/models/{}/traffic", model, body=body)

    def delete(self, model: str) -> Any:
        """Remove the rule: the highest version that is ready answers all."""
        return self._request("DELETE", "/api/models/{}/traffic", model)


class Schedules(Resource):
    """`client.schedules`: evaluations and comparisons with the baseline that the server repeats, and mutes of alarms."""

    def drift(self, model: str) -> Any:
        """Return the schedule of drift."""
        return self._get("/api/models/{}/drift-schedule", model)

    def set_drift(self, model: str, every: str, **parameters: Any) -> Any:
        """Compare with the baseline every so often, such as `1h`; `parameters` as docs/drift.md has them."""
        body = {"every": every, **version_texts(parameters)}
        return self._request("PUT", "/api/models/{}/drift-schedule", model, body=body)

    def delete_drift(self, model: str) -> Any:
        """Remove the schedule of drift."""
        return self._request("DELETE", "/api/models/{}/drift-schedule", model)

    def drift_history(
        self,
        model: str,
        *,
        from_: str | None = None,
        to: str | None = None,
        signal: str | None = None,
    ) -> Any:
        """Return the windows that the schedule compared."""
        return self._get("/api/models/{}/drift", model, from_=from_, to=to, signal=signal)

    def evaluation(self, model: str) -> Any:
        """Return the schedule of evaluations."""
        return self._get("/api/models/{}/evaluation-schedule", model)

    def set_evaluation(self, model: str, every: str, **parameters: Any) -> Any:
        """Evaluate every so often; `parameters` as docs/evaluation.md has them."""
        body = {"every": every, **version_texts(parameters)}
        return self._request("PUT", "/api/models/{}/evaluation-schedule", model, body=body)

    def delete_evaluation(self, model: str) -> Any:
        """Remove the schedule of evaluations."""
        return self._request("DELETE", "/api/models/{}/evaluation-schedule", model)

    def evaluation_history(
        self, model: str, *, from_: str | None = None, to: str | None = None
    ) -> Any:
        """Return the windows that the schedule evaluated."""
        return self._get("/api/models/{}/evaluation", model, from_=from_, to=to)

    def mute(self, model: str) -> Any:
        """Return the mute of a model's alarms."""
        return self._get("/api/models/{}/drift-mute", model)

    def set_mute(
        self, model: str, until: str, *, signals: Sequence[str] | None = None, note: str = ""
    ) -> Any:
        """Send no alarms of drift until a time (RFC 3339), of all signals or some."""
        body = {"until": until, "note": note, **present(signals=signals)}
        return self._request("PUT", "/api/models/{}/drift-mute", model, body=body)

    def delete_mute(self, model: str) -> Any:
        """Send alarms again."""
        return self._request("DELETE", "/api/models/{}/drift-mute", model)


def _generate_body(
    text_input: str, image: bytes, parameters: Mapping[str, Any] | None
) -> dict[str, Any]:
    encoded = base64.b64encode(image).decode()
    return present(text_input=text_input, image=encoded, parameters=dict(parameters or {}) or None)
