"""Datasets as others lay them out: images with what is true of them."""
