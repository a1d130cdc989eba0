"""Decisions about a model, field by field, each with its reason."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Layer = tuple[str, Mapping[str, Any]]
"""A reason, and the fields that it decides."""


class Decision(msgspec.Struct, frozen=True):
    """A field, its decided value, and the reason."""

    field: str
    value: Any
    reason: str


def decide(
    decisions: list[Decision], table: str, struct: type[msgspec.Struct], layers: Sequence[Layer]
) -> dict[str, Any]:
    """Take each field of a struct from the first layer that has it, and append the reason to `decisions`."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        for reason, layer in layers:
            name = field.name if field.name in layer else field.encode_name
            if name in layer:
                values[field.name] = layer[name]
                decisions.append(Decision(f"{table}.{field.encode_name}", layer[name], reason))
                break
    return values
