"""A check with the real Label Studio: predictions in its tasks, and its annotations as ground truth."""
