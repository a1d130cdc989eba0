"""What is said of inferences after they were stored: metadata, ground truth, feedback, deletion, retention."""
