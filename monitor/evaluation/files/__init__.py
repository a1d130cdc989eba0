"""Files as input: COCO, records, datasets."""
