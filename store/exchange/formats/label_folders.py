"""ImageFolder: a folder for each label, below one for each split, with the images of the label.

Source: torchvision, `datasets.ImageFolder`.
"""

import re

from blake3 import blake3

from quadriga.store.exchange.archives import Archive
from quadriga.store.exchange.formats.writing import FormatWriter, LeftOutError, Picture

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
