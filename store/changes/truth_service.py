"""Ground truth that clients state and read: parsed, given its task, journaled, and awaited until it is applied.

A body that cannot be read as a whole is a `ChangeError`. A single line or item that is invalid is a `Refusal`, beside
the others.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import sqlalchemy as sa

from quadriga.quoting import MAX_HINTS, near_names, quoted
from quadriga.store.blobs.interface import KEY_PATTERN
from quadriga.store.changes.annotations import (
    annotated_task,
    check_fit,
    describe_kinds,
    fits,
    parse_annotations,
)
from quadriga.store.changes.ground_truth import (
    REFUSED,
    JoinedSubjects,
    StoredStatement,
    Subject,
    current_revision,
    follow_repeated,
    join_text,
    joined_subjects,
    statements_about,
)
from quadriga.store.changes.journaling import ChangeJournal
from quadriga.store.changes.requests import (
    MAX_SOURCE_CHARACTERS,
    RequestBody,
    decode_change,
    short_text,
)
from quadriga.store.database.database import execute, execute_in
from quadriga.store.database.rows import storable_text
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.names import Catalog
from quadriga.store.records.errors import (
    JSON_ERRORS,
    ChangeError,
    NotFoundError,
    RevisionError,
    StoreError,
)
from quadriga.store.records.ids import LARGEST_ID, time_ms
from quadriga.store.records.records import (
    ANY_REVISION,
    REVIEWS,
    StoredInference,
    TruthStatement,
    json_text,
    live_name,
    timestamp_text,
)
from quadriga.store.records.scope import DEFAULT_OWNER, Scope

MAX_HISTORY = 100
"""Maximum number of statements in a history."""

MAX_REFUSED = 100
"""Maximum number of refused lines that a response lists."""

MAX_MATCHED = 20_000
"""Maximum number of stored inferences that the statements of one request may match."""

MAX_EXPANDED_BYTES = 64 << 20
"""Maximum size of the annotations that a filter repeats for each match."""

MAX_WARNINGS = 20
"""Maximum labels of one request about which it warns."""

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

_IDS_PER_FILTER = 1000
_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_ID = re.compile("[0-9]{1,19}", re.ASCII)
_PINNED = ("id", "request_id")
"""Joins whose inferences are all of one task and one model."""

_Pair = tuple[str, str]  # a join and its value
_Warnings = list[str] | msgspec.UnsetType

LabelsOf = Callable[[str, str], Collection[str]]
"""Returns the labels of a model, given its name and a team; none where they are not known."""

ResolveModel = Callable[[str], str]
"""Returns the name under which inferences of a model are stored, given any name of it; may raise a `StoreError`."""


class GroundTruth(msgspec.Struct, frozen=True):
    """Ground truth of one inference, or what it was."""

    task: str
    model: str
    """Name of the model that the statement is limited to; empty for every one."""
    owner: str
    annotations: Any
    """Annotations in the wire form; None in a history where the ground truth was removed."""
    source: str
    review: str
    """Review status: `needs_review`, `approved` or `rejected`; empty for none."""
    created_at: str
    revision: str


class StatedTruth(GroundTruth, frozen=True):
    """A statement in the history of an inference's ground truth."""

    join: str
    value: str


class GroundTruthHistory(msgspec.Struct, frozen=True):
    """Statements that are joined to one inference and apply to it, newest first; at most `MAX_HISTORY`."""

    history: list[StatedTruth]


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


class StatementResult(msgspec.Struct, frozen=True):
    """Result of statements of ground truth."""

    stated: int
    """Lines or items that were stated."""
    matched: int
    """Stored inferences whose ground truth is one of these now; the statements hold for later ones, too."""
    refused: list[Refusal] = []
    """Lines or items that were not stated; at most `MAX_REFUSED`."""
    refused_more: int = 0
    """Number of refused lines that are not listed."""
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Labels that the model does not have, which may be meant, or be a mistake; left out where there are none."""


class StatedInference(StoredInference, frozen=True):
    """One inference whose ground truth was stated."""

    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Labels that the model does not have; left out where there are none."""


class Statements:
    """The statements of a body by the number of their line or item, and why others of them cannot be stated.

    Args:
        unit: What is numbered: an item of a list, from 0, or a line, from 1.
        where: Filter that limits them to inferences that are stored now; None for no limit.
    """

    def __init__(self, unit: Literal["item", "line"], where: Any = None) -> None:
        self.unit = unit
        self.where = where
        self.stated: dict[int, TruthStatement] = {}
        self.reasons: dict[int, str] = {}

    def place(self, number: int) -> str:
        """Return the place for errors, as `items[3]` or `line 4`."""
        return f"line {number}" if self.unit == "line" else f"items[{number}]"

    def take(self, number: int, make: Callable[[], TruthStatement]) -> None:
        """Set the statement of a number, or refuse it for the reason that making it has."""
        try:
            self.stated[number] = make()
        except StoreError as error:
            self.refuse(number, str(error))

    def refuse(self, number: int, reason: str) -> None:
        """Refuse what was stated."""
        self.stated.pop(number, None)
        self.reasons[number] = reason

    def refusals(self) -> list[Refusal]:
        """Return what is refused, in order."""
        return [
            Refusal(reason, **{self.unit: number})
            for number, reason in sorted(self.reasons.items())
        ]


class GroundTruthService:
    """States and reads ground truth; safe to use from several threads.

    Methods raise a `ChangeError` if the body cannot be understood or the annotations do not fit the task, a
    `NotFoundError` if there is no such inference, a `RevisionError` if a condition is not met, a `NotReadyError` if the
    writer is behind, and a `JournalError` if the statements could not be journaled.

    Args:
        inferences: Reads the store.
        journal: Journals the statements.
        labels_of: Knows the labels of models.
    """

    def __init__(
        self, inferences: InferenceReader, journal: ChangeJournal, labels_of: LabelsOf
    ) -> None:
        self._inferences = inferences
        self._journal = journal
        self._labels_of = labels_of

    def get(self, inference_id: str) -> GroundTruth:
        """Return the ground truth of an inference; raise a `NotFoundError` if there is none."""
        inference = self._inferences.get_committed(inference_id)
        with self._inferences.snapshot() as connection:
            statements = statements_about(connection, int(inference.id), 1)
        if not statements or statements[0].annotations is None:
            raise NotFoundError(f"ground truth not found: none is stated for {inference_id}")
        return GroundTruth(**_fields(statements[0], inference.task))

    def history(self, inference_id: str) -> GroundTruthHistory:
        """Return the statements that apply to an inference, newest first."""
        inference = self._inferences.get_committed(inference_id)
        with self._inferences.snapshot() as connection:
            statements = statements_about(connection, int(inference.id), MAX_HISTORY)
        return GroundTruthHistory(
            [
                StatedTruth(
                    **_fields(statement, inference.task), join=statement.join, value=statement.value
                )
                for statement in statements
            ]
        )

    def put(
        self, inference_id: str, body: bytes, condition: Collection[int] | None = None
    ) -> tuple[StatedInference, str]:
        """Replace the ground truth of an inference, as of `parse_condition`; return the inference and the new revision."""
        inference = self._inferences.get_committed(inference_id)
        expected = "a list of annotations, or a JSON object with annotations, source and review"
        stated: Any = decode_change(body, GroundTruthBody | list[Any], expected)  # type: ignore[arg-type]  # a union is one
        if isinstance(stated, list):
            stated = GroundTruthBody(stated)
        source = short_text("source", stated.source, MAX_SOURCE_CHARACTERS)
        review = parse_review(stated.review)
        annotations = parse_annotations(stated.annotations)
        check_fit(inference.task, annotations)
        changed, revision = self._state(
            inference, annotations, condition, source=source, review=review
        )
        of_model = TruthStatement("id", "", annotations, model=live_name(inference.model.name))
        warnings = self._unknown_labels([of_model], {})
        return StatedInference(**msgspec.structs.asdict(changed), warnings=warnings), revision

    def delete(
        self, inference_id: str, condition: Collection[int] | None = None
    ) -> StoredInference:
        """Remove the ground truth of an inference, and return it."""
        inference = self._inferences.get_committed(inference_id)
        return self._state(inference, None, condition)[0]

    def _state(
        self,
        inference: StoredInference,
        annotations: list[dict[str, Any]] | None,
        condition: Collection[int] | None,
        **fields: str,
    ) -> tuple[StoredInference, str]:
        seq = int(inference.id)
        with self._inferences.snapshot() as connection:
            current = current_revision(connection, seq)
        expected = None
        if condition is not None:
            expected = ANY_REVISION if current and ANY_REVISION in condition else current
            if expected not in condition:
                raise _outdated(current)
        owner = self._inferences.scope.owner
        statement = TruthStatement(
            "id",
            inference.id,
            annotations,
            **fields,
            task=inference.task,
            owner=owner,
            expected=expected,
        )
        (id_,) = self._journal.apply([statement], floor=current)
        with self._inferences.snapshot() as connection:
            query = "SELECT join_on FROM truth WHERE id = ?"
            if execute(connection, query, (id_,)).scalar() == REFUSED:
                raise _outdated(current_revision(connection, seq))
        return self._inferences.get(inference.id), str(id_)

    def add_statements(self, body: bytes) -> StatementResult:
        """Give ground truth to many inferences, stored already or later."""
        scope = self._inferences.scope
        with self._inferences.snapshot() as connection:
            stored_tasks = {model.task for model in Catalog(connection, scope).models}
        resolve_model = self._inferences.names.resolve
        parsed = parse_statements(body, stored_tasks, resolve_model, owner=scope.owner)
        statements, warnings = self._scoped(parsed)
        refused = parsed.refusals()
        if not statements:
            more = f"; {len(refused) - 1} more cannot be stated either" if refused[1:] else ""
            raise ChangeError(f"{refused[0].reason}{more}")
        change_ids = self._journal.apply(statements)
        with self._inferences.snapshot() as connection:
            count = "SELECT count(*) FROM ground_truth WHERE truth_id IN ({})"
            matched = sum(int(count_) for (count_,) in execute_in(connection, count, change_ids))
        listed = refused[:MAX_REFUSED]
        more_refused = len(refused) - len(listed)
        return StatementResult(
            len(parsed.stated), matched, listed, refused_more=more_refused, warnings=warnings
        )

    def _scoped(self, parsed: Statements) -> tuple[list[TruthStatement], _Warnings]:
        """Give each statement its task, as of the inferences that are acknowledged now; return warnings, too.

        Each gets the owner of the scope. If that is of some models, and no filter limits the statements to stored
        inferences, each has to be of one model.
        """
        scope = self._inferences.scope
        if not parsed.stated:
            return [], msgspec.UNSET
        if parsed.where is not None:
            self._inferences.check_where(parsed.where)
        self._inferences.wait_for_journal()
        with self._inferences.snapshot() as connection:
            followed = follow_repeated(connection, parsed.stated.values())
            joined = joined_subjects(connection, {*map(_pair, followed)}, scope, MAX_MATCHED)
            earlier = _stated_tasks(connection, followed, scope)
        tasks = {*filter(None, map(_own_task, followed))}
        common_task = tasks.pop() if len(tasks) == 1 else None

        def scoped(statement: TruthStatement, place: str) -> TruthStatement:
            pair = _pair(statement)
            subjects, model = joined[pair], statement.model
            task = _task(statement, place, subjects, earlier.get(pair, set()), common=common_task)
            if scope.models and not model and parsed.where is None:
                if statement.join not in _PINNED or not subjects:
                    raise ChangeError(
                        f"{place}: model is required, as the key is for some models alone"
                    )
                model = subjects[0].model
            return msgspec.structs.replace(statement, task=task, model=model, owner=scope.owner)

        for number, statement in zip([*parsed.stated], followed, strict=True):
            parsed.take(number, partial(scoped, statement, parsed.place(number)))
        if parsed.where is None:
            statements = [*parsed.stated.values()]
        else:
            statements = self._stated_by_id(parsed, joined)
        return statements, self._unknown_labels(statements, joined)

    def _stated_by_id(self, parsed: Statements, joined: JoinedSubjects) -> list[TruthStatement]:
        """Return statements by the ids of the stored inferences that the filter matches, which are joined by them then."""
        targets = {
            number: [
                subject
                for subject in joined[_pair(statement)]
                if subject.is_in_scope(statement.task or "", statement.model)
                and fits(subject.task, statement.annotations or ())
            ]
            for number, statement in parsed.stated.items()
        }
        seqs = {subject.seq for subjects in targets.values() for subject in subjects}
        matching = self._matching(parsed.where, seqs)
        statements = []
        size_bytes = 0
        for number, statement in [*parsed.stated.items()]:
            subjects = [subject for subject in targets[number] if subject.seq in matching]
            if not subjects:
                reason = f"no stored inference of {statement.task or 'any task'} with this value matches where"
                parsed.refuse(number, f"{parsed.place(number)}: {reason}")
            size_bytes += len(subjects) * len(json_text(statement.annotations))
            if size_bytes > MAX_EXPANDED_BYTES:
                raise ChangeError(
                    f"expected annotations of at most {MAX_EXPANDED_BYTES} bytes for all inferences that match where, "
                    "got more: state them in several requests"
                )
            for subject in subjects:
                joined["id", str(subject.seq)] = [subject]
                statements.append(
                    msgspec.structs.replace(statement, join="id", value=str(subject.seq))
                )
        return statements

    def _matching(self, where: Any, seqs: Collection[int]) -> set[int]:
        """Return those of some inferences that a filter matches."""
        ids = [str(seq) for seq in sorted(seqs)]
        matching: set[int] = set()
        for start in range(0, len(ids), _IDS_PER_FILTER):
            of_ids = {"id": {"in": ids[start : start + _IDS_PER_FILTER]}}
            tree = {"and": [where, of_ids]} if where else of_ids
            matching.update(seq for page in self._inferences.matching_ids(tree) for seq in page)
        return matching

    def _unknown_labels(
        self, statements: Sequence[TruthStatement], joined: JoinedSubjects
    ) -> _Warnings:
        """Return a warning for each label that none of the models has which the statements are about now.

        Models whose labels are not known warn of nothing, nor do statements that are joined to nothing yet.
        """
        known: dict[str, Collection[str]] = {}
        counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for statement in statements:
            names = {
                live_name(subject.model)
                for subject in joined.get(_pair(statement), ())
                if subject.is_in_scope(statement.task or "", statement.model)
            }
            models = (statement.model,) if statement.model else tuple(sorted(names))
            for model in models:
                if model not in known:
                    known[model] = frozenset(self._labels_of(model, self._inferences.scope.team))
            if models and all(known[model] for model in models):
                counts.update(
                    (label, models)
                    for label in {item.get("label") for item in statement.annotations or ()}
                    if label is not None and not any(label in known[model] for model in models)
                )
        texts = []
        for number, ((label, models), count) in enumerate([*counts.items()][:MAX_WARNINGS]):
            candidates = [label for model in models for label in sorted(known[model])]
            near = near_names(label, candidates, 2) if number < MAX_HINTS else ()
            times = f" ({count} statements)" if count > 1 else ""
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            names_text = " or ".join(quoted(model, 80) for model in models[:3])
            texts.append(f"{quoted(label, 80)} is not a label of {names_text}{times}{hint}")
        if more := len(counts) - len(texts):
            texts.append(f"{more} more labels are of no model either")
        return texts or msgspec.UNSET


def parse_statements(
    body: bytes,
    stored_tasks: Collection[str] = (),
    resolve_model: ResolveModel = str,
    *,
    owner: str = DEFAULT_OWNER,
) -> Statements:
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
    fields = _FieldParser(stored_tasks, resolve_model)
    if not isinstance(document, dict) or document.keys() & _LINE_KEYS.keys():
        lines = Statements("line")
        count = 0
        for count, (number, node) in enumerate(_objects(body), 1):
            _check_number(count)
            lines.take(number, partial(_line, node, f"line {number}", fields))
        _check_number(count)
        return lines
    expected = "a JSON object with join, items and source, or JSON lines"
    stated = decode_change(body, StatementsBody, expected)
    of_all = fields.parse(msgspec.structs.asdict(stated), "")
    _check_join(stated.join)
    if stated.owner not in (DEFAULT_OWNER, owner):  # clients leave the first as it is
        raise ChangeError(f"expected owner to be {owner!r}, got {quoted(stated.owner, 80)}")
    _check_number(len(stated.items))
    items = Statements("item", stated.where)
    for index, item in enumerate(stated.items):
        items.take(index, partial(_item, item, items.place(index), stated.join, of_all))
    return items


class _FieldParser:
    """Parser of the source, task, model and review of a body or a line; looks up each model once."""

    def __init__(self, stored_tasks: Collection[str], resolve_model: ResolveModel) -> None:
        self._stored_tasks = stored_tasks
        self._resolve_model = resolve_model
        self._models: dict[Any, str | StoreError] = {None: ""}

    def parse(self, node: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return fields of a `TruthStatement`."""
        task = node.get("task")
        return {
            "source": short_text(f"{where}source", node.get("source", ""), MAX_SOURCE_CHARACTERS),
            "task": None if task is None else parse_task(task, self._stored_tasks, f"{where}task"),
            "model": self._model(node.get("model"), f"{where}model"),
            "review": parse_review(node.get("review"), f"{where}review"),
        }

    def _model(self, value: Any, name: str) -> str:
        if value is not None and (not isinstance(value, str) or not value):
            raise ChangeError(f"expected {name} to be the name of a model, got {quoted(value, 80)}")
        if value not in self._models:
            if len(self._models) > MAX_MODELS:
                raise ChangeError(f"expected {name} to be one of at most {MAX_MODELS} in a request")
            try:
                self._models[value] = storable_text(self._resolve_model(str(value)))
            except StoreError as error:
                self._models[value] = error
        model = self._models[value]
        if isinstance(model, StoreError):
            raise model
        return model


def _item(item: Any, place: str, join: str, fields: Mapping[str, Any]) -> TruthStatement:
    if not isinstance(item, dict) or item.keys() != _ITEM_KEYS:
        raise ChangeError(
            f"{place}: expected an object with value and annotations, got {quoted(item, 80)}"
        )
    return _statement(join, item["value"], item["annotations"], fields, place=place)


def _line(node: dict[str, Any], place: str, fields: _FieldParser) -> TruthStatement:
    keys = node.keys() & _LINE_KEYS.keys()
    if len(keys) != 1 or node.keys() - keys - _LINE_VALUES:
        raise ChangeError(
            f"{place}: expected an object with annotations, source, task, model, review and one of "
            f"{', '.join(_LINE_KEYS)}, got {quoted(msgspec.json.encode(node), 80)}"
        )
    if "annotations" not in node:
        raise ChangeError(f"{place}: annotations is required")
    (key,) = keys
    parsed = fields.parse(node, f"{place}: ")
    return _statement(_LINE_KEYS[key], node[key], node["annotations"], parsed, place=place)


def _statement(
    join: str, value: Any, annotations: Any, fields: Mapping[str, Any], *, place: str
) -> TruthStatement:
    if annotations is not None:
        annotations = parse_annotations(annotations, f"{place}.annotations")
    value = _join_value(join, value, place)
    size_bytes = sum(len(text.encode(errors="replace")) for text in (join, value, fields["model"]))
    if size_bytes > MAX_JOIN_BYTES:
        raise ChangeError(
            f"{place}: expected a value of at most {MAX_JOIN_BYTES} bytes, got {size_bytes}"
        )
    return TruthStatement(join, value, annotations, **fields)


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


def _pair(statement: TruthStatement) -> tuple[str, str]:
    return statement.join, statement.value


def _stated_tasks(
    connection: sa.Connection, statements: Collection[TruthStatement], scope: Scope
) -> dict[tuple[str, str], set[str]]:
    """Return the tasks of earlier statements with the join and the value of those that remove ground truth.

    Within a scope of a team, the statements are its own.
    """
    values: dict[str, set[str]] = defaultdict(set)
    for statement in statements:
        if statement.annotations is None:
            values[statement.join].add(statement.value)
    tasks: dict[tuple[str, str], set[str]] = defaultdict(set)
    of_team, owner = (" AND owner = ?", (scope.owner,)) if scope.team else ("", ())
    query = f"SELECT DISTINCT value, task FROM truth WHERE join_on = ?{of_team} AND value IN ({{}})"
    for join, of_join in values.items():
        for value, task in execute_in(connection, query, of_join, (join, *owner)):
            tasks[join, value].add(task)
    return tasks


def _own_task(statement: TruthStatement) -> str | None:
    return statement.task or annotated_task(statement.annotations or ())


def _task(
    statement: TruthStatement,
    place: str,
    subjects: Sequence[Subject],
    earlier: Collection[str],
    *,
    common: str | None,
) -> str:
    """Return the task of a statement: that of the inference or the request that it names, else of its annotations.

    Without annotations it is that of the other statements, if these are of one, else that of all inferences that it is
    joined to.

    Raises:
        ChangeError: The annotations do not fit, or no task follows.
    """
    annotations, where = statement.annotations or (), f"{place}.annotations"
    is_pinned = statement.join in _PINNED
    if is_pinned and subjects:
        task, model = subjects[0].task, subjects[0].model
        if statement.task not in (None, task):
            raise ChangeError(
                f"{place}: expected the task of the inference, {task}, got {statement.task}"
            )
        if statement.model not in ("", model):
            raise ChangeError(
                f"{place}: expected the model of the inference, {quoted(model, 80)}, got {quoted(statement.model, 80)}"
            )
        check_fit(task, annotations, where)
        return task
    if statement.task is not None:
        check_fit(statement.task, annotations, where)
    if (own_task := _own_task(statement)) is not None:
        return own_task
    if annotations:
        raise ChangeError(
            f"{where}: expected annotations of one task, got {describe_kinds(annotations)}"
        )
    if common is not None or is_pinned:  # whatever arrives under this id is of one task
        return common or ""
    in_scope = {subject.task for subject in subjects if statement.model in ("", subject.model)}
    tasks = in_scope or earlier
    if len(tasks) == 1:
        return next(iter(tasks))
    joined_to = f"inferences of {' and '.join(sorted(tasks))}" if tasks else "no inference"
    raise ChangeError(
        f"{place}: task is required, because there are no annotations and it is joined to {joined_to}"
    )


def parse_condition(if_match: str | None, if_none_match: str | None) -> set[int] | None:
    """Parse the headers `If-Match` and `If-None-Match`.

    Returns:
        Revisions of which one has to be current for a change: 0 for no ground truth yet, `ANY_REVISION` for any. None
        without either header.

    Raises:
        ChangeError: They are malformed, or both are sent.

    Source: RFC 9110, 13.1.1 and 13.1.2.
    """
    if if_none_match is not None:
        if if_match is not None or if_none_match.strip() != "*":
            raise ChangeError(
                f"expected If-None-Match to be * alone, got {quoted(if_none_match, 80)}"
            )
        return {0}
    if if_match is None:
        return None
    if if_match.strip() == "*":
        return {ANY_REVISION}
    tags = [_TAG.fullmatch(tag.strip()) for tag in if_match.split(",")]
    if not all(tags):
        raise ChangeError(
            f"expected If-Match to be a revision in quotes, got {quoted(if_match, 80)}"
        )
    # A weak tag never matches, nor does one that no revision has.
    return {int(tag[2]) for tag in tags if tag and not tag[1] and _ID.fullmatch(tag[2])}


def _outdated(current: int) -> RevisionError:
    actual = f"{current}" if current else "none"
    return RevisionError(
        f"the ground truth was changed meanwhile: its revision is {actual} now; read it, and change it again"
    )


def _fields(statement: StoredStatement, task: str) -> dict[str, Any]:
    """Return the fields of `GroundTruth`."""
    annotations = statement.annotations
    return {
        "task": statement.task or task,
        "model": statement.model,
        "owner": statement.owner,
        "annotations": None if annotations is None else msgspec.Raw(annotations.encode()),
        "source": statement.source,
        "review": statement.review,
        "created_at": timestamp_text(time_ms(statement.id)),
        "revision": str(statement.id),
    }
