"""Bodies of classify and regress under /v1: examples of features, and results.

Source: TensorFlow Serving, "Classify and Regress API".
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from proto.errors import InvalidRequest
from proto.json_text import parameters_of
from proto.messages import InferRequest, InferResponse, ModelInfo, NotFinite, TensorInfo
from proto.tf_json import TYPES, from_columns, is_base64, parse, shown
from proto.tf_output import floats
from proto.v1_requests import check_signature, image_input, make_request


def parse_examples(
    body: bytes, info: ModelInfo, request_id: str, method: Literal["classify", "regress"]
) -> InferRequest:
    """Read a request to classify or regress: `examples` of features, and a `context` of shared ones.

    Raises:
        InvalidRequest: With TF Serving's text where it has one.
    """
    document = parse(body)
    check_signature(document, info, method)
    if "examples" not in document:
        raise InvalidRequest(
            f"JSON Value: {shown(document)} When method is {method}, key 'examples' is expected and "
            "was not found"
        )
    examples = document["examples"]
    if not isinstance(examples, list):
        raise InvalidRequest(
            f"JSON Value: {shown(examples)} Expecting 'examples' value to be an list/array"
        )
    if not examples:
        raise InvalidRequest("JSON Value: [] 'examples' value is an empty array")
    context = _features({} if document.get("context") is None else document["context"])
    merged = []
    for example in examples:
        features = _features(example)
        for name in features.keys() & context.keys():
            raise InvalidRequest(f"expected feature {name!r:.60} in context or examples, got both")
        merged.append({**context, **features})
    if method == "classify":
        inputs = [image_input(each, number) for number, each in enumerate(merged)]
        parameters = {"metadata": parameters_of(document).get("metadata")}
        parameters["action"] = "predict_proba"
        return make_request(info, request_id, inputs, {"parameters": parameters})
    columns = {each.name: _column(merged, each) for each in info.inputs}
    return make_request(info, request_id, from_columns(columns, info.inputs), document)


def render_classes(response: InferResponse, labels: Sequence[str]) -> bytes:
    """Write each image's labels and scores, in the order of the model's classes."""
    places = {label: place for place, label in reversed([*enumerate(labels)])}
    results = [
        [
            (each.label, each.score)
            for each in sorted(answer, key=lambda each: places.get(each.label, 0))
        ]
        for tensor in response.outputs
        for answer in tensor.data
    ]
    return msgspec.json.encode({"results": results})


def render_regressions(response: InferResponse, not_finite: NotFinite) -> bytes:
    """Write one number an example."""
    numbers = floats(np.asarray(response.outputs[0].data).ravel(), not_finite)
    return f'{{"results":[{",".join(numbers)}]}}'.encode()


def _features(example: Any) -> dict[str, Any]:
    """Check the features of an example: values, or lists of values of one kind."""
    if not isinstance(example, dict):
        kind = "Array" if isinstance(example, list) else type(example).__name__
        raise InvalidRequest(f"Example must be JSON object but got JSON {kind}")
    for name, value in example.items():
        kinds = set()
        for each in value if isinstance(value, list) else [value]:
            if (
                each is None
                or isinstance(each, list)
                or (isinstance(each, dict) and not is_base64(each))
            ):
                raise InvalidRequest(
                    f"Feature: {name:.60} has element with unexpected JSON type: {shown(each)}"
                )
            if isinstance(each, int) and not -(2**63) <= each < 2**63:
                raise InvalidRequest(
                    f"Feature: {name:.60} has uint64 element. Only int64_t is supported."
                )
            kinds.add({float: "float", int: "int64", bool: "int64"}.get(type(each), "bytes"))
        if len(kinds) > 1:
            raise InvalidRequest(
                f"Unexpected element type in feature: {name:.60} expecting type: {min(kinds)}"
            )
    return example


def _column(examples: Sequence[Mapping[str, Any]], info: TensorInfo) -> list[Any]:
    """Give one feature of all examples; lists of one value where the model wants bare values."""
    column = []
    for example in examples:
        if info.name not in example:
            kind = TYPES.get(info.datatype, info.datatype.lower())
            raise InvalidRequest(
                f"Feature: {info.name} (data type: {kind}) is required but could not be found."
            )
        value = example[info.name]
        if isinstance(value, list) and len(value) == 1 and len(info.shape) == 1:
            (value,) = value
        column.append(value)
    return column
