"""Statements of ground truth in the two forms that the server takes: items of one field, and JSON lines."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..transport.calls import Call, encode_json, json_call

PATH = "/api/ground-truth"
LINE_KEYS = {
    "path": "meta.path",
    "datum_id": "meta.datum_id",
    "data_hash": "input.hash",
    "inference_id": "id",
    "request_id": "request_id",
}
"""Keys of a line that select inferences, and the fields that they stand for."""

_OF_LINES = {"source", "task", "model", "review"}


def annotation_list(annotations: Any, place: str = "annotations") -> list[Any]:
    """Return annotations as the server takes them; a text is the label of the whole image.

    Raises:
        InputError: They are neither a list of objects nor a text.
    """
    if isinstance(annotations, str):
        return [{"label": annotations}]
    if isinstance(annotations, Mapping) or not isinstance(annotations, Iterable):
        raise InputError(
            f"expected {place} to be a list of objects or one label, got {type(annotations).__name__}"
        )
    rows = list(annotations)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(
                f'expected {place}[{number}] to be an object such as {{"label": "star"}}, got {row!r:.80}'
            )
    return rows


def statements_call(
    items: str | os.PathLike[str] | Iterable[Any], join: str | None, parameters: Mapping[str, Any]
) -> Call:
    """Make a request that states the ground truth of many inferences; see `Truth.bulk`.

    Raises:
        InputError: The items are of no form that the server takes.
    """
    rows = read_rows(items) if isinstance(items, str | os.PathLike) else _rows(items)
    if any("value" in row for row in rows) or not rows:
        statements = [_item(row, f"items[{number}]") for number, row in enumerate(rows)]
        body = {"join": join or "id", "items": statements, **parameters}
        return json_call("POST", PATH, body=body)
    if further := sorted(parameters.keys() - _OF_LINES):
        raise InputError(
            f"expected items with value and annotations beside {', '.join(further)}, got lines"
        )
    lines = [
        encode_json(_line(row, f"items[{number}]", join, parameters), f"items[{number}]")
        for number, row in enumerate(rows)
    ]
    return Call("POST", PATH, (b"\n".join(lines),), {"Content-Type": "application/x-ndjson"})


def read_rows(path: str | os.PathLike[str]) -> list[Mapping[str, Any]]:
    """Return the objects of a file of JSON lines, or of one JSON list.

    Raises:
        InputError: It cannot be read, or has something else.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {os.fspath(path)!r}: {error}") from error
    if text.lstrip().startswith("["):
        return _rows(_parsed(text, os.fspath(path)))
    numbered = enumerate(text.split("\n"), 1)
    lines = [(number, line) for number, line in numbered if line.strip()]
    return _rows(_parsed(line, f"{os.fspath(path)}, line {number}") for number, line in lines)


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected JSON in {place}: {error}") from error


def _rows(items: Iterable[Any]) -> list[Mapping[str, Any]]:
    if isinstance(items, Mapping) or not isinstance(items, Iterable):
        raise InputError(f"expected a list of objects or a path, got {type(items).__name__}")
    rows = list(items)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(f"expected items[{number}] to be an object, got {row!r:.80}")
    return rows


def _item(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    if "value" not in row or "annotations" not in row:
        raise InputError(f"expected {place} to have value and annotations, got {_names(row)}")
    return {**row, "annotations": _annotations(row, place)}


def _line(
    row: Mapping[str, Any], place: str, join: str | None, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    fields = {LINE_KEYS[key] for key in row.keys() & LINE_KEYS.keys()}
    if len(fields) != 1 or "annotations" not in row:
        raise InputError(
            f"expected {place} to have annotations and value, or one of {', '.join(LINE_KEYS)}, got {_names(row)}"
        )
    if join is not None and {join} != fields:
        raise InputError(f"expected {place} to be joined on {join}, got one of {fields.pop()}")
    return {**parameters, **row, "annotations": _annotations(row, place)}


def _annotations(row: Mapping[str, Any], place: str) -> list[Any] | None:
    stated = row["annotations"]
    return None if stated is None else annotation_list(stated, f"{place}.annotations")


def _names(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, row)) or "nothing"
