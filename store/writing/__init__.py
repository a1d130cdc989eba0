"""The writer: reads the journal and commits it to the database, in batches, each exactly once."""
