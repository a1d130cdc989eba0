"""What the readers of all formats share: an image with its annotations, sizes of images, and what an export wrote beside."""

import io
import warnings
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

import msgspec
from PIL import Image, UnidentifiedImageError
from PIL.ExifTags import Base as ExifTag

from quadriga.store.exchange.dataset_files import MAX_LABEL_BYTES, DatasetFiles, nearest_to_root
from quadriga.store.exchange.formats.writing import SIDECAR
from quadriga.store.exchange.outlines import xywhr_json
from quadriga.store.exchange.text_files import decode_as, to_utf8
from quadriga.store.records.errors import QueryError
from quadriga.tasks.predictions import BOX_KEYS, XY

IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif"}
"""Endings of the names of images."""

NO_SPLIT = "default"
"""Name that Datumaro and CVAT give to the subset of images that are in none."""

_SIDEWAYS = {5, 6, 7, 8}  # EXIF orientations that swap width and height
_about = msgspec.json.Decoder(dict[str, Any])


class AnnotatedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of a dataset."""

    place: str
    """Location within the dataset, for errors."""
    path: str
    """Path of the image within the dataset; of one that is not in it, the path that it would have."""
    annotations: list[dict[str, Any]] | None
    """Annotations in the form of the wire; None if nothing is said of the image."""
    split: str | None = None
    is_background: bool = False
    """Whether nothing is annotated as there is no file of labels, which a tool counts as an image with nothing in it."""
    about: dict[str, Any] = {}
    """What an export said of the image, under the keys of `quadriga.store.exchange.datasets.OWN`, and `metadata`."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the image that an export wrote."""
        fields = self.about.get("metadata")
        return fields if isinstance(fields, dict) else {}

    @property
    def is_predicted(self) -> bool:
        """Whether an export made the annotations from predictions."""
        return self.about.get("annotations_from") == "predictions"


class DatasetImages:
    """Images of a dataset: where they are, how large, and what an export said of them.

    Args:
        files: The files of the dataset.
    """

    def __init__(self, files: DatasetFiles) -> None:
        self.files = files
        self._by_name: dict[str, list[str]] = {}
        self._by_stem: dict[str, list[str]] = {}
        for name in files.names:
            path = PurePosixPath(name)
            self._by_name.setdefault(path.name, []).append(name)
            if path.suffix.lower() in IMAGES:
                self._by_stem.setdefault(str(path.with_suffix("")), []).append(name)
        self._described = _read_sidecar(files)

    def find(self, *candidates: str, name: str | None = None) -> str:
        """Return the first path of candidates that is there, or the only file of that name; else the first candidate.

        The name is that of the first candidate, if none is given.
        """
        for candidate in candidates:
            if candidate in self.files:
                return candidate
        same_name = self._by_name.get(PurePosixPath(name or candidates[0]).name, [])
        return same_name[0] if len(same_name) == 1 else candidates[0]

    def of_labels(self, labels: str, position: int) -> str:
        """Return the image of a file of labels: the folder at a position in its path is `images`, or left out."""
        parts = [*PurePosixPath(labels).with_suffix("").parts]
        beside = "/".join(parts[:position] + parts[position + 1 :])
        parts[position] = "images"
        stem = "/".join(parts)
        for candidate in (stem, beside):
            paths = self._by_stem.get(candidate, [])
            if len(paths) == 1:
                return paths[0]
        path: str = self.about(stem).get("path") or stem
        return path

    def about(self, path: str) -> dict[str, Any]:
        """Return what an export said of an image, found by the name of its file."""
        line = self._described.get(PurePosixPath(path).stem)
        return {} if line is None else _about.decode(line)

    def splits(self) -> set[str]:
        """Return the splits that an export made."""
        return {
            name for line in self._described.values() if (name := _about.decode(line).get("split"))
        }

    def size_wh(self, path: str, place: str) -> tuple[int, int]:
        """Return width and height of an image in pixels, as a person sees it.

        Raises:
            QueryError: Neither the image nor what an export said of it is there.
        """
        about = self.about(path)
        width, height = about.get("image_width"), about.get("image_height")
        if isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0:
            return width, height
        if path not in self.files:
            raise QueryError(
                f"{place}: the size of {path} is not known: add the image, or {SIDECAR} as an export writes it"
            )
        return read_size(self.files, path, place)


def read_size(files: DatasetFiles, path: str, place: str) -> tuple[int, int]:
    """Read width and height of an image, turned by its EXIF orientation, without its pixels.

    Raises:
        QueryError: It is no image that Pillow knows.
    """
    try:
        data = files.read(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # no pixel is decoded
            with Image.open(io.BytesIO(data)) as image:
                width, height = image.size
                orientation = image.getexif().get(ExifTag.Orientation, 1)
    except UnidentifiedImageError as error:
        raise QueryError(f"{place}: cannot read the size of {path}, which is no image") from error
    except (OSError, Image.DecompressionBombError, ValueError) as error:
        raise QueryError(f"{place}: cannot read the size of {path}: {error}") from error
    return (height, width) if orientation in _SIDEWAYS else (width, height)


def _read_sidecar(files: DatasetFiles) -> dict[str, bytes]:
    """Return the line of an export about each image, by the stem of its file's name."""
    described: dict[str, bytes] = {}
    for name in nearest_to_root(files, lambda name: name == SIDECAR)[:1]:
        with files.open(name) as file:
            for number, line in enumerate(file, 1):
                about = decode_as(
                    dict[str, Any], line, f"line {number} of {name}: expected a JSON object"
                )
                described[PurePosixPath(str(about.get("path", ""))).stem] = line
    return described


def split_of_name(name: str | None) -> str | None:
    """Return the split that a folder, file or attribute names; None for no name, and for that of images without a split."""
    return None if name in {"", NO_SPLIT} else name


def oriented_if(
    annotations: list[dict[str, Any]], task: str | None, size_wh: tuple[int, int]
) -> list[dict[str, Any]]:
    """Return annotations, boxes as oriented boxes without rotation if these are the task's."""
    if task != "ORIENTED_OBJECT_DETECTION":
        return annotations
    return [
        {key: value for key, value in item.items() if key not in BOX_KEYS}
        | turned_box([item[key] for key in BOX_KEYS], size_wh, 0.0)
        if "xmin" in item
        else item
        for item in annotations
    ]


def turned_box(
    edges: Sequence[float], size_wh: tuple[int, int], radians: float
) -> dict[str, float]:
    """Return a box, xmin, ymin, xmax, ymax in pixels, turned around its centre, as an oriented box of the wire."""
    (xmin, ymin, xmax, ymax), (width, height) = edges, size_wh
    cx, cy = (xmin + xmax) / 2 / width, (ymin + ymax) / 2 / height
    return xywhr_json(cx, cy, abs(xmax - xmin) / width, abs(ymax - ymin) / height, radians)


def box_around(points: Iterable[XY]) -> dict[str, float]:
    """Return the smallest box around points in pixels, such as two opposite corners, in the form of the wire."""
    xs, ys = zip(*points, strict=True)
    return dict(zip(BOX_KEYS, (min(xs), min(ys), max(xs), max(ys)), strict=True))


def contour_of(rings: list[list[tuple[float, float]]]) -> dict[str, Any]:
    """Return a contour in the form of the wire, from its rings in pixels."""
    return {"contour": [[{"x": x, "y": y} for x, y in ring] for ring in rings]}


def read_text(files: DatasetFiles, name: str) -> str:
    """Return the text of a file of labels; a QueryError if it is not in Unicode, an OSError if it is too large."""
    try:
        return to_utf8(files.read(name, MAX_LABEL_BYTES), name).decode()
    except UnicodeDecodeError as error:
        raise QueryError(f"{name}: expected text in UTF-8, got: {error}; save it so") from error
