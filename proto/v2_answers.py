"""The shapes of V2's answers in JSON, for the OpenAPI document; answers are written without them."""

from typing import Any

import msgspec

from proto.datatypes import Datatype


class ServerMetadata(msgspec.Struct):
    """The server and what it can do."""

    name: str
    version: str
    extensions: list[str]


ServerLive = msgspec.defstruct("ServerLive", [("live", bool)])
ServerReady = msgspec.defstruct("ServerReady", [("live", bool), ("ready", bool)])
ModelReady = msgspec.defstruct("ModelReady", [("name", str), ("ready", bool)])
ModelNames = msgspec.defstruct("ModelNames", [("models", list[str])])


class TensorMetadata(msgspec.Struct):
    """An input or output; -1 stands for a variable dimension."""

    name: str
    datatype: Datatype
    shape: list[int]


class ModelMetadata(msgspec.Struct):
    """A model, as a client meets it."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    properties: dict[str, str]


class OutputTensor(msgspec.Struct):
    """An output; its bytes stand behind the JSON where `parameters` has `binary_data_size`."""

    name: str
    shape: list[int]
    datatype: Datatype
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class InferAnswer(msgspec.Struct):
    """The answer to an inference request."""

    model_name: str
    model_version: str
    id: str
    outputs: list[OutputTensor]
