"""Parsing of the request bodies that state ground truth.

A body that cannot be read as a whole is a `ChangeError`. A single line or item that is invalid is a `Refusal`, beside
the others.
"""

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec

from quadriga.quoting import quoted
from quadriga.store.blobs.interface import KEY_PATTERN
from quadriga.store.changes.annotations import parse_annotations
from quadriga.store.changes.ground_truth import join_text
from quadriga.store.changes.requests import (
    MAX_SOURCE_CHARACTERS,
    RequestBody,
    decode_change,
    short_text,
)
from quadriga.store.database.rows import storable_text
from quadriga.store.records.errors import JSON_ERRORS, ChangeError, StoreError
from quadriga.store.records.ids import LARGEST_ID
from quadriga.store.records.records import REVIEWS, TruthStatement
from quadriga.store.records.truth_scope import DEFAULT_OWNER

MAX_STATEMENTS = 10_000  # per request
MAX_LISTS = 1_000_000  # and objects, per request: in Python they take far more memory than in JSON
MAX_JOIN_BYTES = 2000  # of a join with its value and model in UTF-8, limited by PostgreSQL's index
MAX_MODELS = 100  # that the lines of a request name: each is looked up
_LINE_KEYS = {
    "path": "meta.path",
    "datum_id": "meta.datum_id",
    "data_hash": "input.hash",
    "inference_id": "id",
    "request_id": "request_id",
}
"""Keys that identify the datum of a line of `annotations.jsonl`, and their joins."""

_LINE_VALUES = {"annotations", "source", "task", "model", "review", "split"}
"""Further keys of a line; `split` is of datasets, and changes nothing."""

_ITEM_KEYS = {"value", "annotations"}
_HASH = re.compile(KEY_PATTERN, re.ASCII)
_OBJECTS = msgspec.Meta(extra_json_schema={"items": {"type": "object"}})  # validated later
_LIST = {"type": "array", "items": {"type": "object"}}
_ITEMS = msgspec.Meta(
    extra_json_schema={
        "items": {
            "type": "object",
            "properties": {"value": {}, "annotations": {"anyOf": [_LIST, {"type": "null"}]}},
            "required": ["value", "annotations"],
        }
    }
)

ResolveModel = Callable[[str], str]
"""Returns the name under which inferences of a model are stored, given any name of it; may raise a `StoreError`."""


class GroundTruthBody(RequestBody, frozen=True):
    """Ground truth of one inference."""

    annotations: Annotated[list[Any], _OBJECTS]
    source: str = ""
    review: str | None = None


class StatementsBody(RequestBody, frozen=True):
    """Ground truth of many inferences."""

    join: str
    items: Annotated[list[Any], _ITEMS]
    source: str = ""
    task: str | None = None
    model: str | None = None
    owner: str = DEFAULT_OWNER
    review: str | None = None
    where: Any = None


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line or an item that was not stated."""

    reason: str
    item: int | msgspec.UnsetType = msgspec.UNSET
    """Position in `items`, from 0."""
    line: int | msgspec.UnsetType = msgspec.UNSET
    """Number of the line, from 1."""

    @property
    def position(self) -> int:
        """The number of the line, or the position of the item."""
        return int(self.item if self.line is msgspec.UNSET else self.line)  # type: ignore[arg-type]  # one is set


class StatedAnnotations(NamedTuple):
    """What is stated about one inference."""

    annotations: list[dict[str, Any]]
    source: str
    review: str


class Line(NamedTuple):
    """A line or an item that can be stated; without a task in the statement it is not known yet."""

    statement: TruthStatement
    place: str
    """The place for errors, as `items[3]` or `line 4`."""
    refuse: Callable[[str], Refusal]
    """Makes its refusal for a reason."""


class ParsedStatements(NamedTuple):
    """The statements of a body, in order."""

    lines: list[Line]
    refused: list[Refusal]
    where: Any = None
    """Filter that limits them to inferences that are stored now; None for no limit."""


def parse_ground_truth(body: bytes) -> StatedAnnotations:
    """Parse what is stated about one inference: `{"annotations": […], "source", "review"}`, or only the list."""
    expected = "a list of annotations, or a JSON object with annotations, source and review"
    statement: Any = decode_change(body, GroundTruthBody | list[Any], expected)  # type: ignore[arg-type]  # a union is one
    if isinstance(statement, list):
        statement = GroundTruthBody(statement)
    source = short_text("source", statement.source, MAX_SOURCE_CHARACTERS)
    review = parse_review(statement.review)
    return StatedAnnotations(parse_annotations(statement.annotations), source, review)


def parse_review(value: Any, where: str = "review") -> str:
    """Return a review status, empty for None.

    Raises:
        ChangeError: It is none; the message begins with `where`.
    """
    if value is None:
        return ""
    if value not in REVIEWS:
        raise ChangeError(
            f"expected {where} to be one of {', '.join(REVIEWS)}, got {quoted(value, 80)}"
        )
    return str(value)


def parse_statements(
    body: bytes,
    stored_tasks: Collection[str] = (),
    resolve_model: ResolveModel = str,
    *,
    owner: str = DEFAULT_OWNER,
) -> ParsedStatements:
    """Parse many statements: `{"join", "source", "items": [{"value", "annotations"}]}`, or JSON lines.

    A line is one of Chariot's `annotations.jsonl`: `{"path": …, "annotations": […]}`, or with `datum_id`,
    `data_hash`, `inference_id` or `request_id` for the path. `owner` is the one that may be named.

    Raises:
        ChangeError: The body is neither, it is empty or too long, or what it says of all statements is invalid.
    """
    lists = body.count(b"[") + body.count(b"{")
    if lists > MAX_LISTS:
        raise ChangeError(
            f"expected at most {MAX_LISTS} lists and objects in a request, got about {lists}: send fewer statements in each"
        )
    document = None
    with suppress(*JSON_ERRORS):
        document = msgspec.json.decode(body)
    reading = _Reading(stored_tasks, resolve_model, owner)
    if not isinstance(document, dict) or document.keys() & _LINE_KEYS.keys():
        return reading.read_lines(body)
    expected = "a JSON object with join, items and source, or JSON lines"
    return reading.read_items(decode_change(body, StatementsBody, expected))


class _Reading:
    """The reading of one body: statements and refusals so far."""

    def __init__(
        self, stored_tasks: Collection[str], resolve_model: ResolveModel, owner: str
    ) -> None:
        self._owner = owner
        self._stored_tasks = stored_tasks
        self._resolve_model = resolve_model
        self._models: dict[str, str | StoreError] = {}
        self._lines: list[Line] = []
        self._refused: list[Refusal] = []

    def read_items(self, body: StatementsBody) -> ParsedStatements:
        source = short_text("source", body.source, MAX_SOURCE_CHARACTERS)
        task, model = self._task(body.task, "task"), self._model(body.model, "model")
        _check_join(body.join)
        review = parse_review(body.review)
        if body.owner not in (DEFAULT_OWNER, self._owner):  # clients leave the first as it is
            raise ChangeError(f"expected owner to be {self._owner!r}, got {quoted(body.owner, 80)}")
        _check_number(len(body.items))
        for index, item in enumerate(body.items):
            place, refuse = f"items[{index}]", partial(Refusal, item=index)
            try:
                if not isinstance(item, dict) or item.keys() != _ITEM_KEYS:
                    raise ChangeError(
                        f"{place}: expected an object with value and annotations, got {quoted(item, 80)}"
                    )
                statement = _statement(body.join, item["value"], item["annotations"], place=place)
                scoped = msgspec.structs.replace(
                    statement, source=source, task=task, model=model, review=review
                )
                self._lines.append(Line(_checked(scoped, place), place, refuse))
            except StoreError as error:
                self._refused.append(refuse(str(error)))
        return ParsedStatements(self._lines, self._refused, body.where)

    def read_lines(self, body: bytes) -> ParsedStatements:
        for number, node in _objects(body):
            place, refuse = f"line {number}", partial(Refusal, line=number)
            try:
                self._lines.append(Line(self._line(node, place), place, refuse))
            except StoreError as error:
                self._refused.append(refuse(str(error)))
            _check_number(len(self._lines) + len(self._refused))
        _check_number(len(self._lines) + len(self._refused))
        return ParsedStatements(self._lines, self._refused)

    def _line(self, node: dict[str, Any], place: str) -> TruthStatement:
        keys = node.keys() & _LINE_KEYS.keys()
        if len(keys) != 1 or node.keys() - keys - _LINE_VALUES:
            raise ChangeError(
                f"{place}: expected an object with annotations, source, task, model, review and one of "
                f"{', '.join(_LINE_KEYS)}, got {quoted(msgspec.json.encode(node), 80)}"
            )
        (key,) = keys
        source = short_text(f"{place}: source", node.get("source", ""), MAX_SOURCE_CHARACTERS)
        if "annotations" not in node:
            raise ChangeError(f"{place}: annotations is required")
        task = self._task(node.get("task"), f"{place}: task")
        model = self._model(node.get("model"), f"{place}: model")
        join = _LINE_KEYS[key]
        statement = _statement(join, node[key], node["annotations"], place=place)
        review = parse_review(node.get("review"), f"{place}: review")
        scoped = msgspec.structs.replace(
            statement, source=source, task=task, model=model, review=review
        )
        return _checked(scoped, place)

    def _task(self, value: Any, name: str) -> str | None:
        return None if value is None else parse_task(value, self._stored_tasks, name)

    def _model(self, value: Any, name: str) -> str:
        if value is None:
            return ""
        if not isinstance(value, str) or not value:
            raise ChangeError(f"expected {name} to be the name of a model, got {quoted(value, 80)}")
        if value not in self._models:
            if len(self._models) >= MAX_MODELS:
                raise ChangeError(f"expected {name} to be one of at most {MAX_MODELS} in a request")
            try:
                self._models[value] = storable_text(self._resolve_model(value))
            except StoreError as error:
                self._models[value] = error
        model = self._models[value]
        if isinstance(model, StoreError):
            raise model
        return model


def parse_task(value: Any, stored_tasks: Collection[str], where: str = "task") -> str:
    """Return the full name of a task, in any spelling; a task of an extension if inferences of it are stored.

    Raises:
        ChangeError: There is no such task; the message begins with `where`.
    """
    from quadriga.tasks.specification import SHORT_NAMES, full_name  # noqa: PLC0415 - loads OpenCV

    if isinstance(value, str):
        name = full_name(value)
        if name in SHORT_NAMES.values():
            return name
        if value in stored_tasks or name in stored_tasks:
            return value if value in stored_tasks else name
    known = ", ".join(sorted({*SHORT_NAMES.values(), *stored_tasks}))
    raise ChangeError(f"expected {where} to be one of {known}, got {quoted(value, 80)}")


def _objects(body: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of JSON lines with their numbers; a line that is none means that the body is something else."""
    for number, line in enumerate(body.splitlines(), 1):
        if line.strip():
            try:
                node = msgspec.json.decode(line)
            except JSON_ERRORS as error:
                raise ChangeError(f"line {number}: expected a JSON object, got: {error}") from error
            if not isinstance(node, dict):
                raise ChangeError(
                    f"line {number}: expected an object with annotations, source and one of "
                    f"{', '.join(_LINE_KEYS)}, got {quoted(line, 80)}"
                )
            yield number, node


def _check_number(count: int) -> None:
    if not 0 < count <= MAX_STATEMENTS:
        raise ChangeError(f"expected 1 to {MAX_STATEMENTS} statements, got {count} or more")


def _check_join(join: str) -> None:
    is_metadata = join.startswith("meta.") and len(join) > 5 and "\0" not in join
    if not is_metadata and join not in ("id", "request_id", "input.hash"):
        raise ChangeError(
            f"expected join to be id, request_id, input.hash or meta.<path>, got {quoted(join, 80)}"
        )


def _statement(join: str, value: Any, annotations: Any, *, place: str) -> TruthStatement:
    if annotations is not None:
        annotations = parse_annotations(annotations, f"{place}.annotations")
    return TruthStatement(join, _join_value(join, value, place), annotations)


def _checked(statement: TruthStatement, place: str) -> TruthStatement:
    texts = (statement.join, statement.value, statement.model)
    size_bytes = sum(len(text.encode(errors="replace")) for text in texts)
    if size_bytes > MAX_JOIN_BYTES:
        raise ChangeError(
            f"{place}: expected a value of at most {MAX_JOIN_BYTES} bytes, got {size_bytes}"
        )
    return statement


def _join_value(join: str, value: Any, place: str) -> str:
    is_text = isinstance(value, str) and value != ""
    if join.startswith("meta."):
        is_valid, expected = is_text or isinstance(value, int | float), "a text, number or boolean"
    elif join == "id":
        is_valid = is_text and value.isascii() and value.isdigit() and len(value) < 20
        expected = "an id as a string of digits"
    elif join == "input.hash":
        is_valid = is_text and _HASH.fullmatch(value) is not None
        expected = "'blake3:' and 64 hex digits"
    else:
        is_valid, expected = is_text, "a request id"
    if not is_valid:
        raise ChangeError(f"{place}: expected {expected}, got {quoted(value, 80)}")
    return str(min(int(value), LARGEST_ID)) if join == "id" else storable_text(join_text(value))
