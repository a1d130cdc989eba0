"""Datasets in the forms of other tools: which inferences are written, their images and splits, and what was left out."""

import io
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ExifTags import Base as ExifTag

from quadriga.store.blobs.interface import Blobs
from quadriga.store.exchange.annotated_records import choose_annotations
from quadriga.store.exchange.archives import Archive, image_name, stored_image
from quadriga.store.exchange.dataset_options import DatasetOptions, link_of
from quadriga.store.exchange.datasets import Pages, own_fields
from quadriga.store.exchange.formats.cvat import CvatWriter
from quadriga.store.exchange.formats.dota import DotaWriter
from quadriga.store.exchange.formats.label_folders import LabelFolderWriter
from quadriga.store.exchange.formats.label_studio import LabelStudioWriter
from quadriga.store.exchange.formats.writing import SIDECAR, FormatWriter, LeftOutError, Picture
from quadriga.store.exchange.formats.yolo import YoloWriter
from quadriga.store.records.records import StoredInference

_JPEG_QUALITY = 95
_UPRIGHT = 1


_WRITERS: dict[str, Callable[[Archive, DatasetOptions], FormatWriter]] = {
    "yolo": lambda archive, options: YoloWriter(archive, "detect", options),
    "yolo-obb": lambda archive, options: YoloWriter(archive, "obb", options),
    "yolo-seg": lambda archive, options: YoloWriter(archive, "segment", options),
    "imagefolder": lambda archive, _: LabelFolderWriter(archive),
    "dota": lambda archive, _: DotaWriter(archive),
    "cvat": lambda archive, options: CvatWriter(archive, options.splits.names),
    "label-studio": lambda archive, options: LabelStudioWriter(archive, options.annotated),
}
TOOL_FORMATS = frozenset(_WRITERS)
"""Formats that `write_tool_dataset` writes."""


def write_tool_dataset(
    form: str, pages: Pages, target: Path, images: Blobs | None, *, options: DatasetOptions
) -> tuple[Counter[str], Counter[str]]:
    """Write a dataset, a picture at a time.

    Returns:
        How many pictures have each kind of annotations, and how many inferences were left out, by reason.
    """
    sources: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    with Archive(target, images) as archive:
        writer, sidecar = _WRITERS[form](archive, options), archive.add_text_file(SIDECAR)
        for record in chain.from_iterable(pages):
            try:
                picture, path = _write(record, archive, writer, images=images, options=options)
            except LeftOutError as reason:
                left_out[str(reason)] += 1
                continue
            sources[picture.source] += 1
            sidecar.write(msgspec.json.encode(_about(picture, path)) + b"\n")
        writer.finish()
    return sources, left_out


def _write(
    record: StoredInference,
    archive: Archive,
    writer: FormatWriter,
    *,
    images: Blobs | None,
    options: DatasetOptions,
) -> tuple[Picture, str]:
    chosen = choose_annotations(record, options.annotated)
    if chosen is None:
        raise LeftOutError("it has no ground truth")
    data = None if images is None else stored_image(record, images)
    if images is not None and data is None:
        raise LeftOutError("its image is not stored")
    if data is not None and options.upright:
        data = upright(data)
    source, annotations = chosen
    picture = Picture(
        record=record,
        name=image_name(record),
        split=options.splits.split_of(record),
        source=source,
        annotations=annotations,
        link=link_of(record, options.image_url),
    )
    path = writer.add(picture)
    if data is not None:
        archive.write_image(path, data)
    return picture, path


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
