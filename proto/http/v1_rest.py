"""Endpoints under /v1: TensorFlow Serving's REST interface, and KServe V1, which derives from it.

docs/protocols-reference.md says which one is followed if the two conflict.

Source: TensorFlow Serving, "RESTful API"; KServe, "V1 Protocol".
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from quadriga.proto.errors import InvalidRequest, ModelNotReady, NotFound
from quadriga.proto.http import v1_requests
from quadriga.proto.http.cloud_events import with_cloud_events
from quadriga.proto.http.operations import (
    HttpRequest,
    HttpResponse,
    Operation,
    WireOptions,
    json_response,
    mark_cloud_event,
    model_names,
    post_endpoint,
    request_id,
    state_endpoint,
    store_headers,
)
from quadriga.proto.http.tf_json import TYPES
from quadriga.proto.messages import ModelInfo, Serving, TensorInfo

_MODEL = "/v1/models/{name}[/versions/{version}|/labels/{label}]"
_LARGEST_VERSION = 2**63 - 1

_ACTIONS = ("predict", "explain", "classify", "regress")

_STATES = {"READY": "AVAILABLE", "FAILED": "END", "UNLOADED": "END", "REFUSED": "END"}
"""States with another name in TF Serving."""


def operations(serving: Serving, options: WireOptions) -> list[Operation]:
    """Make the endpoints under /v1."""
    predict, explain = (
        with_cloud_events(partial(_predict, serving, options, verb), options, any_content_type=True)
        for verb in ("predict", "explain")
    )
    examples = partial(_read_examples, serving, options)
    post_v1 = partial(post_endpoint, need="infer", ignore_case=True, compress_response=True)
    state_v1 = partial(state_endpoint, need="infer", ignore_case=True)

    def models(_: HttpRequest) -> HttpResponse:
        return json_response({"models": model_names(serving)})

    return [
        post_v1(f"{_MODEL}:predict", predict, "Predict, by instances or by columns"),
        post_v1(f"{_MODEL}:explain", explain, "Predict, and explain the predictions"),
        post_v1(
            f"{_MODEL}:classify", partial(examples, "classify"), "Score the classes of examples"
        ),
        post_v1(
            f"{_MODEL}:regress", partial(examples, "regress"), "Answer a number for each example"
        ),
        state_v1(
            "/",
            _root,
            "Check whether the server runs",
            need="nothing",
        ),
        state_v1("/v1/models", models, "List the models", need="key"),
        state_v1(_MODEL, partial(_status, serving), "Check whether a model is ready"),
        state_v1(
            f"{_MODEL}/metadata", partial(_metadata, serving), "Describe a model's signatures"
        ),
        state_v1("/v1/{rest...}", partial(_malformed, "GET"), ""),
        post_v1("/v1/{rest...}", partial(_malformed, "POST"), "", in_thread=False),
    ]


# Relative, as a proxy may serve all paths below one of its own.
_CONSOLE = "console/"
_OPENAPI = "schema/openapi.json"


def _root(http_request: HttpRequest) -> HttpResponse:
    """Answer that the server runs, and where its pages and its API are; lead a browser, which asks for a page, to the console."""
    vary = ((b"vary", b"accept"),)
    if b"text/html" in http_request.headers.get(b"accept", b"").lower():
        return HttpResponse(b"", status=302, headers=((b"location", _CONSOLE.encode()), *vary))
    alive = json_response({"status": "alive", "console": _CONSOLE, "openapi": _OPENAPI})
    return msgspec.structs.replace(alive, headers=(*alive.headers, *vary))


def _malformed(verb: str, http_request: HttpRequest) -> HttpResponse:
    rest: str = http_request.path_parameters["rest"]
    name, colon, action = rest.rpartition(":")
    expected = ""
    if verb == "POST" and colon and "/" not in action and action.lower() not in _ACTIONS:
        actions = ", ".join(f":{known}" for known in _ACTIONS)
        expected = f": expected one of {actions} after {name:.100}, got :{action:.60}"
    raise InvalidRequest(f"Malformed request: {verb} /v1/{rest:.200}{expected}")


def _predict(
    serving: Serving,
    options: WireOptions,
    verb: Literal["predict", "explain"],
    http_request: HttpRequest,
) -> HttpResponse:
    info = _served(serving, http_request)
    predict = v1_requests.parse_predict(
        http_request.body, info, request_id(http_request), inputs_are_rows=verb == "explain"
    )
    request = mark_cloud_event(http_request, predict.request)
    explanations = None
    if verb == "explain":
        response, explanations = serving.explain(request)
    else:
        response = serving.infer(request)
    body = v1_requests.render_predict(predict, response, options.not_finite, explanations)
    return HttpResponse(body, headers=store_headers(response))


def _read_examples(
    serving: Serving,
    options: WireOptions,
    method: Literal["classify", "regress"],
    http_request: HttpRequest,
) -> HttpResponse:
    info = _served(serving, http_request)
    response = serving.infer(
        v1_requests.parse_examples(http_request.body, info, request_id(http_request), method)
    )
    if method == "classify":
        body = v1_requests.render_classes(response, info.labels)
    else:
        body = v1_requests.render_regressions(response, options.not_finite)
    return HttpResponse(body, headers=store_headers(response))


def _status(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    """Describe a model's state in one object with the keys of KServe and of TF Serving."""
    name = http_request.path_parameters["name"]
    version = _version(serving, http_request)
    try:
        info = serving.model_info(name, version)
    except NotFound as error:
        sought = "any versions" if version is None else f"version {version}"
        raise NotFound(f"Could not find {sought} of model {name:.140}") from error
    except ModelNotReady as error:
        text = f"Model with name {name:.140} is not ready. {error}"
        raise ModelNotReady(text, error.retry_after_s) from error
    if (reason := serving.model_unready_reason(info.name, version)) is not None:
        raise ModelNotReady(f"Model with name {info.name} is not ready. {reason}")
    statuses = [
        {
            "version": status.version,
            "state": _STATES.get(status.state, status.state),
            "status": {
                "error_code": "UNKNOWN" if status.state in ("FAILED", "REFUSED") else "OK",
                "error_message": status.reason,
            },
        }
        for status in serving.model_statuses()
        if status.name == info.name and version in (None, status.version)
    ]
    return json_response({"name": info.name, "ready": True, "model_version_status": statuses})


def _metadata(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    info = _served(serving, http_request)
    signatures = {
        name: {
            "inputs": _tensors(info.inputs),
            "outputs": _tensors(info.outputs),
            "method_name": method,
            "defaults": {},
        }
        for name, method in v1_requests.signatures(info).items()
    }
    return json_response(
        {
            "model_spec": {"name": info.name, "signature_name": "", "version": info.version},
            "metadata": {"signature_def": {"signature_def": signatures}},
        }
    )


def _tensors(tensors: Sequence[TensorInfo]) -> dict[str, Any]:
    return {
        tensor.name: {
            "dtype": f"DT_{TYPES.get(tensor.datatype, tensor.datatype).upper()}",
            "tensor_shape": {
                "dim": [{"size": str(size), "name": ""} for size in tensor.shape],
                "unknown_rank": False,
            },
            "name": f"{tensor.name}:0",
        }
        for tensor in tensors
    }


def _served(serving: Serving, http_request: HttpRequest) -> ModelInfo:
    """Return the metadata of the model named in the path; errors have TF Serving's texts."""
    name, version = http_request.path_parameters["name"], _version(serving, http_request)
    try:
        return serving.model_info(name, version)
    except NotFound as error:
        sought = f"Latest({name:.140})"
        if version is not None:
            sought = f"Specific({name:.140}, {version})"
        raise NotFound(f"Servable not found for request: {sought}") from error


def _version(serving: Serving, http_request: HttpRequest) -> str | None:
    """Return the version named in the path, directly or by a label; None for the newest."""
    version: str | None = http_request.path_parameters["version"]
    label = http_request.path_parameters["label"]
    if version is not None:
        digits = version.isascii() and version.isdecimal() and len(version) < 20
        if not digits or int(version) > _LARGEST_VERSION:
            raise InvalidRequest(f"Failed to convert version: {version:.60} to numeric.")
    if label is None:
        return version
    try:
        versions = serving.model_info(http_request.path_parameters["name"], None).versions
    except NotFound:
        versions = ()
    for candidate in versions:
        try:
            if (
                label
                in serving.model_info(
                    http_request.path_parameters["name"], candidate
                ).version_labels
            ):
                return candidate
        except (NotFound, ModelNotReady):
            continue
    raise InvalidRequest(f"Unrecognized servable version label: {label:.60}")
