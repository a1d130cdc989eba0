"""chariot-v2-kserve: images, their metadata and storage options, as V2 requests of every protocol here carry them.

Images come base64-encoded in BYTES inputs, predictions go out as JSON in `data`, one list per image.

Source: Chariot, Inference Protocols ("Requests", "Custom Metadata") and Inference Store ("Metadata").
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quadriga.proto.errors import InvalidRequest, unexpected
from quadriga.proto.json_text import decode_base64, parse_json
from quadriga.proto.messages import (
    DEFAULT_STORAGE,
    ImageInput,
    InferRequest,
    StorageOptions,
    Tensor,
)
from quadriga.quoting import quoted
from quadriga.tasks.generation import PROMPTS
from quadriga.tasks.parameters import TextNumbers

PROTOCOL = "chariot-v2-kserve"

_METADATA_TYPES = {"str": str, "float": float, "int": int, "dict": dict}
_NUMBERS = {
    "int": re.compile(r"[+-]?[0-9]{1,19}"),
    "float": re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"),
}


def protocol_of_images(protocol: str) -> str:
    """Return the protocol of a request for images, which shares paths and envelope with V2."""
    return PROTOCOL if protocol == "v2" else protocol


def read_image_inputs(request: InferRequest) -> Iterator[ImageInput]:
    """Read the inputs of a request as images, each with its parameters and metadata.

    The request's own parameters are the defaults of each input's.

    Raises:
        InvalidRequest: An input holds no images, or its metadata or storage options cannot be read; its images raise it
            as they are taken, if they are not base64.
    """
    for number, tensor in enumerate(request.inputs):
        location = f"inputs[{number}] ({quoted(tensor.name, 60)})"
        if not isinstance(tensor.data, list):
            raise _no_images(request, tensor, location)
        if not tensor.data:
            raise InvalidRequest(f"{location}: data is empty: at least one image is required")
        defaults = request.parameters
        if any(tensor.parameters.get(name) is not None for name in PROMPTS):
            defaults = {name: value for name, value in defaults.items() if name not in PROMPTS}
        parameters = {**defaults, **tensor.parameters}
        if request.has_text_numbers:
            parameters = TextNumbers(parameters)
        metadata = parse_metadata(parameters, location)
        storage = read_storage_options(parameters, location)
        # protocols that carry bytes mark inputs that are base64 all the same
        is_base64 = tensor.parameters.get("content_type") == "base64"
        images = _image_files(tensor.data, location, is_base64=is_base64)
        yield ImageInput(
            name=tensor.name,
            location=location,
            images=images,
            parameters=parameters,
            metadata=metadata,
            storage=storage,
        )


def _no_images(request: InferRequest, tensor: Tensor, location: str) -> InvalidRequest:
    """Return the error of numbers in the place of images, with what fits a request of these inputs."""
    is_beside_image = any(isinstance(other.data, list) for other in request.inputs)
    advice = "the parameter content_type raw sends tensors to the graph as they are, and answers its outputs"
    if tensor.datatype == "UINT8":
        advice = (
            f"send the file (JPEG, PNG) as one element of BYTES, not its pixels or bytes; {advice}"
        )
    if is_beside_image:
        advice = "a number beside an image stands in parameters"
    return InvalidRequest(
        f"{location}: expected images in datatype BYTES, base64-encoded in JSON, got {tensor.datatype}; {advice}"
    )


def _image_files(
    elements: Sequence[str | bytes], location: str, *, is_base64: bool
) -> Iterator[bytes]:
    """Yield images as files; texts of JSON, and inputs marked as such, are decoded from base64."""
    for index, element in enumerate(elements):
        if isinstance(element, bytes) and not is_base64:
            yield element
            continue
        text = element.decode("latin-1") if isinstance(element, bytes) else element
        try:
            image = decode_base64(text)
        except ValueError as error:
            raise InvalidRequest(
                f"{location}: data[{index}]: expected a base64-encoded image, got: {error}"
            ) from error
        yield image


def read_storage_options(parameters: Mapping[str, Any], location: str) -> StorageOptions:
    """Read the storage options of one input.

    Raises:
        InvalidRequest: An option is neither true nor false.
    """
    names = StorageOptions.__struct_fields__
    options = {name: parameters[name] for name in names if parameters.get(name) is not None}
    for name, value in options.items():
        if not isinstance(value, bool):
            raise unexpected(location, f"parameters.{name} to be true or false", value, 80)
    return StorageOptions(**options) if options else DEFAULT_STORAGE


def parse_metadata(parameters: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Read the metadata that came with an input, in any of its forms, as plain nested JSON.

    The value is a JSON text or the JSON itself: a list of `{"key", "type", "value"}`, an object with
    such a list as `extended_metadata`, or a plain object. `standard_metadata` belongs to the server
    and is not read.
    """
    return parse_metadata_value(parameters.get("metadata"), f"{location}: parameters.metadata")


def parse_metadata_value(value: Any, location: str) -> dict[str, Any]:
    """Read metadata in any of its forms; see `parse_metadata`."""
    if isinstance(value, str):
        value = parse_json(value, "a text", object, f"{location}: ")
    if value is None:
        return {}
    if isinstance(value, dict) and ("extended_metadata" in value or "standard_metadata" in value):
        location, value = f"{location}.extended_metadata", value.get("extended_metadata") or []
        if isinstance(value, dict):
            value = [value]
        if not isinstance(value, list):
            raise InvalidRequest(
                f"{location}: expected a list of entries, got {type(value).__name__}"
            )
    if isinstance(value, list):
        return _from_entries(value, location)
    if isinstance(value, dict):
        return value
    raise InvalidRequest(
        f"{location}: expected an object or a list of entries, got {type(value).__name__}"
    )


def _from_entries(entries: list[Any], location: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number, entry in enumerate(entries):
        entry_location = f"{location}[{number}]"
        if not isinstance(entry, dict) or not {"key", "type", "value"} <= entry.keys():
            raise unexpected(entry_location, "an object with key, type and value", entry, 80)
        key = entry["key"]
        if not isinstance(key, str) or not key:
            raise unexpected(entry_location, "key to be a text", key, 80)
        if key in metadata:
            raise InvalidRequest(f"{entry_location}: expected each key once, got {key!r} twice")
        metadata[key] = _typed(entry["type"], entry["value"], f"{entry_location} ({key!r})")
    return metadata


def _typed(type_: Any, value: Any, location: str) -> Any:
    """Read a value as its declared type; values are texts on the wire, but JSON's own types are accepted, too."""
    if type_ not in tuple(_METADATA_TYPES):  # of any type, as JSON has it
        raise unexpected(location, f"type to be one of {', '.join(_METADATA_TYPES)}", type_, 40)
    parsed: Any = value
    if type_ == "dict" and isinstance(value, str):
        with contextlib.suppress(InvalidRequest):
            parsed = parse_json(value, "a text", object)
    elif type_ in _NUMBERS and isinstance(value, str) and _NUMBERS[type_].fullmatch(value.strip()):
        parsed = int(value) if type_ == "int" else float(value)
    elif type_ == "float" and isinstance(value, int) and not isinstance(value, bool):
        parsed = float(value)
    if not isinstance(parsed, _METADATA_TYPES[type_]) or isinstance(parsed, bool):
        raise unexpected(location, f"a value that parses as {type_}", value, 80)
    if isinstance(parsed, float) and not math.isfinite(parsed):
        raise unexpected(location, "a finite float", value, 80)
    return parsed
