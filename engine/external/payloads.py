"""The bodies of a request and its response of another server, read as images and predictions.

V2 and KServe V1 in JSON, with the bytes of tensors behind the JSON of V2.

Source: Open Inference Protocol, inference_rest.md; KServe V1; Triton, classification extension.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pybase64

from quadriga.engine.serving.tensors.tensor_inference import stored_form
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.chariot import parse_metadata
from quadriga.proto.http.v2 import parse_infer
from quadriga.proto.json_text import check_amount, is_base64
from quadriga.proto.messages import Tensor
from quadriga.tasks.image import is_image_file

_CLASSIFIED = re.compile(r"(?P<score>[^:]{1,40}):(?P<index>[0-9]{1,9})(:(?P<label>.*))?", re.DOTALL)
"""Element of Triton's classification extension: score, index, and the label where the model has labels."""

_IMAGE_KEYS = ("image_bytes", "image", "b64", "data", "bytes")
"""Keys under which instances of V1 have an image."""

_PREDICTIONS = "predictions"


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says."""

    id: str = ""
    tensors: Sequence[Tensor] = ()
    """Inputs of V2."""
    instances: Sequence[Any] = ()
    """Instances of V1."""
    images: Sequence[bytes] = ()
    """Image files, in order."""
    input_name: str = ""
    """Name of the input with the images, or of the first."""
    metadata: Mapping[str, Any] = {}


class ReadResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a response says."""

    id: str = ""
    version: str = ""
    tensors: Sequence[Tensor] = ()
    """Outputs of V2 as arrays or elements."""
    predictions: Sequence[Any] | None = None
    """Predictions of each image, where the response has them itself; None where they are in tensors."""


def read_json_object(body: bytes, location: str) -> tuple[dict[str, Any], int]:
    """Read the JSON object that a body begins with.

    Returns:
        The object; and its length in bytes, which bytes of tensors may follow.

    Raises:
        InvalidRequest: It begins with none.
    """
    check_amount(body)
    value: Any
    try:
        value, end = msgspec.json.decode(body), len(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        try:
            # NaN is no JSON, and bytes may follow: every character of Latin-1 is one byte
            text = body.decode("latin-1")
            _, end = json.JSONDecoder().raw_decode(text)
            value = json.loads(body[:end])
            if b"\\u" in body[:end]:  # json accepts half a surrogate pair, which is no text
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{location}: expected JSON, got: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{location}: expected a JSON object, got {type(value).__name__}")
    return value, end


def read_request(body: bytes) -> ReadRequest:
    """Read a request of V2 or V1.

    Raises:
        InvalidRequest: It is neither.
    """
    document, end = read_json_object(body, "request")
    if isinstance(document.get("instances"), list):
        instances = document["instances"]
        return ReadRequest(
            instances=instances,
            images=list(_images_of_instances(instances)),
            input_name="instances",
        )
    if not isinstance(document.get("inputs"), list):
        raise InvalidRequest(
            f"request: expected inputs as of V2, or instances as of V1, got {_keys(document)}"
        )
    try:
        request = parse_infer(body, "", None, None, json_bytes=None if end == len(body) else end)
        parameters = dict(request.parameters)
        for tensor in request.inputs:
            parameters.update(tensor.parameters)
        metadata = parse_metadata(parameters, "inputs")
    except InvalidRequest as error:
        raise InvalidRequest(f"request: {error}") from error
    name, images = next(
        ((tensor.name, files) for tensor in request.inputs if (files := _image_files(tensor))),
        (request.inputs[0].name, []),
    )
    given_id = document.get("id")
    return ReadRequest(
        id=given_id if isinstance(given_id, str) else "",
        tensors=request.inputs,
        images=images,
        input_name=name,
        metadata=metadata,
    )


def read_response(body: bytes) -> ReadResponse:
    """Read a response of V2 or V1.

    Raises:
        InvalidRequest: It is neither.
    """
    document, end = read_json_object(body, "response")
    if isinstance(document.get("predictions"), list):
        return ReadResponse(predictions=document["predictions"])
    outputs = document.get("outputs")
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise InvalidRequest(
            f"response: expected outputs as of V2, or predictions as of V1, got {_keys(document)}"
        )
    id_, version = (
        str(value) if isinstance(value := document.get(name), str | int) else ""
        for name in ("id", "model_version")
    )
    own = next((rows for rows in map(_own_predictions, outputs) if rows is not None), None)
    if own is not None:
        return ReadResponse(id=id_, version=version, predictions=own)
    if not outputs:
        return ReadResponse(id=id_, version=version)
    text = json.dumps({"inputs": outputs}).encode()  # which writes NaN as it came
    try:
        parsed = parse_infer(text + body[end:], "", None, None, json_bytes=len(text))
    except InvalidRequest as error:
        raise InvalidRequest(f"response: {str(error).replace('inputs[', 'outputs[')}") from error
    return ReadResponse(id=id_, version=version, tensors=parsed.inputs)


def predictions_of_elements(tensors: Sequence[Tensor], count: int) -> list[list[Any]] | None:
    """Return the predictions in elements of texts: Triton's classification, or JSON; None where there are none.

    Args:
        tensors: Outputs of V2.
        count: Number of images.
    """
    for tensor in tensors:
        if not isinstance(tensor.data, list) or not tensor.data or len(tensor.data) % count:
            continue
        texts = [
            element.decode(errors="replace") if isinstance(element, bytes) else str(element)
            for element in tensor.data
        ]
        size = len(texts) // count
        rows = [texts[start : start + size] for start in range(0, len(texts), size)]
        classified = [[_classified(text) for text in row] for row in rows]
        if all(prediction is not None for row in classified for prediction in row):
            return classified
        if size == 1 and (decoded := [_json_list(text) for text in texts]) and None not in decoded:
            return [row for row in decoded if row is not None]
    return None


def tensor_predictions(tensors: Sequence[Tensor], number: int, count: int) -> list[Any]:
    """Describe the outputs of one of several images, as inferences of tensors are stored."""
    described = []
    for tensor in tensors:
        if count > 1 and tensor.shape[:1] == (count,):
            data: Any = tensor.data
            size = len(data) // count
            part = (
                data[number * size : (number + 1) * size]
                if isinstance(data, list)
                else data[number : number + 1]
            )
            tensor = msgspec.structs.replace(tensor, data=part, shape=(1, *tensor.shape[1:]))  # noqa: PLW2901
        described.append(msgspec.to_builtins(stored_form(_finite(tensor))))
    return described


def rows_of_predictions(predictions: Sequence[Any], count: int, location: str) -> list[list[Any]]:
    """Return the predictions of each image, of a response that has them itself.

    Raises:
        InvalidRequest: Their number is another than that of the images.
    """
    if len(predictions) != count:
        raise InvalidRequest(
            f"{location}: expected predictions of {count} images, got {len(predictions)}"
        )
    rows = []
    for prediction in predictions:
        if isinstance(prediction, Mapping) and isinstance(prediction.get(_PREDICTIONS), list):
            prediction = prediction[_PREDICTIONS]  # noqa: PLW2901
        if isinstance(prediction, Mapping):
            rows.append([prediction])
        elif isinstance(prediction, list) and all(isinstance(item, Mapping) for item in prediction):
            rows.append(prediction)
        else:
            rows.append([{"name": _PREDICTIONS, "data": prediction}])
    return rows


def is_task_unknown(rows: Sequence[Sequence[Any]]) -> bool:
    """Check whether predictions are values without a meaning, which are stored as those of tensors."""
    return any(
        row and isinstance(row[0], Mapping) and row[0].keys() == {"name", "data"} for row in rows
    )


def _keys(document: Mapping[str, Any]) -> str:
    return f"the keys {', '.join(map(str, document))[:100]}" if document else "an empty object"


def _image_files(tensor: Tensor) -> list[bytes]:
    """Return the elements of a tensor, if all of them are image files."""
    if not isinstance(tensor.data, list):
        return []
    files = []
    for element in tensor.data:
        data = element if isinstance(element, bytes) else from_base64(element)
        if data is not None and not is_image_file(data) and isinstance(element, bytes):
            data = from_base64(element.decode("latin-1"))
        if data is None or not is_image_file(data):
            return []
        files.append(data)
    return files


def _images_of_instances(instances: Sequence[Any]) -> Iterator[bytes]:
    """Yield the image of each instance, if every one has one."""
    images = [_image_of_instance(instance) for instance in instances]
    if all(image is not None for image in images):
        yield from (image for image in images if image is not None)


def _image_of_instance(instance: Any) -> bytes | None:
    value = instance
    for _ in range(2):  # {"image": {"b64": "..."}}
        if not isinstance(value, Mapping):
            break
        if is_base64(value):
            value = value["b64"]
        else:
            value = next((value[key] for key in _IMAGE_KEYS if key in value), None)
    if not isinstance(value, str):
        return None
    data = from_base64(value)
    return data if data is not None and is_image_file(data) else None


def from_base64(text: str) -> bytes | None:
    """Return the bytes of a text in base64, or of a data URL; None if it is neither."""
    if text.startswith("data:"):
        _, _, text = text.partition(",")
    try:
        return pybase64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        return None


def _own_predictions(output: Mapping[str, Any]) -> list[Any] | None:
    """Return the predictions in the data of an output, as chariot-v2-kserve has them: one list for each image."""
    data = output.get("data")
    if output.get("datatype") == "BYTES" and isinstance(data, list) and data:
        if all(
            isinstance(row, list) and all(isinstance(item, dict) for item in row) for row in data
        ):
            return data
        if all(isinstance(item, dict) for item in data) and not any(map(is_base64, data)):
            return data
    return None


def _classified(text: str) -> dict[str, Any] | None:
    """Read an element of Triton's classification extension."""
    match = _CLASSIFIED.fullmatch(text)
    if match is None:
        return None
    try:
        score = float(match["score"])
    except ValueError:
        return None
    return {"label": match["label"] or f"class_{match['index']}", "score": score}


def _json_list(text: str) -> list[Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        value = [value]
    return value if isinstance(value, list) and all(isinstance(v, dict) for v in value) else None


def _finite(tensor: Tensor) -> Tensor:
    """Return a tensor of numbers with null in place of NaN and infinities, which no database keeps."""
    data = tensor.data
    if isinstance(data, list):
        texts = [e.decode(errors="replace") if isinstance(e, bytes) else e for e in data]
        return msgspec.structs.replace(tensor, data=texts)
    if data.dtype.kind == "f" and not np.isfinite(data).all():
        values = [value if np.isfinite(value) else None for value in data.ravel().tolist()]
        return msgspec.structs.replace(tensor, data=values)
    return tensor
