"""Formats of other tools: YOLO, and what all of them share; others are in `quadriga.extras`."""
