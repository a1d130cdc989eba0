"""Which images to label next: the most informative ones among stored inferences without ground truth."""
