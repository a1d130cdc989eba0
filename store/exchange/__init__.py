"""Taking inferences out into files, and bringing them in."""
