"""Inferences of models that are served elsewhere: halves of events that wait for each other, and keys of requests."""
