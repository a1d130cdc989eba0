"""How a database comes to have the tables of `store.schema`: an alembic environment."""
