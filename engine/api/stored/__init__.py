"""Routes of what is stored: inferences, their changes, ground truth, and searches."""
