"""The folder of a model's versions: which one is quantized, and where the new one is written.

A new version is written into a hidden folder beside the others, and renamed once it is judged: a folder whose name is no
number is never served, whenever the command is ended.
"""

import fcntl
import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from quadriga.engine.models.model import model_folder
from quadriga.engine.models.model_archives import archive_name
from quadriga.engine.models.model_folders import find_models, find_versions
from quadriga.engine.models.runners.session import LoadError
from quadriga.extras.tuning.quantizer import QuantizationError
from quadriga.store.query.names import find_model_name, unknown_model_text
from quadriga.store.records.disk import sync_path

STAGING = ".quantizing"
"""Folder of a version that is not judged yet; a command that was killed leaves it to the next."""

MAX_SIDECAR_BYTES = 64 << 20
"""Size above which a file beside the graph is no sidecar."""

_VERSION_LABELS = re.compile(r"^[ \t]*version_labels[ \t]*=[ \t]*\[[^\]]*\][^\n]*\n?", re.MULTILINE)


class SourceVersion(msgspec.Struct, frozen=True):
    """A version of a model, and the folder of all of its versions."""

    name: str
    folder: Path
    version: str
    path: Path
    """ONNX file of the version."""


def find_source(text: str, root: Path | None) -> SourceVersion:
    """Find the version that is meant: a folder, an ONNX file, or NAME[@VERSION] of a folder of models.

    Without a version it is the highest.

    Args:
        text: Folder of a model or of a version, ONNX file, or name of a model, as `m-<id>` too.
        root: Folder of models, for names.

    Raises:
        LoadError: There is no such model.
        QuantizationError: It is an archive, or a package of several graphs.
    """
    path = Path(text)
    version: str | None = None
    if not path.exists():
        text, _, named = text.partition("@")
        version = named or None
        path = Path(text)
    if path.exists():
        folder, version = _folder_of(path.resolve(), version)
        name = folder.name
    else:
        name, folder = _named(text, root)
    paths = find_versions(folder)
    if not paths:
        raise LoadError(
            f"expected a folder with an ONNX file, or one of versions, at {folder.name}"
        )
    if version is not None and version not in paths:
        raise LoadError(f"version not found: {version} of {name} (there is {', '.join(paths)})")
    version = version or next(iter(paths))
    if paths[version].is_dir():
        raise QuantizationError(
            f"expected a model of one graph, got {name}, a package of several: quantize it with what exported it"
        )
    return SourceVersion(name, folder, version, paths[version])


def _folder_of(path: Path, version: str | None) -> tuple[Path, str | None]:
    """Return the folder of the versions, and the version that the path names."""
    if path.is_file():
        if archive_name(path) is not None:
            raise QuantizationError(
                f"expected a folder, got the archive {path.name}: unpack it first"
            )
        path = model_folder(path)
    above = find_versions(path.parent) if path.name.isdecimal() else {}
    if path.name in above:
        return path.parent, path.name
    return path, version


def _named(name: str, root: Path | None) -> tuple[str, Path]:
    if root is None or not root.exists():
        raise LoadError(f"model not found: {name} (give its folder, or the setting models)")
    models = find_models(root)
    model_name = find_model_name(name, models)
    if model_name is None:
        raise LoadError(unknown_model_text(name, models))
    path = next(iter(models[model_name].values()))
    if path.is_file() and archive_name(path) is not None:
        raise QuantizationError(f"expected a folder, got the archive {path.name}: unpack it first")
    root = root.resolve()
    if root.is_file():
        return model_name, model_folder(root)
    is_root = root.name == model_name and not (root / model_name).is_dir()
    return model_name, root if is_root else root / model_name


def next_version(folder: Path) -> str:
    """Return the number after those of all versions, also of folders that are no version yet."""
    numbers = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    return str(max([1, *numbers]) + 1)


@contextmanager
def staging_folder(source: SourceVersion) -> Iterator[Path]:
    """Make an empty folder for a new version, with the sidecars of its source; it is removed if it is still there.

    Raises:
        QuantizationError: Another command quantizes this model.
        OSError: The folder cannot be written.
    """
    descriptor = os.open(source.folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise QuantizationError(
                f"{source.name} is being quantized by another command"
            ) from error
        staging = source.folder / STAGING
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            _copy_sidecars(model_folder(source.path), staging)
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    finally:
        os.close(descriptor)


def _copy_sidecars(source: Path, staging: Path) -> None:
    """Copy model.toml and the other files that describe a model; labels of a version stay with the old one."""
    for file in sorted(source.iterdir()):
        size = file.stat().st_size if file.is_file() else MAX_SIDECAR_BYTES + 1
        if size > MAX_SIDECAR_BYTES or ".onnx" in file.name or file.name.startswith("."):
            continue
        shutil.copyfile(file, staging / file.name)
    toml = staging / "model.toml"
    if not toml.exists():
        return
    text = _VERSION_LABELS.sub("", toml.read_text(encoding="utf-8"))
    if "version_labels" in tomllib.loads(text).get("runtime", {}):
        raise QuantizationError(
            "cannot leave version_labels out of the new version's model.toml: write it as `version_labels = [...]`"
        )
    toml.write_text(text, encoding="utf-8")


def publish(staging: Path, name: str) -> Path:
    """Rename a finished folder to `name`, so that it is there whole or not at all, also after a loss of power.

    Raises:
        OSError: A folder of that name is there already.
    """
    for file in staging.iterdir():
        sync_path(file)
    sync_path(staging)
    target = staging.with_name(name)
    staging.rename(target)
    sync_path(staging.parent)
    return target
