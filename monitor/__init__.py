"""Drift and evaluation over stored inferences; imports the store, never the engine."""
