"""A copy of what is stored in ClickHouse; `quadriga.store.replication.clickhouse` sends it."""
