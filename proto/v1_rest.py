"""The endpoints under /v1: TensorFlow Serving's REST interface, and KServe V1, which grew out of it.

Where the two clash, docs/protocols.md says which one is followed.

Source: TensorFlow Serving, "RESTful API"; KServe, "V1 Protocol".
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from proto.cloud_events import answering
from proto.errors import InvalidRequest, ModelNotReady, NotFound
from proto.messages import ModelInfo, Serving, TensorInfo
from proto.operations import (
    Answer,
    Call,
    Operation,
    Options,
    came_by,
    json_answer,
    look,
    post,
    request_id,
    store_headers,
)
from proto.tf_json import TYPES
from proto.v1_requests import (
    parse_examples,
    parse_predict,
    render_classes,
    render_predict,
    render_regressions,
    signatures,
)

_MODEL = "/v1/models/{name}[/versions/{version}|/labels/{label}]"
_LARGEST_VERSION = 2**63 - 1

_STATES = {"READY": "AVAILABLE", "FAILED": "END", "UNLOADED": "END"}
"""TF Serving's word for a state, where it has another one."""


def operations(serving: Serving, options: Options) -> list[Operation]:
    """Make the endpoints under /v1."""
    predict = answering(partial(_predict, serving, options), options, unnamed=True)
    explain = answering(partial(_explain, serving, options), options, unnamed=True)
    classify = partial(_classify, serving)
    regress = partial(_regress, serving, options)
    act, looked = partial(post, ignore_case=True, compressed=True), partial(look, ignore_case=True)
    return [
        act(f"{_MODEL}:predict", predict, "Predict, by instances or by columns"),
        act(f"{_MODEL}:explain", explain, "Predict, and say what decided"),
        act(f"{_MODEL}:classify", classify, "Score the classes of examples"),
        act(f"{_MODEL}:regress", regress, "Answer a number for each example"),
        looked("/", lambda _: json_answer({"status": "alive"}), "Tell whether the server runs"),
        looked("/v1/models", partial(_models, serving), "List the models"),
        looked(_MODEL, partial(_status, serving), "Tell whether a model is ready"),
        looked(f"{_MODEL}/metadata", partial(_metadata, serving), "Describe a model's signatures"),
        _anything("GET", "/v1/{rest...}"),
        _anything("POST", "/v1/{rest...}"),
    ]


def _anything(verb: Literal["GET", "POST"], path: str) -> Operation:
    """Refuse what no endpoint before this one is."""
    malformed = partial(_malformed, verb)
    return Operation(verb, path, malformed, "", in_thread=False, ignore_case=True)


def _malformed(verb: str, call: Call) -> Answer:
    raise InvalidRequest(f"Malformed request: {verb} /v1/{call.path['rest']:.200}")


def _predict(serving: Serving, options: Options, call: Call) -> Answer:
    info = _served(serving, call)
    rows = options.v1_inputs == "kserve"
    asked = parse_predict(call.body, info, request_id(call), inputs_are_rows=rows)
    response = serving.infer(came_by(call, asked.request))
    body = render_predict(asked, response, options.not_finite)
    return Answer(body, headers=store_headers(response))


def _explain(serving: Serving, options: Options, call: Call) -> Answer:
    info = _served(serving, call)
    asked = parse_predict(call.body, info, request_id(call), inputs_are_rows=True)
    response, explanations = serving.explain(came_by(call, asked.request))
    body = render_predict(asked, response, options.not_finite, explanations)
    return Answer(body, headers=store_headers(response))


def _classify(serving: Serving, call: Call) -> Answer:
    info = _served(serving, call)
    response = serving.infer(parse_examples(call.body, info, request_id(call), "classify"))
    body = render_classes(response, info.labels)
    return Answer(body, headers=store_headers(response))


def _regress(serving: Serving, options: Options, call: Call) -> Answer:
    info = _served(serving, call)
    response = serving.infer(parse_examples(call.body, info, request_id(call), "regress"))
    body = render_regressions(response, options.not_finite)
    return Answer(body, headers=store_headers(response))


def _models(serving: Serving, _: Call) -> Answer:
    return json_answer({"models": sorted({status.name for status in serving.model_statuses()})})


def _status(serving: Serving, call: Call) -> Answer:
    """Answer in one object what KServe and what TF Serving say of a model."""
    name = str(call.path["name"])
    version = _version(serving, call)
    try:
        info = serving.model_info(name, version)
    except NotFound as error:
        sought = "any versions" if version is None else f"version {version}"
        raise NotFound(f"Could not find {sought} of model {name:.140}") from error
    except ModelNotReady as error:
        raise ModelNotReady(f"Model with name {name:.140} is not ready. {error}") from error
    statuses = [
        {
            "version": status.version,
            "state": _STATES.get(status.state, status.state),
            "status": {
                "error_code": "UNKNOWN" if status.state == "FAILED" else "OK",
                "error_message": status.reason,
            },
        }
        for status in serving.model_statuses()
        if status.name == info.name and version in (None, status.version)
    ]
    return json_answer({"name": info.name, "ready": True, "model_version_status": statuses})


def _metadata(serving: Serving, call: Call) -> Answer:
    info = _served(serving, call)
    described = {
        name: {
            "inputs": _tensors(info.inputs),
            "outputs": _tensors(info.outputs),
            "method_name": method,
            "defaults": {},
        }
        for name, method in signatures(info).items()
    }
    return json_answer(
        {
            "model_spec": {"name": info.name, "signature_name": "", "version": info.version},
            "metadata": {"signature_def": {"signature_def": described}},
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


def _served(serving: Serving, call: Call) -> ModelInfo:
    """Give the model that a path means.

    Raises:
        NotFound: There is none; in TF Serving's words.
        InvalidRequest: The version is no number, or no version has the label.
        ModelNotReady: It is loading or has failed.
    """
    name, version = str(call.path["name"]), _version(serving, call)
    try:
        return serving.model_info(name, version)
    except NotFound as error:
        sought = f"Latest({name:.140})"
        if version is not None:
            sought = f"Specific({name:.140}, {version})"
        raise NotFound(f"Servable not found for request: {sought}") from error


def _version(serving: Serving, call: Call) -> str | None:
    """Give the version that a path names, itself or by a label."""
    version, label = call.path["version"], call.path["label"]
    if version is not None:
        digits = version.isascii() and version.isdecimal() and len(version) < 20
        if not digits or int(version) > _LARGEST_VERSION:
            raise InvalidRequest(f"Failed to convert version: {version:.60} to numeric.")
    if label is None:
        return version
    try:
        versions = serving.model_info(str(call.path["name"]), None).versions
    except NotFound:
        versions = ()
    for each in versions:
        try:
            if label in serving.model_info(str(call.path["name"]), each).version_labels:
                return each
        except (NotFound, ModelNotReady):
            continue
    raise InvalidRequest(f"Unrecognized servable version label: {label:.60}")
