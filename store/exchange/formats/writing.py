"""What the writers of all formats share: the picture that they write, and what they leave out."""

import re
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from quadriga.store.exchange.predictions import label_of
from quadriga.store.records.records import StoredInference

SIDECAR = "quadriga-images.jsonl"
"""File beside a dataset that says of each image which inference it is: for an import, and for readers of metadata."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class LeftOutError(Exception):
    """The inference cannot be written in the format; the message says why, for a count of such inferences."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """An image with its annotations, to be written."""

    record: StoredInference
    name: str
    """Name of the image's file: the id of the inference with the ending of its media type."""
    split: str
    """Name of the split; empty without splits."""
    source: str
    """`ground_truth` or `predictions`: what the annotations are."""
    annotations: list[dict[str, Any]]
    link: str
    """Path or URL of the image if it is not in the dataset; empty if it is."""

    @property
    def stem(self) -> str:
        """Name of the image's file without its ending."""
        return self.name.rpartition(".")[0]

    def size_wh(self) -> tuple[int, int]:
        """Return width and height in pixels, as a person sees the image.

        Raises:
            LeftOutError: They are not known.
        """
        width, height = self.record.input.width, self.record.input.height
        if not width or not height:
            raise LeftOutError("the size of the image is not known")
        return width, height

    def labelled(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the annotations that have a label, with it.

        Raises:
            LeftOutError: There are annotations, but none has a label: an image without objects would be another thing.
        """
        pairs = [(label_of(item), item) for item in self.annotations]
        if pairs and all(label is None for label, _ in pairs):
            raise LeftOutError("none of its annotations has a label")
        for label, item in pairs:
            if label is not None:
                yield label, item


class FormatWriter(Protocol):
    """Writes one format into an archive, picture by picture."""

    def add(self, picture: Picture) -> str:
        """Write the annotations of a picture; return the path of its image within the archive.

        Raises:
            LeftOutError: The format has no way to say what the annotations say; nothing was written.
        """

    def finish(self) -> None:
        """Write what is known at the end only, such as the names of all labels."""


def check_any_written(picture: Picture, written: int) -> None:
    """Check that a picture with annotations has not lost all of them, as then it would be one of nothing.

    Raises:
        LeftOutError: It has.
    """
    if picture.annotations and not written:
        raise LeftOutError("none of its annotations has a shape of the format")


def xml_text(text: str) -> str:
    """Return a text with what XML 1.0 cannot say, such as control characters, replaced by U+FFFD."""
    return _NOT_XML.sub("\ufffd", text)
