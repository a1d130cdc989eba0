"""Jobs that run models: their kinds, and images in bulk."""
