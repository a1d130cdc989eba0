"""Messages of gRPC, as classes made from `open_inference.binpb`.

They have a descriptor pool of their own: in the default pool they would clash with those of tritonclient, kserve and
mlserver, which declare the same names, and none of these could be imported in the same process.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import MAX_NAME_BYTES
from quadriga.quoting import quoted


def _make_pool(*, of_responses: bool) -> Any:
    """Make a pool of all messages; in that of responses, a parameter may have several values."""
    pool: Any = descriptor_pool.DescriptorPool()
    compiled = files("quadriga.proto").joinpath("open_inference.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        for message in file.message_type:
            if of_responses and message.name == "InferParameter":
                _dissolve_choice(message)
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _dissolve_choice(message: Any) -> None:
    """Make the members of a message's only `oneof` fields that may all be set; the bytes of each are the same."""
    del message.oneof_decl[:]
    for index, field in enumerate(message.field):
        message.oneof_decl.add(name=f"_{field.name}")
        field.oneof_index, field.proto3_optional = index, True


POOL: Any = _make_pool(of_responses=False)
_RESPONSE_POOL: Any = _make_pool(of_responses=True)

SERVICE = "inference.GRPCInferenceService"
REPOSITORY_SERVICE = "inference.model_repository.ModelRepositoryService"
"""Repository service of MLServer; its messages are those of the first service."""


@cache
def message_class(name: Any) -> Any:
    """Return the class of a message, by its name in the package `inference` or by its descriptor."""
    descriptor = POOL.FindMessageTypeByName(f"inference.{name}") if isinstance(name, str) else name
    return message_factory.GetMessageClass(descriptor)


@cache
def response_class(name: str) -> Any:
    """Return the class in which a response with parameters is written, by its name in the package `inference`.

    On the wire it is `message_class(name)`. A parameter may have several values, of which a client reads the last one
    that its own messages know, since they are members of one `oneof` there.

    Source: Protocol Buffers, encoding, "Last One Wins" and "Oneofs".
    """
    return message_factory.GetMessageClass(
        _RESPONSE_POOL.FindMessageTypeByName(f"inference.{name}")
    )


def decode_message(class_: Any, body: bytes) -> Any:
    """Decode a message.

    Raises:
        InvalidRequest: The bytes are no such message, or have more than `MAX_MESSAGE_FIELDS` fields.
    """
    if len(body) > 2 * MAX_MESSAGE_FIELDS:
        _check_field_count(body)
    try:
        return class_.FromString(body)
    except DecodeError as error:
        name = class_.DESCRIPTOR.name
        raise InvalidRequest(f"expected a message {name}, got other bytes: {error}") from error


_MODEL_NAME = 0x0A
"""Key of the field of a `ModelInferRequest` that names its model."""

_NAMES = {_MODEL_NAME: "model_name", 0x12: "model_version", 0x1A: "id"}
"""Names of the fields that an answer repeats, by their keys."""

MAX_MESSAGE_FIELDS = 50_000
"""Maximum fields of a message, those of its own messages not counted: decoded, an empty one of two bytes takes 90."""

MAX_FIELDS = 1000
"""Maximum fields of an inference request before the name of its model; libraries write the name first."""


def read_model_name(body: bytes) -> str:
    """Read the first `model_name` of a `ModelInferRequest` without decoding the rest; empty if it is not found.

    Source: Protocol Buffers, encoding.
    """
    try:
        for key, start, end in islice(_fields(body), MAX_FIELDS):
            if key == _MODEL_NAME:
                return body[start:end].decode()
    except (IndexError, UnicodeDecodeError):
        return ""
    return ""


def read_names(body: bytes) -> dict[str, str]:
    """Read `model_name`, `model_version` and `id` of a `ModelInferRequest` that may be no whole message.

    Those of more than `MAX_NAME_BYTES` are left out: answers that a client does not read stay in memory.
    """
    names = {}
    with suppress(IndexError):
        for key, start, end in islice(_fields(body), MAX_FIELDS):
            if key in _NAMES and end - start <= MAX_NAME_BYTES:
                names[_NAMES[key]] = body[start:end].decode(errors="replace")
    return names


def _check_field_count(body: bytes) -> None:
    with suppress(IndexError):  # it is no message, which the decoder says
        if any(True for _ in islice(_fields(body), MAX_MESSAGE_FIELDS, None)):
            raise InvalidRequest(
                f"expected a message of at most {MAX_MESSAGE_FIELDS} fields, got more"
            )


def _fields(body: bytes) -> Iterator[tuple[int, int, int]]:
    """Give the key of each field of a message, and where its value begins and ends.

    Raises:
        IndexError: The bytes end within a field.
    """
    position, size = 0, len(body)
    while position < size:
        key, position = _read_varint(body, position)
        kind = key & 7
        length = {1: 8, 5: 4}.get(kind, 0)
        start = position
        if kind == 0:
            _, position = _read_varint(body, position)
        elif kind == 2:
            length, start = _read_varint(body, position)
            position = start
        position += length
        yield key, start, position


def check_model_name(request: Any, name: str) -> None:
    """Check that a decoded request names the model in whose queue it waited: of two names the last one counts.

    Args:
        request: The request.
        name: The name as `read_model_name` has it.

    Raises:
        InvalidRequest: It has several names, or one behind too many fields.
    """
    if request.model_name != name:
        raise InvalidRequest(
            f"expected model_name once, among the first {MAX_FIELDS} fields of the message, got {quoted(name, 60)} "
            f"there and {quoted(request.model_name, 60)} behind"
        )


def _read_varint(view: bytes, position: int) -> tuple[int, int]:
    """Read an integer of variable length; return its value and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value, position
