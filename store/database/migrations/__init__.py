"""How a database comes to have the tables of `quadriga.store.database.schema`: an alembic environment."""
