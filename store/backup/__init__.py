"""Backups of a store: made beside a running server, restored into an empty folder, and a check of everything stored."""
