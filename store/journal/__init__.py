"""The journal: an inference is acknowledged once it stands in one of these files, and the writer reads it from there."""
