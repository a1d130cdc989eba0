"""How a database comes to have the tables of `quadriga.store.schema`: an alembic environment."""
