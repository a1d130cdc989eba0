"""Overrides that a client sends with a load: a configuration over model.toml, files in place of a folder.

They come over the wire, so they cannot name a file outside the model's folder or code to import.
"""

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quadriga.engine.models.embedding import OTHER_MODEL_PREFIX
from quadriga.engine.models.model import PLATFORM
from quadriga.engine.models.model_archives import archive_name, read_archive
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.errors import InvalidRequest, TooLarge
from quadriga.proto.http.v2_extensions import config_json
from quadriga.proto.messages import ModelInfo
from quadriga.quoting import quoted
from quadriga.store.query.names import find_model_name

MAX_PATH_NAMES = 8
"""Maximum number of names in the path of a file."""

MAX_FILES = 1000
"""Maximum number of files that a client may send for a model."""

_RUNTIMES = {"platform": ("onnxruntime_onnx", PLATFORM), "backend": ("onnxruntime",)}
"""Names of what runs the models, Triton's first."""

_FREE_TEXTS = (
    *("labels", "features", "text", "runtime.version_labels"),
    *("input.name", "input.size_input", "monitor.embedding"),
)
"""Keys of model.toml whose texts are names of tensors or for people; all others are names that this server knows."""

_PATH_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class Override(msgspec.Struct, frozen=True):
    """Replacement of a model's folder, or values over its model.toml, until the next load without it."""

    config: dict[str, Any] = {}
    folder: str | None = None
    """Folder of the files that the client sent, which are the complete model."""


class ConfigTensor(msgspec.Struct, frozen=True):
    """Input or output in a configuration. Source: Triton, model_config.proto, ModelInput and ModelOutput."""

    name: str
    data_type: str = ""
    dims: list[int] | None = None


class VersionPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Choice of the versions to serve: all, the highest, or specific ones.

    Source: Triton, model_config.proto, ModelVersionPolicy.
    """

    all: dict[str, Any] | None = None
    latest: dict[Literal["num_versions"], Annotated[int, Meta(ge=1)]] | None = None
    specific: dict[Literal["versions"], list[int]] | None = None

    def choose(self, versions: Iterable[str]) -> list[str]:
        """Choose among versions, given highest first."""
        available = list(versions)
        if self.latest is not None:
            return available[: self.latest.get("num_versions", 1)]
        if self.specific is None:
            return available
        chosen = [str(version) for version in self.specific.get("versions", ())]
        if not chosen or not set(chosen) <= set(available):
            raise LoadError(
                f"config: expected versions among {', '.join(available)}, got {', '.join(chosen) or 'none'}"
            )
        return [version for version in available if version in chosen]


def read_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], VersionPolicy]:
    """Read a configuration: keys of model.toml, and the supported ones of Triton.

    Returns:
        Values over model.toml, with unchecked keys; and the version policy.
    """
    values = dict(config)
    values.pop("name", None)  # `check_config` reads it and Triton's lists of tensors
    for key in ("input", "output"):
        if isinstance(values.get(key), list):
            del values[key]
    for key, names in _RUNTIMES.items():
        requested = values.pop(key, "")
        if requested not in ("", *names):
            expected = " or ".join(map(repr, names))
            raise LoadError(f"config: expected {key} to be {expected}, got {quoted(requested, 60)}")
    try:
        policy = msgspec.convert(values.pop("version_policy", {}), VersionPolicy, strict=False)
    except msgspec.ValidationError as error:
        raise LoadError(f"config: version_policy: {error}") from error
    for key in ("input", "output", "runtime"):
        if not isinstance(values.get(key, {}), dict):
            raise LoadError(f"config: expected {key} to be the table of model.toml")
    if "max_batch_size" in values:
        max_batch = values.pop("max_batch_size") or 1
        values["runtime"] = {**values.get("runtime", {}), "max_batch": max_batch}
    _refuse_references(values)
    _refuse_other_model(values.get("monitor"))
    if isinstance(values.get("labels"), str):
        check_path(values["labels"])
    return values, policy


def check_config(config: Mapping[str, Any], info: ModelInfo) -> None:
    """Check the name and tensors of a Triton configuration, which follow from the model's files.

    Raises:
        LoadError: The model has others.
    """
    name = config.get("name", "")
    if not isinstance(name, str) or (name and find_model_name(name, [info.name]) is None):
        raise LoadError(f"config: expected name to be {info.name!r}, got {quoted(name, 60)}")
    own = config_json(info)
    for key, tensors in (("input", info.inputs), ("output", info.outputs)):
        if not isinstance(rows := config.get(key), list):
            continue
        try:
            written = msgspec.convert(rows, list[ConfigTensor], strict=False)
        except msgspec.ValidationError as error:
            raise LoadError(f"config: {key}: {error}") from error
        known = {row["name"]: row for row in own[key]}
        shapes = {tensor.name: [*tensor.shape] for tensor in tensors}
        for tensor in written:
            row = known.get(tensor.name)
            if row is None:
                raise LoadError(
                    f"config: expected {key} to name tensors of the model ({', '.join(known)}), got "
                    f"{quoted(tensor.name, 60)}"
                )
            dims = [None, row["dims"]]
            if not config.get("max_batch_size"):
                dims.append(shapes[tensor.name])
            if tensor.data_type not in ("", row["data_type"]) or tensor.dims not in dims:
                raise LoadError(
                    f"config: expected {key} {tensor.name!r} to be {row['data_type']} of dims {row['dims']}, got "
                    f"{quoted(tensor.data_type, 20)} of dims {quoted(tensor.dims, 60)}"
                )


def _refuse_other_model(monitor: Any) -> None:
    """Refuse the embedding of another model, which whoever loads this one may have no right to use."""
    embedding = monitor.get("embedding") if isinstance(monitor, Mapping) else None
    if isinstance(embedding, str) and embedding.startswith(OTHER_MODEL_PREFIX):
        raise LoadError(
            "config: expected monitor.embedding to be a tensor of the graph or 'none', got "
            f"{quoted(embedding, 60)}: that of another model stands in model.toml"
        )


def _refuse_references(value: Any, key: str = "") -> None:
    """Refuse texts in the form module:attribute, so that a client names no code to import.

    Every key is checked but those of `_FREE_TEXTS`, so that a new key is, too.
    """
    if key in _FREE_TEXTS:
        return
    if key == "runtime.providers" and isinstance(value, Mapping):
        raise LoadError(
            f"config: expected {key} to be a list of names, got options: they may name files, so they stand in model.toml"
        )
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _refuse_references(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        for element in value:
            _refuse_references(element, key)
    elif isinstance(value, str) and ":" in value:
        raise LoadError(
            f"config: expected {key} to be a name of this server, got {quoted(value, 60)}"
        )


def check_path(path: str) -> None:
    """Check that a relative path stays inside its folder."""
    names = path.split("/")
    if len(names) > MAX_PATH_NAMES or not all(_PATH_NAME.fullmatch(name) for name in names):
        raise LoadError(
            f"expected a relative path of at most {MAX_PATH_NAMES} names of {_PATH_NAME.pattern}, "
            f"got {quoted(path, 200)}"
        )


def write_files(files: Mapping[str, bytes], directory: Path, max_bytes: int) -> Path:
    """Write files that a client sent, by their paths below the model's folder, into a new folder of their own.

    A single file that is an archive stands for the files in it.

    Raises:
        quadriga.proto.errors.InvalidRequest: A path is not allowed, or is a file and a folder.
        quadriga.proto.errors.TooLarge: The files exceed the limit.
        LoadError: The archive cannot be read.
    """
    size = sum(map(len, files.values()))
    if size > max_bytes:
        raise TooLarge(f"expected files of at most {max_bytes} bytes, got {size}")
    if len(files) > MAX_FILES:
        raise InvalidRequest(f"expected at most {MAX_FILES} files, got {len(files)}")
    if len(files) == 1:
        ((name, content),) = files.items()
        if "/" not in name and archive_name(PurePosixPath(name)) is not None:
            files = read_archive(name, content, max_bytes)
    for path in files:
        try:
            check_path(path)
        except LoadError as error:
            raise InvalidRequest(f"file:{path:.200}: {error}") from error
        if PurePosixPath(path).name == "model.toml":
            raise InvalidRequest(
                f"file:{path}: expected what model.toml says as config, got a file"
            )
        for above in map(str, PurePosixPath(path).parents):
            if above in files:
                raise InvalidRequest(f"file:{path}: expected a folder {above!r}, got a file")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="files-", dir=directory))
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return folder
