"""ImageFolder: a folder for each label, below one for each split, with the images of the label.

Source: torchvision, `datasets.ImageFolder`.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from blake3 import blake3

from quadriga.store.exchange.archives import Archive
from quadriga.store.exchange.formats.reading import (
    IMAGES,
    NO_SPLIT,
    AnnotatedImage,
    DatasetImages,
    split_of_name,
)
from quadriga.store.exchange.formats.writing import FormatWriter, LeftOutError, Picture
from quadriga.store.exchange.tool_datasets import ToolFormat

MAX_FOLDER_BYTES = 200  # file systems take 255
_UNSAFE = re.compile(r'[%/\\:*?"<>|\x00-\x1f\x7f]|^[.~ ]|[. ]$')
_ESCAPED = re.compile("((?:%[0-9A-F]{2})+)")


class LabelFolderWriter(FormatWriter):
    """Writes images into the folders of their labels; an image needs exactly one label."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def add(self, picture: Picture) -> str:
        """Return where the image goes; see `FormatWriter.add`."""
        labels = {label for label, _ in picture.labelled()}
        if len(labels) != 1:
            raise LeftOutError("it has no label" if not labels else "it has several labels")
        folder = folder_of_label(labels.pop())
        return "/".join(filter(None, (picture.split, folder, picture.name)))

    def finish(self) -> None:
        """Write nothing more: the folders say it all."""


def folder_of_label(label: str) -> str:
    """Return the name of a label's folder: what no file system takes, or would follow, is %-encoded as in URLs.

    A long label is cut, and ends with a part of its hash.
    """
    folder = _UNSAFE.sub(_encode, label)
    if len(folder.encode(errors="replace")) <= MAX_FOLDER_BYTES:
        return folder
    digest = blake3(label.encode(errors="replace")).hexdigest()[:16]
    begin = folder.encode(errors="replace")[: MAX_FOLDER_BYTES - 17].decode(errors="ignore")
    return f"{re.sub('%[0-9A-F]?$', '', begin)}~{digest}"


def label_of_folder(folder: str) -> str:
    """Return the label of a folder, with what `folder_of_label` encodes decoded."""
    return _ESCAPED.sub(_decode, folder)


def _encode(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="replace"))


def _decode(match: re.Match[str]) -> str:
    return bytes.fromhex(match[1].replace("%", "")).decode(errors="replace")


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


LABEL_FOLDERS = ToolFormat(
    writer=lambda archive, _: LabelFolderWriter(archive),
    is_format=lambda _: True,  # what no other format is recognised in
    read=read_label_folders,
)
