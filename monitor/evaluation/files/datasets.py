"""A dataset: what its layout is, and its images with what is true of them.

Source: Chariot, dataset archives; COCO, "Data format"; torchvision, ImageFolder.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import msgspec

from quadriga.monitor.evaluation.evaluators import decode
from quadriga.monitor.evaluation.files.coco_wire import annotated_images
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.store.changes.annotations import parse_annotations
from quadriga.store.errors import ChangeError
from quadriga.store.exchange.datasets import GPS, OWN

IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif"}
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
"""Names of folders that hold a folder for each label."""

_INSTANCES = re.compile(r"(?:instances|annotations)(?:[_-](\w+))?\.json", re.ASCII)
_NOT_METADATA = {*OWN.values(), *GPS.values(), "created_at", "annotations_from"}


class Files(NamedTuple):
    """Names with `/`, relative to the folder, in order; read from several threads."""

    names: list[str]
    place: Path
    archive: ZipFile | None = None

    def read(self, name: str) -> bytes:
        """Read one.

        Raises:
            OSError: It cannot be read.
        """
        if self.archive is None:
            return (self.place / name).read_bytes()
        try:
            return self.archive.read(name)
        except (KeyError, BadZipFile, EOFError) as error:
            raise OSError(f"expected {name} in {self.place.name}, got: {error}") from error


def open_files(place: Path) -> Files:
    """List the files of a dataset."""
    if place.is_dir():
        found = (path.relative_to(place) for path in place.rglob("*") if path.is_file())
        return Files(sorted(path.as_posix() for path in found), place)
    try:
        archive = ZipFile(place)
    except BadZipFile as error:
        raise EvaluationError(
            f"expected {place.name} to be a folder or a zip, got: {error}"
        ) from error
    return Files(sorted(one for one in archive.namelist() if one[-1:] != "/"), place, archive)


class DatasetImage(NamedTuple):
    """One image."""

    path: str
    """In the dataset."""
    read: Callable[[], bytes]
    """Raises an `OSError` where it cannot."""
    truth: list[dict[str, Any]] | None
    """In the form of the wire; None where it is not known."""
    split: str | None = None
    metadata: dict[str, Any] = {}  # noqa: RUF012 - of a tuple, nobody changes it


class _Row(msgspec.Struct):
    path: str | None = None
    datum_id: str | None = None
    split: str | None = None
    annotations: Any = None
    metadata: dict[str, Any] = {}


def read_dataset(place: Path, task: str) -> list[DatasetImage]:
    """Read what is there, without the images themselves.

    The place is a folder or a zip: of Chariot's layout, with COCO's instances, or with a folder a label. The
    task, its full name, says which shape of COCO's annotations counts.

    Raises:
        EvaluationError: It is none of these, or a part of it means nothing; the message names the place.
        OSError: It cannot be read.
    """
    files = open_files(place)
    rows = _highest(files, lambda name: name == "annotations.jsonl")
    instances = _highest(files, lambda name: _INSTANCES.fullmatch(name) is not None)
    try:
        if rows:
            found = _chariot(files, rows[0])
        elif instances:
            found = [image for name in instances for image in _coco(files, name, task)]
        else:
            found = list(_by_folder(files))
    except ChangeError as error:
        raise EvaluationError(str(error)) from error
    if not found:
        raise EvaluationError(
            f"expected {place.name or place} to hold annotations.jsonl, COCO's instances*.json or"
            " annotations*.json, or a folder of images for each label, got none"
        )
    return found


def _highest(files: Files, is_one: Callable[[str], bool]) -> list[str]:
    """Return the files of such a name that lie highest."""
    found = [PurePosixPath(name) for name in files.names if is_one(PurePosixPath(name).name)]
    depth = min((len(path.parts) for path in found), default=0)
    return [str(path) for path in found if len(path.parts) == depth]


def _chariot(files: Files, name: str) -> list[DatasetImage]:
    folder = PurePosixPath(name).parent
    whole = set(files.names)
    described: dict[str, dict[str, Any]] = {}
    beside = str(folder / "metadata.jsonl")
    if beside in whole:
        for row, _ in _rows(files, beside):
            described[row.path or row.datum_id or ""] = row.metadata
    by_stem = {one.rpartition(".")[0]: one for one in files.names}
    found = []
    for row, where in _rows(files, name):
        path = row.path or row.datum_id
        if not path:
            raise EvaluationError(f"{where}: expected a path or a datum_id, got none")
        about = described.get(path, {}) | row.metadata
        is_truth = about.get("annotations_from") != "predictions" and row.annotations is not None
        truth = parse_annotations(row.annotations, f"{where}: annotations") if is_truth else None
        image = str(folder / path)
        image = image if image in whole else by_stem.get(image, image)
        metadata = {key: value for key, value in about.items() if key not in _NOT_METADATA}
        metadata |= {ours: about[theirs] for ours, theirs in GPS.items() if theirs in about}
        found.append(DatasetImage(path, partial(files.read, image), truth, row.split, metadata))
    return found


def _rows(files: Files, name: str) -> Iterator[tuple[_Row, str]]:
    for number, line in enumerate(files.read(name).splitlines(), 1):
        if line.strip():
            where = f"{name}:{number}"
            yield decode(_Row, line, where), where


def _coco(files: Files, name: str, task: str) -> Iterator[DatasetImage]:
    matched = _INSTANCES.fullmatch(PurePosixPath(name).name)
    split = matched[1] if matched else None
    places = _places(files, name, split)
    for file_name, truth in annotated_images(files.read(name), name, task):
        path = places(file_name)
        yield DatasetImage(path, partial(files.read, path), truth, split)


def _places(files: Files, name: str, split: str | None) -> Callable[[str], str]:
    """Return what finds an image of COCO: beside its file, or in one of the usual folders."""
    whole = set(files.names)
    by_name: dict[str, list[str]] = {}
    for one in files.names:
        by_name.setdefault(PurePosixPath(one).name, []).append(one)
    parent = PurePosixPath(name).parent
    folders = [
        above / below
        for above in (parent, parent.parent)
        for below in ("", "images", split or "", f"images/{split or ''}")
    ]

    def find(file_name: str) -> str:
        same = by_name.get(PurePosixPath(file_name).name, [])
        likely = (path for path in (str(one / file_name) for one in folders) if path in whole)
        return next(likely, same[0] if len(same) == 1 else file_name)

    return find


def _by_folder(files: Files) -> Iterator[DatasetImage]:
    """Read a folder for each label, maybe below one for each split."""
    paths = [PurePosixPath(name) for name in files.names]
    paths = [path for path in paths if path.suffix.lower() in IMAGES and len(path.parts) > 1]
    has_splits = {path.parts[0].lower() for path in paths} <= SPLITS
    for path in paths:
        split = path.parts[0] if has_splits and len(path.parts) > 2 else None
        label = path.parts[0 if split is None else 1]
        read = partial(files.read, str(path))
        yield DatasetImage(str(path), read, [{"label": label}], split)
