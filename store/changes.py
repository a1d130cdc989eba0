"""Changes of what is stored, as the writer applies them: in the order of the journal, each once."""

import sqlalchemy as sa

from store.errors import StoreError
from store.records import JournaledChange
from store.rows import Names


def apply(_connection: sa.Connection, _names: Names, journaled: JournaledChange) -> None:
    """Apply one change within the writer's transaction."""
    raise StoreError(f"expected a known change, got {type(journaled.change).__name__}")
