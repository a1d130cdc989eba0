"""Beyond one database: copies of a store, comparison, ClickHouse."""
