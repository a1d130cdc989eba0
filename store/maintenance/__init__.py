"""Counting, retention and rebuilding: what the store does by itself."""
