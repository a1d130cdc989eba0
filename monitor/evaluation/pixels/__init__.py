"""Masks of objects and labels of pixels."""
