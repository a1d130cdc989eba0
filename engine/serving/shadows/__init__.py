"""Versions that see copies of requests, in a process of their own."""
