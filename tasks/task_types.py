"""Names of task types: Chariot's own, and the short ones of commands and files."""

SHORT_NAMES = {
    "classification": "IMAGE_CLASSIFICATION",
    "detection": "OBJECT_DETECTION",
    "oriented": "ORIENTED_OBJECT_DETECTION",
    "image-text": "IMAGE_TEXT_TO_TEXT",
    "segmentation": "IMAGE_SEGMENTATION",
    "tensor": "TENSOR",
}
"""Short names of task types, which commands and files accept beside Chariot's own in any case."""


def full_name(task: str) -> str:
    """Return the task type of a short name; any other text in capitals."""
    return SHORT_NAMES.get(task.lower(), task.upper())
