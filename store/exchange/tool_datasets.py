"""Datasets in the formats of other tools: their recognition, what is written of which inferences, and what is left out."""

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ExifTags import Base as ExifTag

from quadriga.store.blobs.interface import Blobs
from quadriga.store.exchange.archives import Archive, image_name, stored_image
from quadriga.store.exchange.dataset_files import DatasetFiles
from quadriga.store.exchange.dataset_options import (
    ExportParameters,
    Splits,
    choose_annotations,
    link_of,
)
from quadriga.store.exchange.datasets import ChariotWriter, CocoWriter, Pages, own_fields
from quadriga.store.exchange.formats.reading import AnnotatedImage, DatasetImages
from quadriga.store.exchange.formats.writing import SIDECAR, FormatWriter, LeftOutError, Picture
from quadriga.store.exchange.formats.yolo import Kind, YoloWriter, is_yolo, read_yolo
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import StoredInference

_JPEG_QUALITY = 95
_UPRIGHT = 1


class ToolFormat(NamedTuple):
    """A format of the datasets of another tool."""

    writer: Callable[[Archive, ExportParameters], FormatWriter]
    is_format: Callable[[DatasetFiles], object]
    """Checks whether a dataset is in the format."""
    read: Callable[[DatasetImages, str | None], Iterator[AnnotatedImage]]
    """Yields the images of a dataset whose task has a full name; None for what the dataset says."""
    read_file: (
        Callable[[BinaryIO, str, DatasetImages, str | None], Iterator[AnnotatedImage]] | None
    ) = None
    """Yields the images of an open file of annotations alone, by the name that messages have; None for no such file."""


_KINDS: dict[str, Kind] = {"yolo": "detect", "yolo-obb": "obb", "yolo-seg": "segment"}
_YOLO = {
    name: ToolFormat(partial(YoloWriter, kind=kind), is_yolo, read_yolo)
    for name, kind in _KINDS.items()
}
_DESCRIBING: dict[str, Callable[[Archive, ExportParameters], FormatWriter]] = {
    "chariot": ChariotWriter,
    "coco": CocoWriter,
}
"""Writers of the formats that say themselves of each image which inference it is, without the file beside a dataset."""

_RECOGNISED = ("cvat", "dota", "yolo", "label-studio", "imagefolder")
"""Formats that a dataset is read in, in the order in which they are tried."""

FORMS = (
    "annotations.jsonl, COCO's instances*.json or annotations*.json, CVAT's annotations.xml, YOLO's data.yaml with labels, "
    "DOTA's labelTxt, a .json of Label Studio's tasks, or a folder of images for each label"
)
"""Names of the forms of datasets, for errors."""


def format_of(name: str, formats: Mapping[str, ToolFormat]) -> ToolFormat:
    """Return a format: YOLO's, or one of `formats`.

    Raises:
        QueryError: It is none of these.
    """
    tool_format = _YOLO.get(name) or formats.get(name)
    if tool_format is None:
        raise QueryError(f"the format {name} requires a folder of quadriga.extras that is not here")
    return tool_format


def is_array(begin: bytes) -> bool:
    """Check whether a JSON file begins as an array: Label Studio's tasks are one, COCO is an object."""
    return begin.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["


def read_tool_dataset(
    files: DatasetFiles, task: str | None, formats: Mapping[str, ToolFormat]
) -> Iterator[AnnotatedImage]:
    """Yield the images of a dataset in the first format that it is recognised as; none if it is in no format.

    Args:
        files: The files of the dataset.
        task: Full name of the task whose truth it is; None for what the dataset says.
        formats: Formats beside YOLO, by name.

    Raises:
        QueryError: A file is invalid; the message names the place.
        OSError: A file cannot be read.
    """
    known = {**_YOLO, **formats}
    images = DatasetImages(files)
    for name in _RECOGNISED:
        if name in known and known[name].is_format(files):
            yield from known[name].read(images, task)
            return


def write_dataset(
    parameters: ExportParameters,
    pages: Pages,
    target: Path,
    images: Blobs | None,
    *,
    formats: Mapping[str, ToolFormat],
) -> tuple[Counter[str], Counter[str]]:
    """Write a dataset, a picture at a time.

    Returns:
        How many pictures have each kind of annotations, and how many inferences were left out, by reason.

    Raises:
        QueryError: There is no such format.
    """
    sources: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    name, splits = parameters.format, Splits(parameters.split, parameters.split_by)
    open_writer = _DESCRIBING.get(name) or format_of(name, formats).writer
    with Archive(target) as archive:
        writer = open_writer(archive, parameters)
        sidecar = None if name in _DESCRIBING else archive.add_text_file(SIDECAR)
        for record in chain.from_iterable(pages):
            try:
                picture, data = _picture(record, images, parameters, splits)
                path = writer.add(picture)
            except LeftOutError as reason:
                left_out[str(reason)] += 1
                continue
            if data is not None:
                archive.write_image(path, data)
            sources[picture.source] += 1
            if sidecar is not None:
                sidecar.write(msgspec.json.encode(_about(picture, path)) + b"\n")
        writer.finish()
    return sources, left_out


def _picture(
    record: StoredInference, images: Blobs | None, parameters: ExportParameters, splits: Splits
) -> tuple[Picture, bytes | None]:
    """Return the picture of an inference, and the bytes of its image; None where images are left out."""
    chosen = choose_annotations(record, parameters.annotations)
    if chosen is None:
        raise LeftOutError("it has no ground truth")
    data = None if images is None else stored_image(record, images)
    if images is not None and data is None:
        raise LeftOutError("its image is not stored")
    if data is not None and parameters.upright:
        data = upright(data)
    source, annotations = chosen
    picture = Picture(
        record=record,
        name=image_name(record),
        split=splits.split_of(record),
        source=source,
        annotations=annotations,
        link=link_of(record, parameters.image_url),
    )
    return picture, data


def _about(picture: Picture, path: str) -> dict[str, Any]:
    """Return the line of the file beside the dataset about a picture."""
    optional = {"split": picture.split, "image_url": picture.link}
    labels = [label for label, _ in picture.labelled()]
    return {
        "path": path,
        "annotations_from": picture.source,
        **{key: value for key, value in optional.items() if value},
        **own_fields(picture.record),
        "created_at": picture.record.created_at,
        "labels": [*dict.fromkeys(labels)],
        "metadata": picture.record.metadata,
    }


def upright(data: bytes) -> bytes:
    """Return an image turned by its EXIF orientation, in the same file format; as it is if there is nothing to turn."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.getexif().get(ExifTag.Orientation, _UPRIGHT) == _UPRIGHT:
                return data
            form, turned = image.format, ImageOps.exif_transpose(image)
            written = io.BytesIO()
            turned.save(written, format=form, quality=_JPEG_QUALITY)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError) as error:
        raise LeftOutError("its image cannot be turned upright") from error
    return written.getvalue()
