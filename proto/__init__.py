"""The wire: what clients say and hear, one file per protocol, knowing no model and no store."""
