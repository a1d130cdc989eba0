"""Reads what exports write, and datasets of others: JSON lines, Parquet, Chariot's archive, COCO, other tools' forms."""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, BinaryIO, NamedTuple, cast
from zipfile import BadZipFile

import msgspec
from msgspec import Meta

from quadriga.store.blobs.interface import KEY_PATTERN, blob_key
from quadriga.store.changes.annotations import parse_annotations
from quadriga.store.changes.ground_truth import join_text
from quadriga.store.exchange.coco import (
    FILE_NAME,
    annotations_by_image,
    chariot_form,
    decode_imported,
    labels_by_id,
    written_names,
)
from quadriga.store.exchange.dataset_files import (
    DatasetFiles,
    nearest_to_root,
    open_dataset_files,
)
from quadriga.store.exchange.datasets import NOT_METADATA, OWN, nested
from quadriga.store.exchange.formats.reading import AnnotatedImage, DatasetImages
from quadriga.store.exchange.formats.writing import SIDECAR
from quadriga.store.exchange.text_files import decode_as, json_lines, to_utf8, utf8_lines
from quadriga.store.exchange.tool_datasets import (
    FORMS,
    ToolFormat,
    format_of,
    is_array,
    read_tool_dataset,
)
from quadriga.store.records import metadata
from quadriga.store.records.errors import PYARROW_MISSING, MetadataError, QueryError
from quadriga.store.records.records import ModelReference, ReviewStatus

_INT_32 = Meta(ge=0, le=(1 << 31) - 1)
_Count = Annotated[int, _INT_32]
_ID = re.compile("[0-9]{15,19}", re.ASCII)
_NULL = msgspec.Raw(b"null")
_EMPTY = msgspec.Raw(b"{}")


class _Model(ModelReference, frozen=True):
    version: str = ""
    sha256: str = ""


class _Input(msgspec.Struct, frozen=True):
    name: str = ""
    hash: Annotated[str, Meta(pattern=f"^{KEY_PATTERN}$")] | None = None
    width: _Count | None = None
    height: _Count | None = None
    mime: str | None = None
    kept: bool = False
    bytes: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None


class ImportedInference(msgspec.Struct, frozen=True):
    """An inference of a file, with the fields of `StoredInference`; its JSON is left as it was written."""

    id: Annotated[str, Meta(pattern="^[0-9]{1,18}$|^[0-8][0-9]{18}$")]
    model: _Model
    task: str
    request_id: str = ""
    image_no: _Count = 0
    action: str = ""
    latency_ms: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    input: _Input = _Input()
    predictions: msgspec.Raw = msgspec.Raw(b"[]")
    metadata: msgspec.Raw = _EMPTY
    ground_truth: msgspec.Raw = _NULL
    ground_truth_review: ReviewStatus = ""
    status: Annotated[int, Meta(ge=0, le=999)] = 200
    standard_metadata: msgspec.Raw = _EMPTY
    team: str = ""


class Item(NamedTuple):
    """One inference or image of a file."""

    place: str  # where it stands, for errors
    image: Callable[[], bytes | None]
    inference: ImportedInference | None
    truth: Any  # annotations in any of the forms that are taken; None for none
    metadata: dict[str, Any]  # checked
    names: Mapping[str, str]  # what the file says of `id`, `request_id` and `input.hash`

    def value(self, join: str) -> str | None:
        """Return the value of a field to join a ground truth by; None where it has none."""
        if join in self.names:
            return self.names[join]
        if join == "input.hash":
            data = self.image()
            return None if data is None else blob_key(data)
        value = metadata.flatten(self.metadata).get(join.removeprefix("meta."))
        return None if value is None or not join.startswith("meta.") else join_text(value)


Images = Callable[[str], bytes | None]  # gives the image of a name; None where there is none


def read(
    path: Path,
    task: str | None = None,
    *,
    accept_predictions: bool = False,
    formats: Mapping[str, ToolFormat] = {},
) -> Iterator[Item]:
    """Read JSON lines, Parquet, COCO's JSON, CVAT's XML, Label Studio's JSON, or a zip or folder of a dataset.

    Args:
        path: The file or folder.
        task: Full name of the task that the ground truth is of; None for what the file says.
        accept_predictions: Whether annotations that an export made from predictions are ground truth.
        formats: Formats of other tools beside YOLO, by name.

    Raises:
        QueryError: It is none of these, or a part of it means nothing; the message names the place.
        OSError: It cannot be read.
    """
    match ".zip" if path.is_dir() else path.suffix.lower():
        case ".jsonl":
            with path.open("rb") as file:
                yield from _lines(file, path.name, _no_image)
        case ".parquet":
            yield from _parquet(path)
        case ".json" | ".xml":
            yield from _annotation_file(path, task, formats)
        case ".zip":
            files = open_dataset_files(path)  # stays open: images are read later than their items
            try:
                yield from _dataset(files, task, formats, accept_predictions=accept_predictions)
            except (BadZipFile, zlib.error) as error:
                raise QueryError(f"cannot read {path.name}: {error}") from error
        case suffix:
            raise QueryError(
                "expected a folder, or a file .jsonl, .parquet, .json, .xml or .zip, "
                f"got {suffix or path.name}"
            )


def _parquet(path: Path) -> Iterator[Item]:
    if find_spec("pyarrow") is None:
        raise QueryError(PYARROW_MISSING)
    from quadriga.store.exchange.arrow_tables import read_parquet  # noqa: PLC0415 - an extra

    for number, (line, data) in enumerate(read_parquet(path), 1):
        yield _item(line, f"row {number}", partial(_given, data), {})


def _given(data: bytes | None, _: str) -> bytes | None:
    return data


def _no_image(_: str) -> bytes | None:
    return None


def _annotation_file(
    path: Path, task: str | None, formats: Mapping[str, ToolFormat]
) -> Iterator[Item]:
    """Read a file of annotations without images: COCO's, CVAT's, or tasks of Label Studio."""
    images = DatasetImages(DatasetFiles([], path))
    with path.open("rb") as file:
        name, annotations = "cvat", cast("BinaryIO", file)
        if path.suffix.lower() != ".xml":
            data = to_utf8(file.read(), path.name)
            if not is_array(data):
                yield from _coco(data, _no_image)
                return
            name, annotations = "label-studio", BytesIO(data)
        read_file = format_of(name, formats).read_file
        assert read_file is not None
        for image in read_file(annotations, path.name, images, task):
            yield _of_image(image, _no_image)


def _dataset(
    files: DatasetFiles,
    task: str | None,
    formats: Mapping[str, ToolFormat],
    *,
    accept_predictions: bool,
) -> Iterator[Item]:
    """Read the files of a folder or a zip: what an export wrote, or a dataset of a tool."""

    def image(name: str) -> bytes | None:
        """Read a file, whose name may be without its ending."""
        member = files.find(name)
        return None if member is None else files.read(member)

    if "inferences.jsonl" in files:
        with files.open("inferences.jsonl") as file:
            yield from _lines(file, "inferences.jsonl", image)
    elif "annotations.jsonl" in files:
        described = _described_images(files)
        with files.open("annotations.jsonl") as file:
            yield from _lines(file, "annotations.jsonl", image, described)
    elif coco := nearest_to_root(files, lambda name: FILE_NAME.fullmatch(name) is not None):
        for name in coco:
            yield from _coco(files.read(name), image)
    else:
        is_empty = True
        for annotated in read_tool_dataset(files, task, formats):
            is_empty = False
            yield _of_image(annotated, image, accept_predictions=accept_predictions)
        if is_empty and SIDECAR not in files:
            raise QueryError(
                f"no dataset found in {files.place.name}: expected inferences.jsonl, {FORMS}"
            )


def _described_images(files: DatasetFiles) -> dict[str, Any]:
    """Return the metadata of images by their paths, as a dataset for Chariot has them."""
    if "metadata.jsonl" not in files:
        return {}
    with files.open("metadata.jsonl") as file:
        rows = json_lines(utf8_lines(file, "metadata.jsonl"), "metadata.jsonl", dict[str, Any])
        return {_name(row): row.get("metadata") for _, row in rows}


def _of_image(
    annotated: AnnotatedImage, image: Images, *, accept_predictions: bool = False
) -> Item:
    """Return the item of an image of a tool's dataset."""
    _check_metadata(annotated.metadata, annotated.place)
    file_name = PurePosixPath(annotated.path).name
    is_predicted = annotated.is_predicted and not accept_predictions
    is_unsaid = is_predicted or annotated.is_background  # people may not have come to it yet
    return Item(
        place=annotated.place,
        image=partial(image, annotated.path),
        inference=None,
        truth=None if is_unsaid else annotated.annotations,
        metadata={"path": annotated.path, "file_name": file_name, **annotated.metadata},
        names=_names(annotated.path, annotated.about),
    )


def _lines(
    file: BinaryIO, name: str, image: Images, described: Mapping[str, Any] = {}
) -> Iterator[Item]:
    for number, line in enumerate(utf8_lines(file, name), 1):
        if line.strip():
            yield _item(line, f"line {number}", image, described)


def _item(line: bytes, place: str, image: Images, described: Mapping[str, Any]) -> Item:
    """Read a line: an inference, or annotations as Chariot writes them."""
    row = decode_as(dict[str, Any], line, f"{place}: expected a JSON object")
    if "annotations" not in row:
        return _of_inference(_decoded(line, place), place, image)
    path = _name(row)
    about = described.get(path) or {}
    _check_metadata(about, place)
    inference = _described(about, row["annotations"], place) if "inference_id" in about else None
    truth = None if about.get("annotations_from") == "predictions" else row["annotations"]
    keys = {key: str(row[key]) for key in ("path", "datum_id") if row.get(key)}
    return Item(
        place=place,
        image=lambda: image(path),
        inference=inference,
        truth=truth,
        metadata={**keys, **about},
        names=_names(path, about),
    )


def _of_inference(inference: ImportedInference, place: str, image: Images) -> Item:
    metadata = msgspec.json.decode(inference.metadata)
    _check_metadata(metadata, place)
    names = {"id": inference.id, "request_id": inference.request_id}
    if inference.input.hash is not None:
        names["input.hash"] = inference.input.hash
    return Item(
        place=place,
        image=lambda: image(f"images/{inference.id}"),
        inference=inference,
        truth=msgspec.json.decode(inference.ground_truth),
        metadata=metadata,
        names=names,
    )


def _described(about: dict[str, Any], annotations: Any, place: str) -> ImportedInference:
    """Make an inference again from what a dataset for Chariot says of it."""
    predictions = []
    if about.get("annotations_from") == "predictions":
        for annotation in parse_annotations(annotations):
            score = (annotation.pop("attributes", None) or {}).get("score")
            label = {"label": annotation.pop("label")} if "label" in annotation else {}
            predictions.append(label | ({} if score is None else {"score": score}) | annotation)
    fields = nested({field: about[key] for field, key in OWN.items() if key in about})
    fields["metadata"] = {key: value for key, value in about.items() if key not in NOT_METADATA}
    fields["predictions"] = predictions
    return _decoded(msgspec.json.encode(fields), place)


def _coco(data: bytes, image: Images) -> Iterator[Item]:
    document = decode_imported(data)
    labels = labels_by_id(document.categories)
    annotations = annotations_by_image(document.annotations, labels)
    for pictured in document.images:
        place, name = f"image {pictured.id}", pictured.file_name
        if bytes(pictured.inference) != b"null":
            yield _of_inference(_decoded(bytes(pictured.inference), place), place, image)
            continue
        listed = annotations.get(pictured.id, [])
        truth = [
            chariot_form(annotation, labels[annotation.category_id]) for _, annotation in listed
        ]
        yield Item(
            place=place,
            image=partial(_pictured, image, name),
            inference=None,
            truth=truth,
            metadata={"file_name": name},
            names=_names(written_names(name)[-1], {}),
        )


def _pictured(image: Images, name: str) -> bytes | None:
    pictures = (
        image(folder + written) for written in written_names(name) for folder in ("images/", "")
    )
    return next(filter(None, pictures), None)


def _decoded(text: bytes, place: str) -> ImportedInference:
    expected = f"{place}: expected an inference, or annotations of a path"
    return cast("ImportedInference", decode_as(ImportedInference, text, expected))


def _name(row: Mapping[str, Any]) -> str:
    return str(row.get("path") or row.get("datum_id") or "")


def _names(path: str, about: Mapping[str, Any]) -> dict[str, str]:
    """Return the values to join by that an export wrote of an image; its id may also be the name of its file."""
    stem = Path(path).stem
    named = {join: about.get(OWN[join]) for join in ("id", "request_id", "input.hash")}
    by_name = {"id": stem} if _ID.fullmatch(stem) else {}
    return by_name | {
        join: str(value) for join, value in named.items() if value and isinstance(value, str | int)
    }


def _check_metadata(value: Any, place: str) -> None:
    try:
        metadata.check_rules(value)
    except MetadataError as error:
        raise QueryError(f"{place}: {error}") from error
