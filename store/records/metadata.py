"""Rules of metadata, and its flat form: what an inference can be found by.

Metadata is a plain nested JSON object. `{"location": {"floor": 2}}` is searched as `location.floor`.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from quadriga.store.records.errors import MetadataError

Scalar = str | int | float | bool

MAX_BYTES = 64 * 1024
MAX_DEPTH = 8
MAX_KEY_CHARACTERS = 256
MAX_PATH_BYTES = 2560
"""Maximum bytes of a dotted path in UTF-8: PostgreSQL indexes at most 2,704. Only keys beyond ASCII reach it."""

MAX_PATHS = 256
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
SMALLEST_INTEGER, LARGEST_INTEGER = -(1 << 63), (1 << 63) - 1


def decode(encoded: str | bytes | msgspec.Raw) -> dict[str, Any]:
    """Read stored metadata; a `msgspec.MsgspecError` if it is no JSON object."""
    return _decoder.decode(encoded)


def check(metadata: Any) -> None:
    """Check metadata of a request, as `check_rules`; a place in it must be on earth, to be found there."""
    check_rules(metadata)
    for key, bound in (("latitude", 90), ("longitude", 180)):
        value = metadata.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not -bound <= value <= bound:
            raise MetadataError(
                f"expected metadata {key!r} to be from {-bound} to {bound} degrees, got {value}"
            )


def check_rules(metadata: Any) -> None:
    """Check that metadata keeps the rules; a `MetadataError` names the key that does not."""
    flatten(metadata)
    try:
        size = len(msgspec.json.encode(metadata))
    except UnicodeEncodeError as error:
        raise MetadataError("expected text of metadata to be Unicode, got a surrogate") from error
    if size > MAX_BYTES:
        raise MetadataError(f"expected metadata of at most {MAX_BYTES} bytes, got {size}")


def flatten(metadata: Any) -> dict[str, Scalar]:
    """Return what can be compared, dotted path to string, number or boolean; errors as of `index`."""
    return {
        path: value
        for path, value in index_paths(metadata).items()
        if not isinstance(value, dict | list)
    }


def index_paths(metadata: Any) -> dict[str, Any]:
    """Return every path that exists: as `flatten`, and lists and objects, for their presence alone.

    A list is given as `[]`, an object as `{}`; nulls are absent.

    Raises:
        MetadataError: A key or a value breaks a rule, or two keys flatten to the same path.
    """
    if not isinstance(metadata, dict):
        raise MetadataError(f"expected metadata to be an object, got {_kind(metadata)}")
    paths: dict[str, Any] = {}
    for path, value in _walk(metadata, "", 1):
        if len(path) > MAX_PATH_BYTES // 4:
            _check_path(path)
        if path in paths:
            raise MetadataError(f"expected metadata key {path!r} once, got it twice once flattened")
        paths[path] = value
    if len(paths) > MAX_PATHS:
        raise MetadataError(f"expected at most {MAX_PATHS} metadata keys, got {len(paths)}")
    return paths


def _walk(node: dict[Any, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > MAX_DEPTH:
        raise MetadataError(f"expected metadata at most {MAX_DEPTH} deep, got {prefix[:-1]!r}")
    for key, value in node.items():
        _check_key(key, prefix)
        path = prefix + key
        if isinstance(value, dict):
            yield path, {}
            yield from _walk(value, path + ".", depth + 1)
        elif isinstance(value, list):
            yield path, []
        elif value is not None:
            _check_scalar(value, path)
            yield path, value


def _check_key(key: Any, prefix: str) -> None:
    if not isinstance(key, str):
        raise MetadataError(
            f"expected metadata keys under {prefix!r} to be strings, got {_kind(key)}"
        )
    if not key or len(key) > MAX_KEY_CHARACTERS:
        raise MetadataError(
            f"expected metadata key {prefix + key[:32]!r} to be 1 to {MAX_KEY_CHARACTERS} characters, "
            f"got {len(key)}"
        )
    if _CONTROL.search(key):
        raise MetadataError(f"expected metadata key {prefix + key!r} without control characters")


def _check_path(path: str) -> None:
    size = len(path.encode(errors="replace"))
    if size > MAX_PATH_BYTES:
        raise MetadataError(
            f"expected metadata {path[:32]!r}… to be within keys of {MAX_PATH_BYTES} bytes together, got {size}"
        )


def _check_scalar(value: Any, path: str) -> None:
    """Refuse what a database cannot keep exactly."""
    if isinstance(value, str):
        if "\0" in value:
            raise MetadataError(f"expected metadata {path!r} to be text without NUL, got one")
    elif isinstance(value, int):  # a bool is one
        if not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
            bits = value.bit_length() + 1
            raise MetadataError(f"expected metadata {path!r} to fit 64 bits, got {bits} bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise MetadataError(f"expected metadata {path!r} to be a finite number, got {value}")
    else:
        raise MetadataError(
            f"expected metadata {path!r} to be a string, number, boolean, null, object or list, "
            f"got {_kind(value)}"
        )


def _kind(value: Any) -> str:
    return type(value).__name__
