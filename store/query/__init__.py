"""What to look for: the filter, how it is written, and how it becomes SQL."""
