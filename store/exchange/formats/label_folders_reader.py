"""Reads ImageFolder: a folder for each label, maybe below one for each split.

Source: torchvision, `datasets.ImageFolder`.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath

from quadriga.store.exchange.formats.label_folders import folder_of_label, label_of_folder
from quadriga.store.exchange.formats.reading import (
    IMAGES,
    NO_SPLIT,
    AnnotatedImage,
    DatasetImages,
    split_of_name,
)

SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
"""Names of folders of splits, which hold a folder for each label."""


def read_label_folders(images: DatasetImages, _: str | None) -> Iterator[AnnotatedImage]:
    """Yield the images of a dataset, each with the label of its folder."""
    paths = [PurePosixPath(name) for name in images.files.names]
    paths = [path for path in paths if path.suffix.lower() in IMAGES and len(path.parts) > 1]
    splits = images.splits()
    has_splits = {path.parts[0] for path in paths} <= splits or (
        {path.parts[0].lower() for path in paths} <= SPLITS | {NO_SPLIT}
    )
    for path in paths:
        is_below_split = has_splits and len(path.parts) > 2
        about = images.about(str(path))
        folder = path.parts[1 if is_below_split else 0]
        exported = about.get("labels") or [""]
        is_unmoved = folder == folder_of_label(str(exported[0]))
        label = str(exported[0]) if is_unmoved else label_of_folder(folder)
        yield AnnotatedImage(
            place=str(path),
            path=str(path),
            annotations=[{"label": label}],
            split=(split_of_name(path.parts[0]) or about.get("split")) if is_below_split else None,
            about=about,
        )
