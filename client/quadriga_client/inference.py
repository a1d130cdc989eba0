"""Requests for inferences and their answers, an image behind JSON, without base64; and requests that store others' inferences.

Source: chariot-v2-kserve with the binary data of Triton's V2 extension: JSON, then the image, 4 bytes of its length first.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from .class_labels import ClassLabels
from .errors import InputError
from .results import Result
from .transport.calls import (
    Call,
    bad_answer,
    encode_json,
    json_call,
    new_key,
    path_of,
    present,
    read_json,
)
from .transport.connections import Response
from .versions import Version, split_version

INPUT_NAME = "input-image-0"
LOG_PATH = "/api/inferences"


def infer_call(
    model: str,
    image: bytes,
    *,
    version: Version | None,
    metadata: Mapping[str, Any] | None,
    parameters: Mapping[str, Any] | None,
    request_id: str | None,
    idempotency_key: str | None,
    input_name: str = INPUT_NAME,
) -> Call:
    """Make a request for an inference of one image.

    Args:
        model: Name of the model, or `name@version`.
        image: Image file.
        version: Version of the model; None for the one that the server chooses.
        metadata: Metadata that is stored with the inference.
        parameters: Further parameters of the input, such as `score_threshold`.
        request_id: Id of the request, as it is stored; None for a random one.
        idempotency_key: Key under which the request is stored once; None for a random one.
        input_name: Name of the image, as it is stored.

    Raises:
        InputError: A value cannot be sent.
    """
    sent = dict(parameters or {})
    if metadata is not None:
        if not isinstance(metadata, Mapping):
            raise InputError(f"expected metadata to be a dict, got {type(metadata).__name__}")
        sent["metadata"] = encode_json(metadata, "metadata").decode()
    sent["binary_data_size"] = len(image) + 4
    tensor = {"name": input_name, "shape": [1], "datatype": "BYTES", "parameters": sent}
    body: dict[str, Any] = {"inputs": [tensor]}
    if request_id is not None:
        body["id"] = request_id
    text = encode_json(body, "parameters")
    key = idempotency_key or new_key()
    return Call(
        "POST",
        model_path(model, version) + "/infer",
        (text, len(image).to_bytes(4, "little"), image),
        {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(text)),
            "Idempotency-Key": key,
            # replicas find by it that a request came twice
            "X-Request-ID": key[:128],
        },
        is_repeatable=True,
        needs_key_support=True,
    )


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


def tensors_call(
    model: str,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    version: Version | None,
    parameters: Mapping[str, Any] | None,
    request_id: str | None,
) -> Call:
    """Make a request for an inference of tensors, as V2 has them; see `Client.infer_tensors`."""
    rows = _tensor_rows(inputs) if isinstance(inputs, Mapping) else list(inputs)
    body: dict[str, Any] = {"inputs": rows}
    if parameters:
        body["parameters"] = dict(parameters)
    if request_id is not None:
        body["id"] = request_id
    key = new_key()
    return Call(
        "POST",
        model_path(model, version) + "/infer",
        (encode_json(body, "tensors"),),
        {"Content-Type": "application/json", "Idempotency-Key": key, "X-Request-ID": key},
        is_repeatable=True,
        needs_key_support=True,
    )


def log_call(model: str, version: str | None, inferences: Sequence[Mapping[str, Any]]) -> Call:
    """Make a request that stores inferences once, however often it is sent: each has a key."""
    items = [{"key": new_key(), **inference} for inference in inferences]
    body = present(model=model, version=version, inferences=items)
    return json_call("POST", LOG_PATH, body=body, is_repeatable=True)


def logged_inference(image: bytes | None, **values: Any) -> dict[str, Any]:
    """Return an inference as the server takes it.

    Args:
        image: The image file, or None.
        values: As docs/elsewhere.md has them; those that are None are left out. `time` may be a `datetime`.

    Raises:
        InputError: `time` is a datetime without time zone.
    """
    time = values.get("time")
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise InputError(f"expected a time with a time zone, got {time}")
        values["time"] = time.isoformat()
    encoded = None if image is None else base64.b64encode(image).decode()
    return present(image=encoded, **values)


_DATATYPES = {
    "bool": "BOOL",
    **{
        f"{kind}{bits}": f"{kind.upper()}{bits}"
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}


def _tensor_rows(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
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
