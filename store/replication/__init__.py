"""Beyond one database: copies of a store, and their comparison."""
