"""Run by alembic, from `quadriga.store.database.database.migrate`: applies the revisions on the connection handed over."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    render_as_batch=True,
    transactional_ddl=True,  # of SQLite too, where `quadriga.store.database.database` begins the transactions
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
