"""Files that people write: their encoding, and errors of msgspec completed for the person who wrote one."""

import codecs
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # begins as the next one does
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def read_text(path: Path) -> str:
    """Read a text in UTF-8, or in UTF-16 or UTF-32 by its byte order mark, as Windows writes them.

    Raises:
        ValueError: It is in another encoding.
        OSError: The file cannot be read.
    """
    data = path.read_bytes()
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "utf-8-sig")
    broken, source = "zeros, as UTF-16 without a byte order mark has", "UTF-16LE"
    if encoding != "utf-8-sig" or b"\0" not in data:
        try:
            return data.decode(encoding)
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            broken = (
                f"the byte {data[error.start]:02x} in line {line}, as Windows-1252 or Latin-1 has"
            )
            source = "WINDOWS-1252"
    raise ValueError(
        f"expected UTF-8, got {broken}: save {path.name} as UTF-8, such as by `iconv -f {source} -t UTF-8`"
    )


def build_types() -> None:
    """Let msgspec build what it knows of every struct of the loaded modules, before there are threads.

    Where two threads are the first to use a struct, as two loads or two requests may be, msgspec 0.22 ends the process by SIGSEGV.
    """
    waiting: list[type[msgspec.Struct]] = [msgspec.Struct]
    while waiting:
        for struct in waiting.pop().__subclasses__():
            waiting.append(struct)
            with suppress(
                TypeError
            ):  # a struct that is never read from JSON may have fields of any type
                msgspec.json.Decoder(struct)


def explain_validation_error(error: msgspec.ValidationError, schema: type[msgspec.Struct]) -> str:
    """Return what is wrong and where, with the allowed values or names.

    Args:
        error: Error of msgspec, such as "Invalid enum value 'x' - at `$.input.resize`".
        schema: Struct that the value did not fit.
    """
    text, _, location = str(error).partition(" - at ")
    path = location.strip("`").removeprefix("$").removeprefix(".")
    annotation: Any = schema
    for name in filter(None, re.split(r"\.|\[.*?\]", path)):
        annotation = _find_struct(annotation)
        annotation = get_type_hints(annotation).get(name) if annotation is not None else None
    text = text.replace("`", "'")
    if text.startswith("Invalid enum value"):
        text = f"expected one of {', '.join(_literal_values(annotation))}, got {text.removeprefix('Invalid enum value ')}"
    elif "unknown field" in text and (struct := _find_struct(annotation)) is not None:
        text = f"{text}; expected {', '.join(struct.__struct_fields__)}"
    return f"{path}: {text}" if path else text


def _find_struct(annotation: Any) -> type[msgspec.Struct] | None:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return next(filter(None, map(_find_struct, get_args(annotation))), None)


def _literal_values(annotation: Any) -> list[str]:
    """Return the values that a `Literal` inside an annotation allows."""
    if annotation is None or isinstance(annotation, str):
        return []
    arguments = get_args(annotation)
    if get_origin(annotation) is not None and all(
        isinstance(argument, str) for argument in arguments
    ):
        return list(arguments)
    return [value for argument in arguments for value in _literal_values(argument)]
