"""Application of journaled changes by the writer, in the order of the journal, each once."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from quadriga.store.changes import ground_truth
from quadriga.store.database import rollups
from quadriga.store.database.database import delete as delete_rows
from quadriga.store.database.database import execute, execute_in, insert, stored_ids, upsert
from quadriga.store.database.rows import (
    METADATA_OF,
    NameIds,
    RowBatch,
    derived_rows,
    models_by_id,
    remove_inferences,
    storable_text,
)
from quadriga.store.records import metadata
from quadriga.store.records.records import (
    Deletion,
    Feedback,
    ImageSignals,
    JournaledChange,
    MetadataChange,
    SignalsOfImages,
    TruthStatement,
    json_text,
)
from quadriga.store.records.scope import DEFAULT_OWNER, owner_of

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
    """Apply changes within the writer's transaction; changes that were applied before have no effect.

    Changes of inferences that no longer exist are skipped. Returns the keys of blobs that lost a
    reference.

    Raises:
        MetadataError: The changed metadata would break a rule; the caller checks whether it was applied.
    """
    freed: set[str] = set()
    for change_type, group in groupby(changes, lambda entry: type(entry.change)):
        sequenced: SequencedChanges = [(entry.seq, entry.change) for entry in group]
        if change_type is TruthStatement:
            ground_truth.save_statements(connection, sequenced)
        elif change_type is Feedback:
            _add_feedback(connection, sequenced)
        elif change_type is MetadataChange:
            _change_metadata(connection, names, sequenced)
        elif change_type is SignalsOfImages:
            _add_signals(connection, [signals for _, change in sequenced for signals in change.of])
        elif change_type is Deletion:
            for _, deletion in sequenced:
                rollups.subtract(connection, deletion.targets)
                freed |= delete_inferences(connection, names, deletion.targets)
        else:
            rules = [
                (storable_text(rule.model), rule.team, rule.inputs_days, rule.inferences_days)
                for _, rule in sequenced
            ]
            upsert(connection, "retention", rules)
    return freed


def delete_inferences(connection: sa.Connection, names: NameIds, seqs: Collection[int]) -> set[str]:
    """Remove inferences and everything that refers to them; return the keys of blobs that lost a reference.

    Statements of ground truth that can no longer match any inference are removed too: those by these ids,
    and those by requests without a remaining inference.
    """
    columns = "seq, request_id, image_no, input_hash, input_kept, model_id"
    rows = execute_in(connection, f"SELECT {columns} FROM inference WHERE seq IN ({{}})", seqs)
    models = models_by_id(connection, (row[-1] for row in rows))
    remove_inferences(connection, names, seqs)
    for table in ("metadata_change", "feedback", "ground_truth", "other_truth", "signal"):
        execute_in(connection, f"DELETE FROM {table} WHERE seq IN ({{}})", seqs)
    execute_in(connection, "DELETE FROM repeated_id WHERE first_seq IN ({})", seqs)
    removed = [(request, image, models[id_].team) for _, request, image, *_, id_ in rows]
    _remove_statements(connection, [row[0] for row in rows], removed)
    return {digest for _, _, _, digest, is_kept, _ in rows if digest is not None and is_kept}


def _remove_statements(
    connection: sa.Connection, seqs: Collection[int], removed: Collection[tuple[str, int, str]]
) -> None:
    """Remove the statements of ids and requests that are left with no inference that these may be for.

    Args:
        connection: Connection in the writer's transaction.
        seqs: Ids of inferences that were removed.
        removed: Request, number of the image and team of each.
    """
    query = "SELECT DISTINCT request_id, image_no, model_id FROM inference WHERE request_id IN ({})"
    rows = execute_in(connection, query, {request for request, *_ in removed})
    models = models_by_id(connection, (row[-1] for row in rows))
    remaining = _values_by_owner((request, image, models[id_].team) for request, image, id_ in rows)
    statement = "DELETE FROM truth WHERE join_on = ? AND owner = ? AND value IN ({})"
    for owner, values in _values_by_owner(removed).items():
        execute_in(connection, statement, values - remaining[owner], ("request_id", owner))
    statement = "DELETE FROM truth WHERE join_on = ? AND value IN ({})"
    for join in ("id", ground_truth.REFUSED):
        execute_in(connection, statement, [str(seq) for seq in seqs], (join,))


def _values_by_owner(images: Iterable[tuple[str, int, str]]) -> dict[str, set[str]]:
    """Return the values by which statements of each owner are joined to requests, or to one of their images."""
    values: dict[str, set[str]] = defaultdict(set)
    for request, image, team in images:
        for owner in (DEFAULT_OWNER, owner_of(team)):
            values[owner] |= {request, f"{request}#{image}"}
    return values


def _change_metadata(connection: sa.Connection, names: NameIds, changes: SequencedChanges) -> None:
    statement = "SELECT id FROM metadata_change WHERE id IN ({})"
    applied = {
        change_id
        for (change_id,) in execute_in(
            connection, statement, [change_id for change_id, _ in changes]
        )
    }
    targets = {change.target for _, change in changes}
    teams: dict[int, str] = {}
    old_json: dict[int, str] = {}
    for seq, team, meta in execute_in(connection, METADATA_OF, targets):
        teams[seq], old_json[seq] = team, meta
    new_json: dict[int, str] = {}
    history = []
    for change_id, change in changes:
        seq = change.target
        if change_id in applied or seq not in old_json:
            continue
        previous = new_json.get(seq, old_json[seq])
        updated = changed_metadata(metadata.decode(previous), change)
        metadata.check_rules(updated)
        history.append((change_id, seq, json_text(change), previous))
        new_json[seq] = json_text(updated)
    _write_metadata(
        connection,
        names,
        [(seq, teams[seq], old_json[seq], text) for seq, text in new_json.items()],
    )
    insert(connection, "metadata_change", history)
    ground_truth.link_stored(connection, new_json)


def _write_metadata(
    connection: sa.Connection, names: NameIds, changed: Collection[tuple[int, str, str, str]]
) -> None:
    """Write new metadata and replace its index rows, given the id, the team, and the old and the new JSON of each."""
    new_batch = RowBatch(names)
    written = []
    for seq, team, _, text in changed:
        paths = metadata.index_paths(metadata.decode(text))
        written.append((text, names.flat_beside(paths, text), seq))
        new_batch.derive(seq, team, paths)
    if written:
        execute(connection, "UPDATE inference SET meta = ?, meta_flat = ? WHERE seq = ?", written)
    old_by_table = derived_rows(names, (old for *old, _ in changed))
    for table in ("meta_num", "meta_str"):
        old_rows, new_rows = set(old_by_table[table]), set(new_batch.by_table[table])
        delete_rows(connection, table, old_rows - new_rows)
        insert(connection, table, new_rows - old_rows)


def changed_metadata(current: dict[str, Any], change: MetadataChange) -> dict[str, Any]:
    """Return metadata after a change."""
    remaining = {key: value for key, value in current.items() if key not in change.remove}
    return remaining | change.set


def _add_feedback(connection: sa.Connection, changes: SequencedChanges) -> None:
    existing = stored_ids(connection, {change.target for _, change in changes})
    rows = [
        (
            seq,
            feedback.target,
            storable_text(feedback.kind),
            feedback.value,
            storable_text(feedback.comment),
            storable_text(feedback.source),
        )
        for seq, feedback in changes
        if feedback.target in existing
    ]
    upsert(connection, "feedback", rows)


def _add_signals(connection: sa.Connection, signals_of_images: Collection[ImageSignals]) -> None:
    """Add signals; later values replace earlier ones, and omitted values are kept."""
    existing = stored_ids(connection, {signals.seq for signals in signals_of_images})
    rows = [
        (
            signals.seq,
            signals.picture or None,
            signals.embedding or None,
            storable_text(signals.space) or None,
        )
        for signals in signals_of_images
        if signals.seq in existing
    ]
    if rows:
        execute(connection, _ADD_SIGNALS, rows)
