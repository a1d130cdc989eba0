"""Inferences of models that are served elsewhere: read, checked and stored as those that are served here."""
