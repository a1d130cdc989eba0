"""Datasets in the formats of CVAT, DOTA and ImageFolder, a file each: what is written and how it is read."""
