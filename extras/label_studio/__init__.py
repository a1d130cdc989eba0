"""Label Studio: predictions for its tasks, and its annotations as ground truth."""
