"""Changes of what is stored, as the writer applies them: in the order of the journal, each once."""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from quadriga.store import metadata, rollups
from quadriga.store.changes import ground_truth
from quadriga.store.database import delete as delete_rows
from quadriga.store.database import execute, execute_in, insert, stored_ids, upsert
from quadriga.store.records import (
    Deletion,
    Feedback,
    ImageSignals,
    JournaledChange,
    MetadataChange,
    SignalsOfImages,
    TruthStatement,
    json_text,
)
from quadriga.store.rows import NameIds, RowBatch, derived_rows, remove_inferences, storable_text

_ADD_SIGNALS = (
    "INSERT INTO signal (seq, picture, embedding, space) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (seq) DO UPDATE SET picture = coalesce(excluded.picture, signal.picture),"
    " embedding = coalesce(excluded.embedding, signal.embedding),"
    " space = coalesce(excluded.space, signal.space)"
)


SequencedChanges = list[tuple[int, Any]]  # changes of one kind, each with its id


def apply_changes(
    connection: sa.Connection, names: NameIds, changes: Sequence[JournaledChange]
) -> set[str]:
    """Apply changes within the writer's transaction; what was applied before changes nothing.

    A change of an inference that is not there any more is passed over. Returns keys of blobs that a
    record less refers to.

    Raises:
        MetadataError: Metadata would break a rule; the one who asked looks whether it was applied.
    """
    freed: set[str] = set()
    for kind, group in groupby(changes, lambda one: type(one.change)):
        given: SequencedChanges = [(one.seq, one.change) for one in group]
        if kind is TruthStatement:
            ground_truth.save_statements(connection, given)
        elif kind is Feedback:
            _add_feedback(connection, given)
        elif kind is MetadataChange:
            _change_metadata(connection, names, given)
        elif kind is SignalsOfImages:
            _add_signals(connection, [signals for _, change in given for signals in change.of])
        elif kind is Deletion:
            for _, deletion in given:
                rollups.subtract(connection, deletion.targets)
                freed |= delete_inferences(connection, names, deletion.targets)
        else:
            rules = [
                (storable_text(one.model), one.inputs_days, one.inferences_days) for _, one in given
            ]
            upsert(connection, "retention", rules)
    return freed


def delete_inferences(connection: sa.Connection, names: NameIds, seqs: Collection[int]) -> set[str]:
    """Remove inferences and all that hangs on them; returns keys of blobs that a record less refers to.

    Statements of truth that no inference can have any more go too: by these ids, and by requests
    none of whose inferences is left.
    """
    columns = "seq, request_id, image_no, input_hash, input_kept"
    found = execute_in(connection, f"SELECT {columns} FROM inference WHERE seq IN ({{}})", seqs)
    remove_inferences(connection, names, seqs)
    for table in ("metadata_change", "feedback", "ground_truth", "signal"):
        execute_in(connection, f"DELETE FROM {table} WHERE seq IN ({{}})", seqs)
    _forget_statements(connection, {(seq, request, image) for seq, request, image, *_ in found})
    return {digest for _, _, _, digest, is_kept in found if digest is not None and is_kept}


def _forget_statements(connection: sa.Connection, gone: set[tuple[int, str, int]]) -> None:
    statement = "SELECT DISTINCT request_id, image_no FROM inference WHERE request_id IN ({})"
    left = {
        tuple(row) for row in execute_in(connection, statement, {request for _, request, _ in gone})
    }
    requests = {request for request, _ in left}
    values = {request for _, request, _ in gone} - requests
    values |= {f"{request}#{image}" for _, request, image in gone if (request, image) not in left}
    statement = "DELETE FROM truth WHERE join_on = ? AND value IN ({})"
    execute_in(connection, statement, values, ("request_id",))
    execute_in(connection, statement, {str(seq) for seq, _, _ in gone}, ("id",))


def _change_metadata(connection: sa.Connection, names: NameIds, given: SequencedChanges) -> None:
    statement = "SELECT id FROM metadata_change WHERE id IN ({})"
    done = {
        number for (number,) in execute_in(connection, statement, [number for number, _ in given])
    }
    statement = "SELECT seq, meta FROM inference WHERE seq IN ({})"
    found = execute_in(connection, statement, {change.target for _, change in given})
    before: dict[int, str] = dict(found)
    after: dict[int, str] = {}
    history = []
    for number, change in given:
        seq = change.target
        if number in done or seq not in before:
            continue
        was = after.get(seq, before[seq])
        new = changed_metadata(metadata.decode(was), change)
        metadata.check(new)
        history.append((number, seq, json_text(change), was))
        after[seq] = json_text(new)
    _write_metadata(connection, names, before, after)
    insert(connection, "metadata_change", history)
    ground_truth.link_stored(connection, after)


def _write_metadata(
    connection: sa.Connection, names: NameIds, before: dict[int, str], after: dict[int, str]
) -> None:
    """Write the rows of new metadata, JSON by id, and take those of the old away."""
    are = RowBatch(names)
    written = []
    for seq, new in after.items():
        paths = metadata.index_paths(metadata.decode(new))
        written.append((new, names.flat_beside(paths, new), seq))
        are.derive(seq, paths)
    if written:
        execute(connection, "UPDATE inference SET meta = ?, meta_flat = ? WHERE seq = ?", written)
    were = derived_rows(names, ((seq, before[seq]) for seq in after))
    for table in ("meta_num", "meta_str"):
        old, new_rows = set(were[table]), set(are.by_table[table])
        delete_rows(connection, table, old - new_rows)
        insert(connection, table, new_rows - old)


def changed_metadata(before: dict[str, Any], change: MetadataChange) -> dict[str, Any]:
    """Return metadata with a change."""
    kept = {key: value for key, value in before.items() if key not in change.remove}
    return kept | change.set


def _add_feedback(connection: sa.Connection, given: SequencedChanges) -> None:
    there = stored_ids(connection, {feedback.target for _, feedback in given})
    rows = [
        (
            seq,
            one.target,
            storable_text(one.kind),
            one.value,
            storable_text(one.comment),
            storable_text(one.source),
        )
        for seq, one in given
        if one.target in there
    ]
    upsert(connection, "feedback", rows)


def _add_signals(connection: sa.Connection, given: Collection[ImageSignals]) -> None:
    """Add signals; what comes later of an inference goes before, and what it leaves out stays."""
    there = stored_ids(connection, {one.seq for one in given})
    rows = [
        (one.seq, one.picture or None, one.embedding or None, storable_text(one.space) or None)
        for one in given
        if one.seq in there
    ]
    if rows:
        execute(connection, _ADD_SIGNALS, rows)
