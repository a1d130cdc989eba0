"""Messages of gRPC, as classes made from `open_inference.binpb`.

They have a descriptor pool of their own: in the default pool they would clash with those of tritonclient, kserve and
mlserver, which declare the same names, and none of these could be imported in the same process.
"""

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from quadriga.proto.errors import InvalidRequest

POOL: Any = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(
    files("quadriga.proto").joinpath("open_inference.binpb").read_bytes()
).file:
    POOL.AddSerializedFile(_file.SerializeToString())

SERVICE = "inference.GRPCInferenceService"
REPOSITORY_SERVICE = "inference.model_repository.ModelRepositoryService"
"""Repository service of MLServer; its messages are those of the first service."""


def message_class(name: Any) -> Any:
    """Return the class of a message, by its name in the package `inference` or by its descriptor."""
    descriptor = POOL.FindMessageTypeByName(f"inference.{name}") if isinstance(name, str) else name
    return message_factory.GetMessageClass(descriptor)


def decode_message(class_: Any, body: bytes) -> Any:
    """Decode a message; raises InvalidRequest if the bytes are no such message."""
    try:
        return class_.FromString(body)
    except DecodeError as error:
        name = class_.DESCRIPTOR.name
        raise InvalidRequest(f"expected a message {name}, got other bytes: {error}") from error
