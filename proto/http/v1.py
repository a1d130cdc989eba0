"""Endpoints under /v1: TensorFlow Serving's REST interface, and KServe V1, which derives from it.

docs/protocols-reference.md says which one is followed if the two conflict.

Source: TensorFlow Serving, "RESTful API"; KServe, "V1 Protocol".
"""

import codecs
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from itertools import chain, islice
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pybase64

from quadriga.proto.datatypes import MAX_DIMENSIONS, NUMPY_TYPES
from quadriga.proto.errors import InvalidRequest, ModelNotReady, NotFound
from quadriga.proto.http.cloud_events import with_cloud_events
from quadriga.proto.http.operations import (
    HttpRequest,
    HttpResponse,
    Operation,
    WireOptions,
    json_response,
    list_models,
    mark_cloud_event,
    post_endpoint,
    request_id,
    state_endpoint,
    store_headers,
)
from quadriga.proto.json_text import amount, base64_bytes, check_amount, is_base64, take_parameters
from quadriga.proto.messages import (
    InferRequest,
    InferResponse,
    ModelInfo,
    NotFinite,
    Serving,
    Tensor,
    TensorInfo,
    check_input_count,
)
from quadriga.quoting import quoted
from quadriga.tasks import SHORT_NAMES

Method = Literal["predict", "classify", "regress"]


DEFAULT_SIGNATURE = "serving_default"


MAX_FEATURE_CHARACTERS = 1024
"""Maximum length of an image's key, which is stored with its inference; the rest is cut off."""


_NOUNS = {"classify": "classification", "regress": "regression"}


_TENSOR = SHORT_NAMES["tensor"]


_MAX_KEYS, _LONGEST_KEY = 20, 40
"""Keys of a body that are compared with those that it should have."""


_NEAR = 0.75
"""Likeness from which a key is near, 0 to 1."""


_FLOATS = ("FP16", "FP32", "FP64")


class PredictRequest(msgspec.Struct, frozen=True):
    """Request to predict, and the form of its response."""

    request: InferRequest
    has_predictions: bool
    """Whether the response holds predictions, one list for each image or row, instead of tensors."""
    by_rows: bool
    """Whether `predictions` has a value for each row; `outputs` has tensors."""
    keys: tuple[Literal["predictions", "outputs"], ...]


def signatures(info: ModelInfo) -> dict[str, str]:
    """Return the methods of a model's signatures by name: the default one, and classify or regress if it can."""
    methods = {DEFAULT_SIGNATURE: _method("predict")}
    if info.task == SHORT_NAMES["classification"]:
        methods[_method("classify")] = _method("classify")
    elif _is_regression(info):
        methods[_method("regress")] = _method("regress")
    return methods


def parse_predict(
    body: bytes, info: ModelInfo, request_id: str, *, inputs_are_rows: bool
) -> PredictRequest:
    """Parse a request to predict or explain: JSON with `instances` (rows) or `inputs` (columns).

    A list of `inputs` may be either: KServe's clients read `predictions` of its answer, those of TF Serving `outputs`. With
    `inputs_are_rows`, `inputs` is another name of `instances`; so are objects in a list of it, which are no columns.
    """
    document = parse_document(body)
    _check_signature(document, info, "predict")
    data, by_rows = _instances_or_inputs(document)
    keys: tuple[Literal["predictions", "outputs"], ...] = ("outputs",)
    is_list = isinstance(data, list)
    if by_rows or inputs_are_rows:
        by_rows, keys = by_rows or is_list, ("predictions",)
    elif is_list:
        keys = ("predictions", "outputs")
    by_rows = by_rows or (not info.takes_images and _are_objects(data))
    if by_rows and not isinstance(data, list):
        raise _wrong_value(data, "Expecting 'instances' to be an list/array")
    items = _images(data) if info.takes_images else data
    if (by_rows or info.takes_images) and not items:
        raise InvalidRequest("JSON Value: [] No values in 'instances' array")
    if info.takes_images:
        check_input_count(len(items))
        inputs = [_image_input(item, number) for number, item in enumerate(items)]
    elif by_rows:
        inputs = tensors_from_rows(data, info.inputs)
    else:
        inputs = tensors_from_columns(data, info.inputs)
    request = _make_request(info, request_id, inputs, document)
    return PredictRequest(request, info.task != _TENSOR, by_rows or is_list, keys)


def _instances_or_inputs(document: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the value of `instances` or `inputs`, and whether it is that of `instances`."""
    if "instances" in document and "inputs" in document:
        text = "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"
        raise _wrong_value(document, text)
    if "instances" not in document and "inputs" not in document:
        raise InvalidRequest(f"Missing 'inputs' or 'instances' key{_meant_key(document)}")
    by_rows = "instances" in document
    return document["instances" if by_rows else "inputs"], by_rows


def _meant_key(document: Mapping[str, Any]) -> str:
    """Return which key may have been meant by one of a body, as the end of a sentence; empty for none."""
    keys = {key.lower(): key for key in islice(document, _MAX_KEYS) if len(key) < _LONGEST_KEY}
    for known in ("instances", "inputs"):
        if near := get_close_matches(known, keys, 1, _NEAR):
            return f"; did you mean '{known}' by {quoted(keys[near[0]], _LONGEST_KEY)}?"
    return ""


def render_predict(
    predict: PredictRequest,
    response: InferResponse,
    not_finite: NotFinite,
    explanations: Any = None,
) -> bytes:
    """Encode the response to a request to predict, or to explain if there are explanations.

    Raises:
        InvalidRequest: An output of a request by rows has no rows, or not as many as the others.
    """
    prediction: dict[str, Any] = {}
    for key in predict.keys:
        try:
            text = _outputs_text(predict, key, response.outputs, not_finite)
        except InvalidRequest:
            if key == predict.keys[-1]:
                raise
            continue  # outputs without rows are no predictions
        prediction[key] = msgspec.Raw(text.encode())
    if explanations is not None:
        prediction["explanations"] = explanations
    return msgspec.json.encode(prediction)


def _outputs_text(
    predict: PredictRequest, key: str, outputs: Sequence[Tensor], not_finite: NotFinite
) -> str:
    """Encode the outputs as the value of a key of the response."""
    if predict.has_predictions:
        rows = [prediction for tensor in outputs for prediction in tensor.data]
        return msgspec.json.encode(rows).decode()
    if predict.by_rows and key == "predictions":
        return f"[{','.join(_by_rows(outputs, not_finite))}]"
    if len(outputs) == 1:
        return tensor_text(outputs[0], not_finite)
    return _object({tensor.name: tensor_text(tensor, not_finite) for tensor in outputs})


def _image_input(value: Any, index: int) -> Tensor:
    """Read an image and its parameters.

    The image is base64 as a text or as `{"b64": ...}`, or an object that has one of them under any key and may have
    `parameters`, too.
    """
    name, image, parameters = "image", value, {}
    if isinstance(value, dict) and not is_base64(value):
        parameters = take_parameters(value, f"instances[{index}]: ")
        features = {key: feature for key, feature in value.items() if key != "parameters"}
        if isinstance(features.get("b64"), str):  # with a key of the client's beside it
            features = {name: {"b64": features["b64"]}}
        elif len(features) > 1:
            features = {k: v for k, v in features.items() if is_base64(v)} or features
        if len(features) != 1:
            raise InvalidRequest(
                f"instances[{index}]: expected one image, got the features {quoted(', '.join(features), 200)}"
            )
        ((name, image),) = features.items()
    if isinstance(image, list) and len(image) == 1:
        (image,) = image
    if is_base64(image):
        image = base64_bytes(image)
    elif not isinstance(image, str):
        raise InvalidRequest(
            f'instances[{index}]: expected an image as base64 or {{"b64": "<base64>"}}, '
            f"got {shorten_value(image)}"
        )
    return Tensor(name[:MAX_FEATURE_CHARACTERS], "BYTES", (1,), [image], parameters=parameters)


def _are_objects(data: Any) -> bool:
    """Check whether data is a list of objects, each with the values of one row."""
    return (
        isinstance(data, list)
        and bool(data)
        and all(isinstance(item, dict) and not is_base64(item) for item in data)
    )


def _images(data: Any) -> list[Any]:
    """Return the instances for an image model; a column of one feature is turned into rows."""
    if isinstance(data, list):
        return data
    if isinstance(data, dict) and len(data) == 1:
        ((name, column),) = data.items()
        if isinstance(column, list):
            return [{name: image} for image in column]
    return [data]


def _make_request(
    info: ModelInfo, request_id: str, inputs: list[Tensor], document: Mapping[str, Any]
) -> InferRequest:
    return InferRequest(
        model=info.name,
        version=info.version,
        id=request_id,
        inputs=inputs,
        parameters=take_parameters(document),
        protocol="v1",
    )


def _check_signature(document: Mapping[str, Any], info: ModelInfo, method: Method) -> None:
    name = document.get("signature_name")
    if name is not None and not isinstance(name, str):
        text = "not formatted correctly. 'signature_name' key must be a string value."
        raise _wrong_value(document, text)
    methods = signatures(info)
    method_name = methods.get(name or DEFAULT_SIGNATURE)
    if method_name is None:
        raise InvalidRequest(f'Serving signature name: "{name:.60}" not found in signature def')
    if method == "predict" or method_name == _method(method):
        return
    if method_name != _method("predict") or _method(method) not in methods:
        raise InvalidRequest(
            f"Expected {_NOUNS[method]} signature method_name to be {_method(method)}. Was: {method_name}: "
            f"model {info.name!r} is of task {info.task}"
        )


def _method(method: Method) -> str:
    return f"tensorflow/serving/{method}"


def _is_regression(info: ModelInfo) -> bool:
    if info.task != _TENSOR or len(info.outputs) != 1:
        return False
    (output,) = info.outputs
    return output.datatype in _FLOATS and (len(output.shape) == 1 or output.shape[1:] == (1,))


def _by_rows(outputs: Sequence[Tensor], not_finite: NotFinite) -> list[str]:
    """Encode one value for each instance; an object of values if there are several outputs."""
    for tensor in outputs:
        if not tensor.shape:
            raise InvalidRequest(f"Tensor name: {tensor.name} has no shape information")
        if tensor.shape[0] != outputs[0].shape[0]:
            raise InvalidRequest(
                f"Tensor name: {tensor.name} has inconsistent batch size: {tensor.shape[0]} "
                f"expecting: {outputs[0].shape[0]}"
            )
    columns = [row_texts(tensor, not_finite) for tensor in outputs]
    if len(columns) == 1:
        return columns[0]
    names = [tensor.name for tensor in outputs]
    return [_object(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _object(members: Mapping[str, str]) -> str:
    raw = {name: msgspec.Raw(text.encode()) for name, text in members.items()}
    return msgspec.json.encode(raw).decode()


def parse_examples(
    body: bytes, info: ModelInfo, request_id: str, method: Literal["classify", "regress"]
) -> InferRequest:
    """Parse a request to classify or regress: `examples` of features, and a `context` that they share."""
    document = parse_document(body)
    _check_signature(document, info, method)
    examples = _merged_examples(document, method)
    if method == "classify":
        parameters = {"metadata": take_parameters(document).get("metadata")}
        parameters["action"] = "predict_proba"
        document = {"parameters": parameters}
    if info.takes_images:
        inputs = [_image_input(example, number) for number, example in enumerate(examples)]
    else:
        rows = [_with_input(example, info) for example in examples]
        columns = {tensor.name: _column(rows, tensor) for tensor in info.inputs}
        inputs = tensors_from_columns(columns, info.inputs)
    return _make_request(info, request_id, inputs, document)


def _merged_examples(document: Mapping[str, Any], method: Method) -> list[dict[str, Any]]:
    """Return the features of each example, those of the context among them."""
    if "examples" not in document:
        text = f"When method is {method}, key 'examples' is expected and was not found"
        raise _wrong_value(document, text)
    examples = document["examples"]
    if not isinstance(examples, list):
        raise _wrong_value(examples, "Expecting 'examples' value to be an list/array")
    if not examples:
        raise InvalidRequest("JSON Value: [] 'examples' value is an empty array")
    context = _features({} if document.get("context") is None else document["context"])
    merged = []
    for example in examples:
        features = _features(example)
        for name in features.keys() & context.keys():
            raise InvalidRequest(
                f"expected feature {quoted(name, 60)} in context or examples, got both"
            )
        merged.append({**context, **features})
    return merged


def render_classes(response: InferResponse, labels: Sequence[str]) -> bytes:
    """Encode the labels and scores of each image or row, in the order of the model's classes."""
    positions = {label: position for position, label in reversed([*enumerate(labels)])}

    def position(prediction: Any) -> int:
        return positions.get(prediction.label, 0)

    rows = [sorted(row, key=position) for tensor in response.outputs for row in tensor.data]
    results = [[(prediction.label, prediction.score) for prediction in row] for row in rows]
    return msgspec.json.encode({"results": results})


def render_regressions(response: InferResponse, not_finite: NotFinite) -> bytes:
    """Encode one number for each example."""
    numbers = float_texts(np.asarray(response.outputs[0].data).ravel(), not_finite)
    return f'{{"results":[{",".join(numbers)}]}}'.encode()


def _features(example: Any) -> dict[str, Any]:
    """Check the features of an example: values, or lists of values of one kind."""
    if not isinstance(example, dict):
        kind = "Array" if isinstance(example, list) else type(example).__name__
        raise InvalidRequest(f"Example must be JSON object but got JSON {kind}")
    for name, value in example.items():
        kinds = set()
        for element in value if isinstance(value, list) else [value]:
            if element is None or (isinstance(element, list | dict) and not is_base64(element)):
                raise InvalidRequest(
                    f"Feature: {name:.60} has element with unexpected JSON type: {shorten_value(element)}"
                )
            if isinstance(element, int) and not -(2**63) <= element < 2**63:
                raise InvalidRequest(
                    f"Feature: {name:.60} has uint64 element. Only int64_t is supported."
                )
            kinds.add({float: "float", int: "int64", bool: "int64"}.get(type(element), "bytes"))
        if len(kinds) > 1:
            raise InvalidRequest(
                f"Unexpected element type in feature: {name:.60} expecting type: {min(kinds)}"
            )
    return example


def _with_input(example: Mapping[str, Any], info: ModelInfo) -> Mapping[str, Any]:
    """Return an example with the features of a row as the list that the model's only input takes."""
    if len(info.inputs) != 1 or info.inputs[0].name in example or not info.features:
        return example
    if missing := [feature for feature in info.features if feature not in example]:
        raise InvalidRequest(f"Feature: {missing[0]:.60} is required but could not be found.")
    row = [example[feature] for feature in info.features]
    values = [value[0] if isinstance(value, list) and len(value) == 1 else value for value in row]
    return {info.inputs[0].name: values}


def _column(examples: Sequence[Mapping[str, Any]], info: TensorInfo) -> list[Any]:
    """Return one feature of all examples; lists of one value become the value if the input has one axis."""
    column = []
    for example in examples:
        if info.name not in example:
            kind = _type_name(info.datatype)
            raise InvalidRequest(
                f"Feature: {info.name} (data type: {kind}) is required but could not be found."
            )
        value = example[info.name]
        if isinstance(value, list) and len(value) == 1 and len(info.shape) == 1:
            (value,) = value
        column.append(value)
    return column


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
    classify, regress = (
        partial(_read_examples, serving, options, method) for method in ("classify", "regress")
    )
    post_v1 = partial(post_endpoint, need="infer", ignore_case=True, compress_response=True)
    state_v1 = partial(state_endpoint, need="infer", ignore_case=True)
    models, metadata = partial(list_models, serving), partial(_metadata, serving)
    return [
        post_v1(f"{_MODEL}:predict", predict, "Predict, by instances or by columns"),
        post_v1(f"{_MODEL}:explain", explain, "Predict, and explain the predictions"),
        post_v1(f"{_MODEL}:classify", classify, "Score the classes of examples"),
        post_v1(f"{_MODEL}:regress", regress, "Answer a number for each example"),
        state_v1("/", _root, "Check whether the server runs", need="nothing"),
        state_v1("/v1/models", models, "List the models", need="key"),
        state_v1(_MODEL, partial(_status, serving), "Check whether a model is ready"),
        state_v1(f"{_MODEL}/metadata", metadata, "Describe a model's signatures"),
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
    alive = {"status": "alive", "console": _CONSOLE, "openapi": _OPENAPI}
    return HttpResponse(msgspec.json.encode(alive), headers=vary)


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
    predict = parse_predict(
        http_request.body, info, request_id(http_request), inputs_are_rows=verb == "explain"
    )
    request = mark_cloud_event(http_request, predict.request)
    explanations = None
    if verb == "explain":
        response, explanations = serving.explain(request)
    else:
        response = serving.infer(request)
    body = render_predict(predict, response, options.not_finite, explanations)
    return HttpResponse(body, headers=store_headers(response))


def _read_examples(
    serving: Serving,
    options: WireOptions,
    method: Literal["classify", "regress"],
    http_request: HttpRequest,
) -> HttpResponse:
    info = _served(serving, http_request)
    response = serving.infer(
        parse_examples(http_request.body, info, request_id(http_request), method)
    )
    if method == "classify":
        body = render_classes(response, info.labels)
    else:
        body = render_regressions(response, options.not_finite)
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
    described = {
        name: {
            "inputs": _tensors(info.inputs),
            "outputs": _tensors(info.outputs),
            "method_name": method,
            "defaults": {},
        }
        for name, method in signatures(info).items()
    }
    return json_response(
        {
            "model_spec": {"name": info.name, "signature_name": "", "version": info.version},
            "metadata": {"signature_def": {"signature_def": described}},
        }
    )


def _tensors(tensors: Sequence[TensorInfo]) -> dict[str, Any]:
    return {
        tensor.name: {
            "dtype": f"DT_{_type_name(tensor.datatype).upper()}",
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
    name, label = http_request.path_parameters["name"], http_request.path_parameters["label"]
    version: str | None = http_request.path_parameters["version"]
    if version is not None:
        digits = version.isascii() and version.isdecimal() and len(version) < 20
        if not digits or int(version) > _LARGEST_VERSION:
            raise InvalidRequest(f"Failed to convert version: {version:.60} to numeric.")
    if label is None:
        return version
    with suppress(NotFound):
        for candidate in serving.model_info(name, None).versions:
            with suppress(NotFound, ModelNotReady):
                if label in serving.model_info(name, candidate).version_labels:
                    return candidate
    raise InvalidRequest(f"Unrecognized servable version label: {label:.60}")


_TYPES = {"FP16": "half", "FP32": "float", "FP64": "double", "BYTES": "string"}


def _type_name(datatype: str) -> str:
    """Return TensorFlow's name of a datatype; most differ from V2's by their case alone."""
    return _TYPES.get(datatype, datatype.lower())


_KINDS = {
    bool: "Bool",
    int: "Number",
    float: "Number",
    str: "String",
    list: "Array",
    dict: "Object",
}


MAX_LENIENT_AMOUNT = 1_000_000
"""Amount of JSON, as `quadriga.proto.json_text.amount`, beyond which it has to be JSON as RFC 8259 has it: Python's own
parser takes four times as long."""


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


_BLANK = " \t\r\n"


def parse_document(body: bytes) -> dict[str, Any]:
    """Parse the JSON object at the start of a body.

    Raises:
        InvalidRequest: There is none.
        quadriga.proto.errors.TooLarge: As `quadriga.proto.json_text.check_amount`.
    """
    check_amount(body)
    body = body.removeprefix(codecs.BOM_UTF8)
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        if amount(body) > MAX_LENIENT_AMOUNT:
            raise InvalidRequest(f"JSON Parse error: {error}") from error
        document = _parse_leniently(body)
    if not isinstance(document, dict):
        raise _wrong_value(document, "Is not object")
    return document


def _parse_leniently(body: bytes) -> Any:
    try:
        text = body.decode()
        start = len(text) - len(text.lstrip(_BLANK))
        if start == len(text):
            raise InvalidRequest("JSON Parse error: The document is empty")
        document, end = json.JSONDecoder().raw_decode(text, start)
        if "\\u" in text and _LONE_SURROGATE.search(json.dumps(document, ensure_ascii=False)):
            raise InvalidRequest(
                f"JSON Parse error: The surrogate pair in string is invalid. at offset: {end}"
            )
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"JSON Parse error: Invalid encoding in string. at offset: {error.start}"
        ) from error
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        raise InvalidRequest(f"JSON Parse error: Invalid value. at offset: {offset}") from error
    except ValueError as error:
        raise InvalidRequest(f"JSON Parse error: Number too big. {error}") from error
    except RecursionError as error:
        raise InvalidRequest("JSON Parse error: nested too deeply") from error
    return document


def shorten_value(value: Any) -> str:
    """Encode a value for an error, shortened to 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _wrong_value(value: Any, text: str) -> InvalidRequest:
    """Return the error of a value in JSON, in TF Serving's form."""
    return InvalidRequest(f"JSON Value: {shorten_value(value)} {text}")


def tensors_from_rows(instances: Sequence[Any], inputs: Sequence[TensorInfo]) -> list[Tensor]:
    """Read tensors by rows: each instance has one slice of every input along axis 0.

    There must be at least one instance; it is a value of the only input, or an object by input name.
    """
    are_objects = isinstance(instances[0], dict) and not is_base64(instances[0])
    if not are_objects and len(inputs) > 1:
        raise InvalidRequest(
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"
        )
    if not are_objects:
        for index, instance in enumerate(instances):
            if isinstance(instance, dict) and not is_base64(instance):
                raise InvalidRequest(
                    f"Expecting value/list but got object at item {index} of input list"
                )
        return [_stacked(instances, inputs[0], "")]
    _check_objects(instances, {info.name for info in inputs})
    return [
        _stacked([instance[info.name] for instance in instances], info, info.name)
        for info in inputs
    ]


def _check_objects(instances: Sequence[Any], names: set[str]) -> None:
    """Check that all instances are objects with a value for each input."""
    for index, instance in enumerate(instances):
        if not isinstance(instance, dict) or is_base64(instance):
            raise InvalidRequest(f"Expecting object but got list at item {index} of input list")
        for key in instance:
            if key not in names:
                raise _element(index, key, f"JSON object: does not have named input: {key}")
        if instance.keys() != names:
            raise InvalidRequest(
                f"Failed to process element: {index} of 'instances' list. JSON object: "
                f"{shorten_value(instance)} keys must be equal to: {','.join(sorted(names))}"
            )


def _stacked(items: Sequence[Any], info: TensorInfo, key: str) -> Tensor:
    try:
        return _tensor(list(items), info)
    except InvalidRequest:
        expected: tuple[int, ...] | None = None
        for index, item in enumerate(items):
            try:
                shape = _tensor(item, info).shape
            except InvalidRequest as error:
                raise _element(index, key, str(error)) from error
            expected = shape if expected is None else expected
            if math.prod(shape) != math.prod(expected):
                sizes = f"{math.prod(expected)} but got: {math.prod(shape)}"
                raise _element(index, key, f"Expecting tensor size: {sizes}") from None
            if shape != expected:
                shapes = f"{_bracketed(expected)} but got: {_bracketed(shape)}"
                raise _element(index, key, f"Expecting shape {shapes}") from None
        raise


def _element(index: int, key: str, text: str) -> InvalidRequest:
    position = f"{index} key: {key}" if key else f"{index}"
    return InvalidRequest(
        f"Failed to process element: {position} of 'instances' list. Error: {text:.600}"
    )


def _bracketed(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def tensors_from_columns(value: Any, inputs: Sequence[TensorInfo]) -> list[Tensor]:
    """Read tensors by columns: the only input, or an object of all of them by name."""
    if isinstance(value, dict) and not is_base64(value):
        for info in inputs:
            if info.name not in value:
                raise InvalidRequest(f"Missing named input: {info.name} in 'inputs' object.")
        return [_tensor(value[info.name], info) for info in inputs]
    if len(inputs) > 1:
        raise InvalidRequest(
            "inputs is a plain value/list, but expecting an object as multiple input tensors "
            "required as per tensorinfo_map"
        )
    return [_tensor(value, inputs[0])]


def _tensor(value: Any, info: TensorInfo) -> Tensor:
    values, shape = _flattened(value)
    return Tensor(info.name, info.datatype, shape, _typed(values, shape, info.datatype))


def _flattened(value: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Return the values of nested lists and their shape; the first list of each level decides its size."""
    values: list[Any] = [value]
    shape: list[int] = []
    while values and isinstance(values[0], list):
        level, size = len(shape), len(values[0])
        if level == MAX_DIMENSIONS:
            raise InvalidRequest(f"Encountered list at unexpected level: {level}")
        for item in values:
            if not isinstance(item, list):
                raise _wrong_value(item, f"found at incorrect level: {level + 1} in the JSON DOM")
            if len(item) != size:
                raise InvalidRequest(
                    f"Encountered list at unexpected size: {len(item)} at level: {level} "
                    f"expected size: {size}"
                )
        shape.append(size)
        values = list(chain.from_iterable(values))
    if list in set(map(type, values)):
        rank = len(shape)
        raise InvalidRequest(f"Encountered list at unexpected level: {rank} expected < {rank}")
    return values, tuple(shape)


def _typed(
    values: list[Any], shape: tuple[int, ...], datatype: str
) -> npt.NDArray[Any] | list[Any]:
    """Convert values to a datatype; out of a float's range they become an infinity or 0, as in TensorFlow Serving."""
    types = set(map(type, values))
    if datatype == "BYTES":
        for value in values:
            if not isinstance(value, str) and not is_base64(value):
                raise _type_error(value, datatype)
        return [value if isinstance(value, str) else base64_bytes(value) for value in values]
    dtype = NUMPY_TYPES[datatype]
    by_kind: dict[str, set[type]] = {"b": {bool}, "f": {int, float}}
    allowed = by_kind.get(dtype.kind, {int})
    if not types <= allowed:
        raise _type_error(next(value for value in values if type(value) not in allowed), datatype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        for value in (min(values, default=0), max(values, default=0)):
            if not limits.min <= value <= limits.max:
                raise _type_error(value, datatype)
    if dtype.kind != "f":
        return np.array(values, dtype).reshape(shape)
    try:
        wide = np.array(values, np.float64)
    except OverflowError:  # an integer beyond float64
        wide = np.array([_wide(value) for value in values])
    with np.errstate(over="ignore", under="ignore"):
        return wide.astype(dtype).reshape(shape)


def _wide(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _type_error(value: Any, datatype: str) -> InvalidRequest:
    kind = _KINDS.get(type(value), "Null")
    return _wrong_value(value, f"Type: {kind} is not of expected type: {_type_name(datatype)}")


def row_texts(tensor: Tensor, not_finite: NotFinite = "token") -> list[str]:
    """Encode a tensor as JSON texts, one for each slice along axis 0; a scalar is one text.

    Texts of an output whose name ends in `_bytes` are written as `{"b64": ...}`.

    Raises:
        InvalidRequest: A value is not finite and `not_finite` is `error`.
    """
    texts = _values(tensor, not_finite)
    for axis in range(len(tensor.shape) - 1, 0, -1):
        size = tensor.shape[axis]
        texts = [
            f"[{','.join(texts[number * size : (number + 1) * size])}]"
            for number in range(math.prod(tensor.shape[:axis]))
        ]
    return texts


def tensor_text(tensor: Tensor, not_finite: NotFinite = "token") -> str:
    """Encode a tensor as one JSON text; raises as `row_texts`."""
    texts = row_texts(tensor, not_finite)
    return f"[{','.join(texts)}]" if tensor.shape else texts[0]


def _values(tensor: Tensor, not_finite: NotFinite) -> list[str]:
    data = tensor.data
    if isinstance(data, np.ndarray):
        if data.dtype.kind == "f":
            return float_texts(data.ravel(), not_finite)
        if data.dtype.kind == "b":
            return ["true" if value else "false" for value in data.ravel().tolist()]
        return list(map(str, data.ravel().tolist()))
    if not tensor.name.endswith("_bytes"):
        return [msgspec.json.encode(value).decode() for value in data]
    encoded = [value.encode() if isinstance(value, str) else value for value in data]
    return [f'{{"b64":"{pybase64.b64encode(value).decode()}"}}' for value in encoded]


def float_texts(values: npt.NDArray[np.floating], not_finite: NotFinite = "token") -> list[str]:
    """Encode floats (N,) with six digits if they are exact, else with all; raises as `row_texts`.

    Source: TensorFlow Serving, util/json_tensor.cc, WriteDecimal.
    """
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    numbers = values.tolist()
    texts = [f"{number:g}" for number in numbers]
    again = np.array(list(map(float, texts))).astype(values.dtype)
    digits = ".9g" if values.dtype == np.float32 else ".17g"
    finite = np.isfinite(values)
    for number in np.flatnonzero(again != values).tolist():
        texts[number] = format(numbers[number], digits)
    texts = [text if "." in text or "e" in text else f"{text}.0" for text in texts]
    for number in np.flatnonzero(~finite).tolist():
        texts[number] = _not_finite(numbers[number], not_finite)
    return texts


def _not_finite(value: float, not_finite: NotFinite) -> str:
    if not_finite == "error":
        raise InvalidRequest("expected outputs that JSON can write, got NaN or an infinity")
    return "null" if not_finite == "null" else json.dumps(value)
