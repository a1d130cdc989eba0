"""Datasets in the forms of other tools: a module each, which writes and reads that form."""
