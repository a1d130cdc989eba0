"""Requests for inferences and their answers, an image behind JSON, without base64; and inferences that others made.

Source: chariot-v2-kserve with the binary data of Triton's V2 extension: JSON, then the image, 4 bytes of its length first.
"""

import base64
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from .class_labels import ClassLabels
from .errors import InputError
from .results import Result
from .transport.calls import bad_answer, encode_json, new_key, path_of, present, read_json
from .transport.connections import Call, Response
from .versions import Version, split_version

INPUT_NAME = "input-image-0"


def infer_call(
    model: str,
    version: Version | None,
    body: Mapping[str, Any],
    subject: str,
    *,
    image: bytes | None = None,
    key: str | None = None,
) -> Call:
    """Make a request for an inference.

    Args:
        model: Name of the model, or `name@version`.
        version: Version of the model; None for the one that the server chooses.
        body: JSON of the request.
        subject: Name of the values in the body, for the message about one that JSON does not have.
        image: Image file behind the JSON, which `image_tensor` describes in it.
        key: Key under which the request is stored once; None for a random one.

    Raises:
        InputError: A value cannot be sent.
    """
    text = encode_json(body, subject)
    key = key or new_key()
    # Replicas find by the id that a request came twice.
    headers = {"Idempotency-Key": key, "X-Request-ID": key[:128]}
    parts = [text]
    if image is None:
        headers["Content-Type"] = "application/json"
    else:
        parts += [len(image).to_bytes(4, "little"), image]
        headers["Content-Type"] = "application/octet-stream"
        headers["Inference-Header-Content-Length"] = str(len(text))
    path = model_path(model, version) + "/infer"
    return Call("POST", path, parts, headers, is_repeatable=True, needs_key_support=True)


def image_tensor(
    image_bytes: int,
    name: str,
    metadata: Mapping[str, Any] | None,
    parameters: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the input of an image of so many bytes, which stands behind the JSON.

    Raises:
        InputError: The metadata cannot be sent.
    """
    sent = dict(parameters or {})
    if metadata is not None:
        if not isinstance(metadata, Mapping):
            raise InputError(f"expected metadata to be a dict, got {type(metadata).__name__}")
        sent["metadata"] = encode_json(metadata, "metadata").decode()
    sent["binary_data_size"] = image_bytes + 4
    return {"name": name, "shape": [1], "datatype": "BYTES", "parameters": sent}


def read_result(
    response: Response, image: bytes, source: str, labels: ClassLabels | None = None
) -> Result:
    """Read the answer to `infer_call`; `labels` knows those of the model.

    Raises:
        BadAnswer: It has no predictions.
    """
    raw = read_json(response)
    try:
        (output,) = raw["outputs"]
        (predictions,) = output["data"]
    except (TypeError, KeyError, ValueError) as error:
        raise bad_answer("predictions of one image", response) from error
    if not isinstance(predictions, list) or not all(isinstance(row, dict) for row in predictions):
        raise bad_answer("a list of predictions", response)
    labels_of = None if labels is None else partial(labels.of, str(raw.get("model_name") or ""))
    return Result(raw, output, image, source, labels_of=labels_of)


def logged_inference(
    inference: Mapping[str, Any], image_bytes: Callable[[Any], bytes]
) -> dict[str, Any]:
    """Return an inference as the server takes it, with a key, under which it is stored once.

    Args:
        inference: As docs/elsewhere.md has it; values that are None are left out. `time` may be a `datetime`.
        image_bytes: Returns the bytes of its image.

    Raises:
        InputError: The image cannot be read, or `time` is a datetime without time zone.
    """
    values = present(**inference)
    time = values.get("time")
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise InputError(f"expected a time with a time zone, got {time}")
        values["time"] = time.isoformat()
    if "image" in values:
        values["image"] = base64.b64encode(image_bytes(values["image"])).decode()
    return {"key": new_key(), **values}


_WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = {"float16": "FP16", "float32": "FP32", "float64": "FP64"}
_DATATYPES = _FLOATS | {name: name.upper() for name in _WHOLE}


def number_tensors(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return arrays of numbers by input as the tensors of V2; raise an `InputError` for others."""
    rows = []
    for name, array in inputs.items():
        datatype = _DATATYPES.get(str(getattr(array, "dtype", "")))
        if datatype is None:
            raise InputError(
                f"expected {name!r} to be an array of numbers, got {type(array).__name__}"
            )
        flat = array.reshape(-1).tolist()
        rows.append({"name": name, "datatype": datatype, "shape": list(array.shape), "data": flat})
    return rows


def model_path(model: str, version: Version | None) -> str:
    """Return the path of a model, or of a version; braces of a name are percent-encoded, so that it is no template."""
    name, chosen = split_version(model, version)
    path = path_of("/v2/models/{}", name)
    return path if chosen is None else path + path_of("/versions/{}", chosen)


def read_events(lines: Any) -> Any:
    """Yield the JSON of server-sent events: lines `data: …`, until an empty line ends an event.

    Source: WHATWG, HTML, section 9.2.6.
    """
    data: list[bytes] = []
    for line in lines:
        text = line.rstrip(b"\r\n")
        if text.startswith(b"data:"):
            data.append(text[5:].removeprefix(b" "))
        elif not text and data:
            yield json.loads(b"\n".join(data))
            data.clear()
    if data:
        yield json.loads(b"\n".join(data))
