"""From an inference that was made elsewhere to its images with their predictions, checked.

The bodies of the request and the response are V2 or KServe V1 in JSON, with the bytes of tensors behind the JSON of V2.

Source: Open Inference Protocol, inference_rest.md; KServe V1; Triton, classification extension.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import cv2
import msgspec
import numpy as np
import numpy.typing as npt
import pybase64

from quadriga.engine.external.descriptions import convert, described_spec
from quadriga.engine.models.recognition.model_toml import ModelToml
from quadriga.engine.serving.tensors.tensor_inference import stored_form
from quadriga.monitor.image_statistics import measure_image
from quadriga.proto.errors import InvalidRequest, unexpected
from quadriga.proto.http.chariot import parse_metadata
from quadriga.proto.http.v2 import parse_infer
from quadriga.proto.json_text import check_amount, is_base64
from quadriga.proto.messages import Tensor
from quadriga.tasks import SHORT_NAMES, TASKS, Task, full_name
from quadriga.tasks.image import Image, ImageError, decode, is_image_file
from quadriga.tasks.parameters import Budget, BudgetError
from quadriga.tasks.predictions import (
    Answer,
    Classification,
    Detection,
    OrientedDetection,
    OutputError,
    Segment,
)
from quadriga.tasks.resize import Affine, check_shape, image_placement
from quadriga.tasks.specification import InputSpec, ModelSpec, resolve

Item = TypeVar("Item")

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
            images=_all_or_none(map(_image_of_instance, instances)),
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
    with suppress(ValueError):
        return pybase64.b64decode("".join(text.split()), validate=True)
    return None


def _own_predictions(output: Mapping[str, Any]) -> list[Any] | None:
    """Return the predictions in the data of an output, as chariot-v2-kserve has them: one list for each image."""
    data = output.get("data")
    if output.get("datatype") != "BYTES" or not isinstance(data, list) or not data:
        return None
    are_rows = all(isinstance(row, list) and all(isinstance(i, dict) for i in row) for row in data)
    are_objects = all(isinstance(item, dict) and not is_base64(item) for item in data)
    return data if are_rows or are_objects else None


def _classified(text: str) -> dict[str, Any] | None:
    """Read an element of Triton's classification extension."""
    if (match := _CLASSIFIED.fullmatch(text)) is not None:
        with suppress(ValueError):
            label = match["label"] or f"class_{match['index']}"
            return {"label": label, "score": float(match["score"])}
    return None


def _json_list(text: str) -> list[Any] | None:
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        value = msgspec.json.decode(text)
        rows = [value] if isinstance(value, dict) else value
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            return rows
    return None


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


TENSOR = "TENSOR"

MAX_PREDICTIONS = 10_000
"""Maximum predictions of one inference, as many as a model of this server may make."""

MAX_DEPTH = 32
"""Maximum depth of a prediction's JSON."""

MAX_LABEL_BYTES = 2048
"""Maximum length of a label in UTF-8: databases index no longer texts."""

_FORMS: dict[str, type[msgspec.Struct]] = {
    "IMAGE_CLASSIFICATION": Classification,
    "OBJECT_DETECTION": Detection,
    "ORIENTED_OBJECT_DETECTION": OrientedDetection,
    "IMAGE_SEGMENTATION": Segment,
    "IMAGE_TEXT_TO_TEXT": Answer,
}
_MARKS = (
    ("xmin", "OBJECT_DETECTION"),
    ("cx", "ORIENTED_OBJECT_DETECTION"),
    ("contour", "IMAGE_SEGMENTATION"),
    ("answer", "IMAGE_TEXT_TO_TEXT"),
    ("label", "IMAGE_CLASSIFICATION"),
)
"""Keys by which the task of a prediction is known, the decisive first."""


def read_task(name: str) -> str:
    """Return the full name of a task.

    Raises:
        InvalidRequest: There is no such task.
    """
    task = full_name(name)
    if task not in _FORMS and task != TENSOR:
        raise unexpected("task", f"one of {', '.join(SHORT_NAMES)}", name)
    return task


def task_of(predictions: Sequence[Any]) -> str | None:
    """Return the task that predictions are of; None where they are of none."""
    first = predictions[0] if predictions else None
    if not isinstance(first, Mapping):
        return None
    return next((task for mark, task in _MARKS if mark in first), None)


def check_predictions(predictions: Sequence[Any], task: str, location: str) -> list[Any]:
    """Check the predictions of one image, and return them in the form of a response.

    Boxes may lie outside of the image, as the model said so.

    Raises:
        InvalidRequest: They are not of the task, a number is not finite, or there are too many; the message names the place.
    """
    if len(predictions) > MAX_PREDICTIONS:
        raise InvalidRequest(
            f"{location}: expected at most {MAX_PREDICTIONS} predictions, got {len(predictions)}"
        )
    return [
        _check(prediction, task, f"{location}[{number}]")
        for number, prediction in enumerate(predictions)
    ]


def _check(prediction: Any, task: str, location: str) -> Any:
    if not isinstance(prediction, Mapping):
        raise unexpected(location, f"an object of {task}", prediction)
    if task == TENSOR:
        _check_finite(prediction, location)
        return prediction
    checked = convert(prediction, _FORMS[task], f"{location}: expected a prediction of {task}: ")
    _check_finite(msgspec.to_builtins(checked), location)
    label = getattr(checked, "label", None)
    if label is not None and not 0 < len(label.encode(errors="replace")) <= MAX_LABEL_BYTES:
        raise unexpected(f"{location}.label", f"a text of 1 to {MAX_LABEL_BYTES} bytes", label)
    if isinstance(checked, Detection) and not (
        checked.xmin <= checked.xmax and checked.ymin <= checked.ymax
    ):
        raise InvalidRequest(
            f"{location}: expected xmin <= xmax and ymin <= ymax, got {checked.xmin:g}, {checked.ymin:g}, "
            f"{checked.xmax:g}, {checked.ymax:g}"
        )
    return checked


def _check_finite(value: Any, location: str, depth: int = 0) -> None:
    """Refuse NaN and infinities, which no database keeps, and what is nested too deeply."""
    if depth > MAX_DEPTH:
        raise InvalidRequest(
            f"{location[:200]}: expected values nested at most {MAX_DEPTH} deep, got more"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"{location}: expected a finite number, got {value}")
    if isinstance(value, Mapping):
        for key, member in value.items():
            _check_finite(member, f"{location}.{key}", depth + 1)
    elif isinstance(value, list):
        for number, member in enumerate(value):
            _check_finite(member, f"{location}[{number}]", depth + 1)


_BANDS = (1, 3, 4)


def pixels_of_tensor(
    tensor: npt.NDArray[Any], spec: InputSpec | None = None
) -> npt.NDArray[np.uint8] | None:
    """Return the picture in the input tensor of one image.

    Args:
        tensor: (H, W, C) or (C, H, W), without the batch axis; uint8, or floating-point numbers if the specification
            says how they were made.
        spec: Specification of the input; None where nothing is known of it.

    Returns:
        uint8 (H, W, C) with 1, 3 or 4 bands, RGB; None where the tensor holds no picture.
    """
    if tensor.ndim != 3 or 0 in tensor.shape:
        return None
    is_first = tensor.shape[0] in _BANDS and tensor.shape[2] not in _BANDS
    if spec is not None:
        is_first = spec.layout == "nchw"
    planes = tensor if is_first else np.moveaxis(tensor, 2, 0)
    if planes.shape[0] not in _BANDS:
        return None
    if spec is not None and tensor.dtype.kind == "f":
        bands = len(planes)
        mean, std = (
            np.asarray(values[:bands], np.float32).reshape(-1, 1, 1)
            for values in (spec.mean, spec.std)
        )
        with np.errstate(all="ignore"):
            values = (planes.astype(np.float32) * std + mean) / np.float32(spec.scale)
        planes = np.clip(np.nan_to_num(np.round(values)), 0, 255).astype(np.uint8)
    if planes.dtype != np.uint8:
        return None
    if spec is not None and spec.color == "bgr" and len(planes) >= 3:
        planes = planes[[2, 1, 0, *range(3, len(planes))]]
    return np.ascontiguousarray(np.moveaxis(planes, 0, 2))


def pixels_of_lists(value: Any) -> npt.NDArray[np.uint8] | None:
    """Return the picture in nested lists of whole numbers, rows of pixels of bands; None where they hold none."""
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    if array.ndim != 3 or array.dtype.kind not in "iu" or array.shape[2] not in _BANDS:
        return None
    if array.size == 0 or array.min() < 0 or array.max() > 255:
        return None
    return array.astype(np.uint8)


def encode_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Write pixels (H, W, C), RGB, as a PNG file."""
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[pixels.shape[2]]
    shown = np.ascontiguousarray(pixels[..., order])
    return cv2.imencode(".png", shown, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes()


_UNREADABLE = (OutputError, ImageError, ArithmeticError, ValueError, LookupError, TypeError)
"""What reading tensors raises that do not fit their description, which a client wrote."""

MAX_SIDE_PX = 16_384
"""Largest side of a network's input in a description."""


class ImageLimits(msgspec.Struct, frozen=True):
    """Limits of the images of one request."""

    max_pixels: int
    budget: Budget
    """Pixels that all images of the request may have together."""
    images: Budget
    """Images, or instances, that the request may have."""
    with_statistics: bool = True
    """Whether the pixels are measured for drift."""


class LoggedImage(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One image of an inference, or its tensors, and what the model said."""

    name: str = ""
    task: str = ""
    predictions: list[Any] = []
    data: bytes | None = None
    """The image file; None where there is none."""
    mime: str | None = None
    statistics: bytes = b""
    """Statistics of the pixels, as of `quadriga.store.records.records.ImageSignals.picture`; empty where there is no image."""
    width: int | None = None
    height: int | None = None
    is_network_input: bool = False
    """Whether it is the picture in the tensor that the network got."""


class SentInference(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What a client sent of an inference, as far as it concerns images and predictions."""

    image: bytes | None = None
    size_wh: tuple[int, int] | None = None
    """Width and height of an image that was not sent."""
    predictions: list[Any] | None = None
    request: ReadRequest | None = None
    response: ReadResponse | None = None
    description: ModelToml | None = None
    task: str | None = None
    failed: bool = False
    """Whether the model failed, so that there are no predictions."""
    unread: str | None = None
    """A response that cannot be read, as text, in place of predictions."""


def read_images(sent: SentInference, limits: ImageLimits) -> list[LoggedImage]:
    """Read the images and predictions of an inference; at least one image, or one without.

    Raises:
        InvalidRequest: An image cannot be read, or the predictions do not fit it, or their task is not known.
    """
    request = sent.request or ReadRequest()
    response = sent.response or ReadResponse()
    spec = None
    if sent.description is not None and response.tensors:
        spec = described_spec(sent.description, request.tensors, response.tensors, "description")
        _check_sides(spec.input)
    batches = [tensor.shape[0] for tensor in request.tensors if len(tensor.shape) == 4]
    count = max(len(request.images), len(request.instances), *batches, 1)
    try:
        limits.images.spend(count)
    except BudgetError as error:
        raise InvalidRequest(str(error)) from error
    images = _decoded_images(sent, request, spec, limits)
    task, rows = _predictions(sent, response, spec, images)
    name = request.input_name or "image"
    return [
        msgspec.structs.replace(
            image,
            name=name,
            task=task,
            predictions=check_predictions(
                row, task, f"predictions of image {number}" if len(rows) > 1 else "predictions"
            ),
        )
        for number, (image, row) in enumerate(zip(images, rows, strict=True))
    ]


def _decoded_images(
    sent: SentInference, request: ReadRequest, spec: ModelSpec | None, limits: ImageLimits
) -> list[LoggedImage]:
    """Return the images that came: as files, or in tensors; one without data where none came."""
    if sent.image is not None:
        return [_decoded(sent.image, "image", limits)]
    if request.images:
        numbered = enumerate(request.images)
        return [_decoded(data, f"request: image {number}", limits) for number, data in numbered]
    if pictures := _pictures(request, None if spec is None else spec.input):
        return [_picture(pixels, limits) for pixels in pictures]
    if sent.size_wh is not None:
        width, height = sent.size_wh
        return [LoggedImage(width=width, height=height)]
    return [LoggedImage()] * (len(request.instances) or 1)


def _decoded(data: bytes, location: str, limits: ImageLimits) -> LoggedImage:
    try:
        image = decode(data, max_pixels=limits.max_pixels, budget=limits.budget)
    except (ImageError, BudgetError) as error:
        raise InvalidRequest(f"{location}: {error}") from error
    return _measured(data, image, limits)


def _measured(
    data: bytes, image: Image, limits: ImageLimits, *, is_network_input: bool = False
) -> LoggedImage:
    statistics = b""
    if limits.with_statistics:
        statistics = measure_image(image.pixels, image.bit_depth).astype("<f4").tobytes()
    return LoggedImage(
        data=data,
        mime=image.mime,
        statistics=statistics,
        width=image.width,
        height=image.height,
        is_network_input=is_network_input,
    )


def _picture(pixels: npt.NDArray[np.uint8], limits: ImageLimits) -> LoggedImage:
    height, width = pixels.shape[:2]
    try:
        limits.budget.spend(width * height)
    except BudgetError as error:
        raise InvalidRequest(f"request: {error}") from error
    shown = pixels[..., [0, 0, 0] if pixels.shape[2] == 1 else [0, 1, 2]]
    image = Image(np.ascontiguousarray(shown), "image/png")
    return _measured(encode_png(pixels), image, limits, is_network_input=True)


def _pictures(request: ReadRequest, spec: InputSpec | None) -> list[npt.NDArray[np.uint8]]:
    """Return the pictures in the tensors of a request, if each image has one."""
    if request.instances:
        return _all_or_none(map(pixels_of_lists, request.instances))
    for tensor in request.tensors:
        if isinstance(tensor.data, list):
            continue
        batch = tensor.data if tensor.data.ndim == 4 else tensor.data[None]
        own = spec if spec is not None and spec.name == tensor.name else None
        if batch.ndim != 4 or not len(batch) or pixels_of_tensor(batch[0], own) is None:
            continue
        return _all_or_none(pixels_of_tensor(image, own) for image in batch)
    return []


def _all_or_none(items: Iterable[Item | None]) -> list[Item]:
    """Return the items, if there is one of each image, else none."""
    listed = list(items)
    known = [item for item in listed if item is not None]
    return known if len(known) == len(listed) else []


def _predictions(
    sent: SentInference,
    response: ReadResponse,
    spec: ModelSpec | None,
    images: Sequence[LoggedImage],
) -> tuple[str, list[list[Any]]]:
    """Return the task, and the predictions of each image."""
    task, count = sent.task, len(images)
    if task is None and sent.description is not None:
        task = full_name(sent.description.task or "")
    if sent.unread is not None:
        return TENSOR, [[{"name": "response", "data": sent.unread}] for _ in images]
    if sent.failed:
        return task or TENSOR, [[] for _ in images]
    is_of_tensors = sent.predictions is None and response.predictions is None
    if is_of_tensors and response.tensors and spec is not None:
        return spec.task, _decoded_outputs(spec, response.tensors, images)
    rows = _rows(sent, response, count)
    if rows is None and response.tensors:
        tensors = response.tensors
        return TENSOR, [tensor_predictions(tensors, number, count) for number in range(count)]
    if rows is None:
        raise InvalidRequest(
            "predictions are required, or the response of the other server, or the error of a failed inference"
        )
    if is_task_unknown(rows):
        return TENSOR, rows
    task = task or next(filter(None, map(task_of, rows)), None)
    if task is None:
        raise InvalidRequest(
            "task is required, as the predictions do not show it: write task, such as detection"
        )
    return task, rows


def _rows(sent: SentInference, response: ReadResponse, count: int) -> list[list[Any]] | None:
    """Return the predictions of each image as they were sent; None where none were, but perhaps tensors of a graph."""
    if sent.predictions is not None:
        if count > 1 or (sent.predictions and isinstance(sent.predictions[0], list)):
            return rows_of_predictions(sent.predictions, count, "predictions")
        return [sent.predictions]
    if response.predictions is not None:
        return rows_of_predictions(response.predictions, count, "response")
    return predictions_of_elements(response.tensors, count) if response.tensors else None


def _decoded_outputs(
    spec: ModelSpec, tensors: Sequence[Tensor], images: Sequence[LoggedImage]
) -> list[list[Any]]:
    """Read the output tensors of each image by the description of the model."""
    arrays = {t.name: t.data for t in tensors if isinstance(t.data, np.ndarray)}
    has_batch = spec.output.batch_axis
    sizes = {len(array) for array in arrays.values() if array.ndim} if has_batch else {1}
    if sizes != {len(images)}:
        raise InvalidRequest(
            f"response: expected outputs of {len(images)} images along their first axis, got {sorted(sizes)}"
        )
    task: Task = resolve(spec.task, TASKS, "a task")(spec)
    options, rows = task.options({}), []
    for number, image in enumerate(images):
        outputs: Mapping[str, Any] = (
            {name: array[number] for name, array in arrays.items()} if has_batch else arrays
        )
        try:
            predictions = task.predict(outputs, _placement(image, spec.input), options)
        except _UNREADABLE as error:
            raise InvalidRequest(
                f"response: the outputs do not fit the description: {str(error)[:300] or type(error).__name__}"
            ) from error
        rows.append(msgspec.to_builtins(list(predictions)))
    return rows


def _placement(image: LoggedImage, spec: InputSpec) -> Affine:
    """Return how an image lies in the network's input; a picture of an input tensor is that input itself."""
    net_w, net_h = spec.size_wh
    width, height = image.width or net_w, image.height or net_h
    if image.is_network_input:
        return Affine(
            sx=1, sy=1, px=0, py=0, width=width, height=height, network_wh=(width, height)
        )
    check_shape(width, height, spec)
    return image_placement(width, height, spec)[0]


def _check_sides(spec: InputSpec) -> None:
    """Refuse a network's input of no size, or of an absurd one."""
    has_sides = all(1 <= side <= MAX_SIDE_PX for side in spec.size_wh)
    if not has_sides or spec.divisor < 1 or not spec.scale:
        raise InvalidRequest(
            f"description: expected input.size of 1 to {MAX_SIDE_PX} pixels a side, and scale and divisor above 0, got "
            f"{list(spec.size_wh)}, {spec.scale:g} and {spec.divisor}"
        )
