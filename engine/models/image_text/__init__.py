"""Models of several graphs that answer prompts about an image."""
