"""The task of each statement of a bulk request, from what it says, what it annotates, and what it is joined to now."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from quadriga.quoting import MAX_HINTS, near_names, quoted
from quadriga.store.changes.ground_truth import (
    Subject,
    candidate_ids,
    join_values,
    read_subjects,
)
from quadriga.store.changes.truth_requests import Line, ParsedStatements, Refusal
from quadriga.store.database.database import execute_in
from quadriga.store.query.sql.catalog import Catalog
from quadriga.store.records.errors import ChangeError
from quadriga.store.records.records import TruthStatement, json_text, live_name
from quadriga.store.records.scope import Scope
from quadriga.store.records.truth_scope import annotated_task, check_fit, describe_kinds, fits

MAX_MATCHED = 20_000
"""Maximum number of stored inferences that the statements of one request may match."""

MAX_EXPANDED_BYTES = 64 << 20
"""Maximum size of the annotations that a filter repeats for each match."""

_PINNED = ("id", "request_id")
"""Joins whose inferences are all of one task and one model."""

JoinedSubjects = dict[tuple[str, str], list[Subject]]
"""The inferences that are stored now, by the join and the value that select them."""

LabelsOf = Callable[[str, str], Collection[str]]
"""Returns the labels of a model, given its name and a team; none where they are not known."""

MAX_WARNINGS = 20
"""Maximum labels of one request about which it warns."""

FindMatches = Callable[[Collection[int]], set[int]]
"""Returns those of some ids that a filter matches."""


class ScopedStatements(NamedTuple):
    """Statements that can be journaled, and the lines that cannot."""

    statements: list[TruthStatement]
    refused: list[Refusal]
    stated: int
    """Number of lines that became statements."""


def joined_subjects(
    connection: sa.Connection, lines: Sequence[Line], scope: Scope
) -> JoinedSubjects:
    """Return the stored inferences within a scope that lines are joined to.

    Raises:
        ChangeError: There are more than `MAX_MATCHED`.
    """
    pairs = {(line.statement.join, line.statement.value) for line in lines}
    admitted = Catalog(connection, scope, with_replays=True).admitted_ids
    ids = candidate_ids(connection, pairs, MAX_MATCHED, admitted)
    if len(ids) > MAX_MATCHED:
        raise ChangeError(
            f"expected statements that match at most {MAX_MATCHED} inferences, got more"
        )
    joins = {join for join, _ in pairs}
    joined: JoinedSubjects = defaultdict(list)
    for subject in read_subjects(connection, ids):
        if not scope.admits(subject.model, subject.team):
            continue
        for pair in join_values(subject, joins):
            if pair in pairs:
                joined[pair].append(subject)
    return joined


def stated_tasks(
    connection: sa.Connection, lines: Sequence[Line], scope: Scope
) -> dict[tuple[str, str], set[str]]:
    """Return the tasks of earlier statements with the join and the value of lines that remove ground truth.

    Within a scope of a team, the statements are its own.
    """
    values: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        if line.statement.annotations is None:
            values[line.statement.join].add(line.statement.value)
    tasks: dict[tuple[str, str], set[str]] = defaultdict(set)
    of_team, owner = (" AND owner = ?", (scope.owner,)) if scope.team else ("", ())
    query = f"SELECT DISTINCT value, task FROM truth WHERE join_on = ?{of_team} AND value IN ({{}})"
    for join, of_join in values.items():
        for value, task in execute_in(connection, query, of_join, (join, *owner)):
            tasks[join, value].add(task)
    return tasks


def scope_statements(
    parsed: ParsedStatements,
    joined: JoinedSubjects,
    earlier: dict[tuple[str, str], set[str]],
    find_matches: FindMatches | None,
    *,
    scope: Scope,
) -> ScopedStatements:
    """Give each line its task, and refuse those that fit no task; with a filter, state them by the ids of its matches.

    Each statement gets the owner of the scope. If that is of some models, and no filter limits the statements to stored
    inferences, each has to be of one model.

    A line without a task takes it from the inference or the request that it names, else from its annotations. One
    without annotations takes that of the other lines, if that is one, else that of all inferences that it is joined to.
    """
    refused = list(parsed.refused)
    lines: list[Line] = []
    tasks = {task for line in parsed.lines if (task := _own_task(line.statement)) is not None}
    common_task = tasks.pop() if len(tasks) == 1 else None
    for line in parsed.lines:
        pair = line.statement.join, line.statement.value
        try:
            task = _task(line, joined.get(pair, []), earlier.get(pair, set()), common_task)
            model = line.statement.model
            if scope.models and not model and find_matches is None:
                model = _pinned_model(line, joined.get(pair, []))
        except ChangeError as error:
            refused.append(line.refuse(str(error)))
        else:
            scoped = msgspec.structs.replace(
                line.statement, task=task, model=model, owner=scope.owner
            )
            lines.append(line._replace(statement=scoped))
    if find_matches is None:
        statements = [line.statement for line in lines]
        return ScopedStatements(statements, _sorted(refused), len(lines))
    return _stated_by_id(lines, joined, refused, find_matches)


def unknown_labels(
    statements: Sequence[TruthStatement], joined: JoinedSubjects, labels_of: LabelsOf, team: str
) -> list[str]:
    """Return a warning for each label that none of the models has which the statements are about now.

    Models whose labels are not known warn of nothing, nor do statements that are joined to nothing yet.
    """
    by_seq = {str(subject.seq): subject for subjects in joined.values() for subject in subjects}
    known: dict[str, frozenset[str]] = {}
    counts: dict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
    for statement in statements:
        subjects = joined.get((statement.join, statement.value), [])
        if not subjects and statement.join == "id":  # stated by the id of what a filter matched
            subjects = [by_seq[statement.value]] if statement.value in by_seq else []
        names = {live_name(subject.model) for subject in _in_scope(statement, subjects)}
        models = (statement.model,) if statement.model else tuple(sorted(names))
        for model in models:
            if model not in known:
                known[model] = frozenset(labels_of(model, team))
        if not models or not all(known[model] for model in models):
            continue
        for label in {annotation.get("label") for annotation in statement.annotations or ()}:
            if label is not None and not any(label in known[model] for model in models):
                counts[label, models] += 1
    listed = list(counts.items())[:MAX_WARNINGS]
    texts = [
        _unknown_label_text(
            label,
            models,
            count,
            known_labels=_labels_of(models, known) if number < MAX_HINTS else (),
        )
        for number, ((label, models), count) in enumerate(listed)
    ]
    more = len(counts) - len(listed)
    return [*texts, f"{more} more labels are of no model either"] if more else texts


def _in_scope(statement: TruthStatement, subjects: Sequence[Subject]) -> list[Subject]:
    return [
        subject
        for subject in subjects
        if subject.is_in_scope(statement.task or "", statement.model)
    ]


def _labels_of(models: Sequence[str], known: Mapping[str, Collection[str]]) -> list[str]:
    return [label for model in models for label in sorted(known[model])]


def _unknown_label_text(
    label: str, models: Sequence[str], count: int, *, known_labels: Sequence[str]
) -> str:
    near = near_names(label, known_labels, 2)
    times = f" ({count} statements)" if count > 1 else ""
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    names = " or ".join(quoted(model, 80) for model in models[:3])
    return f"{quoted(label, 80)} is not a label of {names}{times}{hint}"


def _own_task(statement: TruthStatement) -> str | None:
    return statement.task or annotated_task(statement.annotations or ())


def _task(
    line: Line, subjects: Sequence[Subject], earlier: set[str], common_task: str | None
) -> str:
    """Return the task of a line; raise a `ChangeError` if its annotations do not fit, or none follows."""
    statement, annotations = line.statement, line.statement.annotations or ()
    where = f"{line.place}.annotations"
    in_scope = [subject for subject in subjects if statement.model in ("", subject.model)]
    if statement.join in _PINNED and subjects:
        return _pinned_task(line, subjects[0])
    if statement.task is not None:
        check_fit(statement.task, annotations, where)
        return statement.task
    if annotations:
        task = annotated_task(annotations)
        if task is None:
            raise ChangeError(
                f"{where}: expected annotations of one task, got {describe_kinds(annotations)}"
            )
        return task
    if common_task is not None:
        return common_task
    if statement.join in _PINNED:  # whatever arrives under this id is of one task
        return ""
    tasks = {subject.task for subject in in_scope} or earlier
    if len(tasks) == 1:
        return tasks.pop()
    joined_to = f"inferences of {' and '.join(sorted(tasks))}" if tasks else "no inference"
    raise ChangeError(
        f"{line.place}: task is required, because there are no annotations and it is joined to {joined_to}"
    )


def _pinned_model(line: Line, subjects: Sequence[Subject]) -> str:
    if line.statement.join not in _PINNED or not subjects:
        raise ChangeError(f"{line.place}: model is required, as the key is for some models alone")
    return subjects[0].model


def _pinned_task(line: Line, subject: Subject) -> str:
    statement = line.statement
    if statement.task not in (None, subject.task):
        raise ChangeError(
            f"{line.place}: expected the task of the inference, {subject.task}, got {statement.task}"
        )
    if statement.model not in ("", subject.model):
        raise ChangeError(
            f"{line.place}: expected the model of the inference, {quoted(subject.model, 80)}, got {quoted(statement.model, 80)}"
        )
    check_fit(subject.task, statement.annotations or (), f"{line.place}.annotations")
    return subject.task


def _stated_by_id(
    lines: Sequence[Line],
    joined: JoinedSubjects,
    refused: list[Refusal],
    find_matches: FindMatches,
) -> ScopedStatements:
    targets = [_targets(line.statement, joined) for line in lines]
    matching = find_matches({subject.seq for subjects in targets for subject in subjects})
    statements: list[TruthStatement] = []
    stated = size_bytes = 0
    for line, subjects in zip(lines, targets, strict=True):
        seqs = [subject.seq for subject in subjects if subject.seq in matching]
        if not seqs:
            reason = f"no stored inference of {line.statement.task or 'any task'} with this value matches where"
            refused.append(line.refuse(f"{line.place}: {reason}"))
            continue
        stated += 1
        size_bytes += len(seqs) * len(json_text(line.statement.annotations))
        if size_bytes > MAX_EXPANDED_BYTES:
            raise ChangeError(
                f"expected annotations of at most {MAX_EXPANDED_BYTES} bytes for all inferences that match where, "
                "got more: state them in several requests"
            )
        statements += [
            msgspec.structs.replace(line.statement, join="id", value=str(seq)) for seq in seqs
        ]
    return ScopedStatements(statements, _sorted(refused), stated)


def _targets(statement: TruthStatement, joined: JoinedSubjects) -> list[Subject]:
    """Return the stored inferences that a statement is for."""
    return [
        subject
        for subject in joined.get((statement.join, statement.value), ())
        if subject.is_in_scope(statement.task or "", statement.model)
        and fits(subject.task, statement.annotations or ())
    ]


def _sorted(refused: Sequence[Refusal]) -> list[Refusal]:
    return sorted(refused, key=lambda refusal: refusal.position)
