"""Filters as people and programs write them, read into one tree, `syntax`."""
