"""Decisions about a model, field by field, each with its reason."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quadriga.engine.models.runners.session import LoadError

Layer = tuple[str, Mapping[str, Any]]
"""A reason, and the fields that it decides."""


class Decision(msgspec.Struct, frozen=True):
    """A field, its decided value, and the reason."""

    field: str
    value: Any
    reason: str


class MissingError(LoadError):
    """Fields of a model that nothing gives, and a person has to write.

    Args:
        questions: What to write, by key of model.toml or by file.
    """

    def __init__(self, questions: Mapping[str, str]) -> None:
        super().__init__("\n".join(questions.values()))
        self.questions = dict(questions)


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
