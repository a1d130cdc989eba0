"""The database: connections, schema, migrations, rows, and what SQLite and PostgreSQL do differently."""
