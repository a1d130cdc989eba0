"""What msgspec says of a wrong value, completed for the person who wrote it."""

import re
from typing import Any, get_args, get_origin, get_type_hints

import msgspec


def explain_validation_error(error: msgspec.ValidationError, schema: type[msgspec.Struct]) -> str:
    """Say what is wrong and where, with the values allowed or the names known.

    Args:
        error: As msgspec raised it, such as "Invalid enum value 'x' - at `$.input.resize`".
        schema: The struct that the value did not fit.
    """
    text, _, place = str(error).partition(" - at ")
    path = place.strip("`").removeprefix("$").removeprefix(".")
    found: Any = schema
    for name in filter(None, re.split(r"\.|\[.*?\]", path)):
        found = _find_struct(found)
        found = get_type_hints(found).get(name) if found is not None else None
    text = text.replace("`", "'")
    if text.startswith("Invalid enum value"):
        text = f"expected one of {', '.join(_literal_values(found))}, got {text.removeprefix('Invalid enum value ')}"
    elif "unknown field" in text and (struct := _find_struct(found)) is not None:
        text = f"{text}; expected {', '.join(struct.__struct_fields__)}"
    return f"{path}: {text}" if path else text


def _find_struct(annotation: Any) -> type[msgspec.Struct] | None:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return next(filter(None, map(_find_struct, get_args(annotation))), None)


def _literal_values(annotation: Any) -> list[str]:
    """Find the values that a `Literal` inside an annotation allows."""
    if annotation is None or isinstance(annotation, str):
        return []
    arguments = get_args(annotation)
    if get_origin(annotation) is not None and all(isinstance(each, str) for each in arguments):
        return list(arguments)
    return [value for each in arguments for value in _literal_values(each)]
