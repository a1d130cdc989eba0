"""Drift between two files of rows."""
