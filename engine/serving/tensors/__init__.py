"""Requests of tensors and rows: checks, runs, explanations."""
