"""The wire: what clients say and hear, one folder per transport, knowing no model and no store."""
