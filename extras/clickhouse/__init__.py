"""A copy in ClickHouse of what is stored."""
