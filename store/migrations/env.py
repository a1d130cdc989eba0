"""Run by alembic, from `store.database.migrate`: applies the revisions on the connection handed over."""

from alembic import context

from store import schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=schema.metadata,
    render_as_batch=True,
    transactional_ddl=True,  # of SQLite too, where `store.database` begins the transactions
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
