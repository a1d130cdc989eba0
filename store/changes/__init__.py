"""Changes of stored inferences: metadata, ground truth, feedback, deletion, retention."""
