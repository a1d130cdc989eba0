"""Objects with boxes: matching, average precision and what it is lost to."""
