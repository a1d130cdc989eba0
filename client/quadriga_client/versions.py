"""Models and versions as callers name them: `name`, `name@version`, versions as text or whole number."""

from collections.abc import Mapping
from typing import Any

from .errors import InputError

Version = str | int
"""Version of a model."""


def split_version(model: str, version: Version | None = None) -> tuple[str, str | None]:
    """Return the name and the version of a model; None as version if neither argument has one.

    Args:
        model: `name` or `name@version`; no model's name has an @.
        version: The version, if it does not stand in `model`.

    Raises:
        InputError: The arguments have two different versions, or the text is not of this form.
    """
    name, mark, own = model.partition("@")
    chosen = None if version is None else str(version)
    if not mark:
        return name, chosen
    if not name or not own:
        raise InputError(f"expected a model as name or name@version, got {model!r}")
    if chosen not in (None, own):
        raise InputError(f"expected one version, got {model!r} and version {version!r}")
    return name, own


def model_body(model: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a request about a model: `parameters` that are not None, with versions as texts.

    A `_` at the end of a name is dropped, as in `from_`. Each of `compare` may be `name` or `name@version`.

    Raises:
        InputError: `model` and `version` have two different versions.
    """
    name, version = split_version(model, parameters.get("version"))
    body = {"model": name, **version_texts(parameters)}
    if version is not None:
        body["version"] = version
    if isinstance(body.get("compare"), list | tuple):
        body["compare"] = [_compared(other) for other in body["compare"]]
    return body


def version_texts(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that are not None; versions, also those of windows in them, are texts."""
    values = {name.rstrip("_"): value for name, value in parameters.items() if value is not None}
    return {
        name: str(value) if name == "version" else _window(value) for name, value in values.items()
    }


def _window(value: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("version"), int):
        return {**value, "version": str(value["version"])}
    return value


def _compared(other: Any) -> Any:
    if not isinstance(other, str):
        return _window(other)
    name, version = split_version(other)
    return {"model": name} if version is None else {"model": name, "version": version}
