"""Changes of what is stored, as the writer applies them: in the order of the journal, each once."""

from collections.abc import Collection
from typing import Any

import msgspec
import sqlalchemy as sa

from store import metadata, rollups
from store.database import delete as delete_rows
from store.database import run, run_in
from store.errors import StoreError
from store.records import Deletion, JournaledChange, RetentionRule
from store.rows import Names, Rows

_INDEXES = {"meta_num": ("key", "val", "seq"), "meta_str": ("key", "val", "seq")}
_KEYED_BY_SEQ = ("pred", "metadata_change", "feedback", "ground_truth", "inference")
_SET_RULE = (
    "INSERT INTO retention (model, inputs_days, inferences_days) VALUES (?, ?, ?)"
    " ON CONFLICT (model) DO UPDATE SET inputs_days = excluded.inputs_days,"
    " inferences_days = excluded.inferences_days"
)
_METADATA: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


def apply(connection: sa.Connection, names: Names, journaled: JournaledChange) -> None:
    """Apply one change within the writer's transaction."""
    change = journaled.change
    if isinstance(change, RetentionRule):
        run(connection, _SET_RULE, (change.model, change.inputs_days, change.inferences_days))
    elif isinstance(change, Deletion):
        rollups.subtract(connection, change.targets)
        delete(connection, names, change.targets)
    else:
        raise StoreError(f"expected a known change, got {type(change).__name__}")


def delete(connection: sa.Connection, names: Names, seqs: Collection[int]) -> set[str]:
    """Remove inferences and all that hangs on them; returns keys of blobs that lost a reference."""
    found = run_in(
        connection,
        "SELECT seq, input_hash, input_kept, meta FROM inference WHERE seq IN ({})",
        seqs,
    )
    rows = Rows(names)
    derived: dict[str, list[tuple[Any, ...]]] = {table: [] for table in _INDEXES}
    for seq, _, _, given in found:
        paths = metadata.index(_METADATA.decode(given))
        for table, of_record in rows.metadata_rows(seq, paths).items():
            derived[table] += of_record
    for table, keys in derived.items():
        delete_rows(connection, table, _INDEXES[table], keys)
    for table in _KEYED_BY_SEQ:
        run_in(connection, f"DELETE FROM {table} WHERE seq IN ({{}})", [row[0] for row in found])
    return {digest for _, digest, is_kept, _ in found if digest is not None and is_kept}
