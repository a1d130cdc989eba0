"""The tables that a copy of a store leaves out, as its target may have its own: keys, and the traffic of models."""

from quadriga.store.database import database
from quadriga.store.database.schema import COLUMNS

TABLES = ("access_key", "traffic")


def copy_shared_tables(source: str, target: str) -> None:
    """Copy the keys of people and programs, and the traffic rules of models, from one database into another."""
    for table in TABLES:
        columns = ", ".join(COLUMNS[table])
        with database.writer_engine(source) as engine, engine.connect() as connection:
            rows = [
                (*row,) for row in database.execute(connection, f"SELECT {columns} FROM {table}")
            ]
        with database.writer_engine(target) as engine, engine.begin() as connection:
            database.upsert(connection, table, rows)
