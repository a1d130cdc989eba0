"""What few use and nothing needs: the one table by which the engine finds it in `quadriga.extras`.

Nothing of the engine imports an extra, but an extra may import all of it. To delete one, delete its folder and its rows.
"""

from contextlib import suppress
from pkgutil import resolve_name
from typing import Any, NamedTuple

import msgspec

ROOT = "quadriga.extras"


class Extra(NamedTuple):
    """An object that an extra offers."""

    path: str
    """Import string of the object, below `quadriga.extras`."""
    packages: str = ""
    """Packages that its modules import, for messages; none for what the project requires itself."""
    option: str = ""
    """Optional dependency of the project that brings them."""


EXTRAS = {
    "clickhouse": Extra("clickhouse.sending:ClickHouseSender", "clickhouse-connect", "clickhouse"),
    "clickhouse_copy": Extra("clickhouse.sending:backfill", "clickhouse-connect", "clickhouse"),
    "profile": Extra("tuning.profile:profile_command"),
    "quantize": Extra("tuning.quantize:quantize_command"),
    "label_studio": Extra("label_studio.routes:label_studio_routes"),
    "object_store": Extra("object_stores.fetched:open_store", "obstore", "s3"),
    "polled_folder": Extra("object_stores.polled:open_folder"),
    "sign_on": Extra("sign_on.sign_on:SignOn", "Authlib and PyJWT", "oidc"),
    "log_in_routes": Extra("sign_on.pages:log_in_routes", "Authlib and PyJWT", "oidc"),
}
"""Objects by what they are for: commands by their names, and parts of a server."""


SETTINGS = {
    "clickhouse": Extra("clickhouse.settings:ClickHouseSettings"),
    "label_studio": Extra("label_studio.settings:LabelStudioSettings"),
    "object_stores": Extra("object_stores.settings:ObjectStoreSettings"),
    "sign_on": Extra("sign_on.settings:SignOnSettings"),
}
"""Structs that declare the settings of extras, by the names of their folders."""


DATASET_FORMATS = {
    "cvat": Extra("dataset_formats.cvat:CVAT"),
    "dota": Extra("dataset_formats.dota:DOTA"),
    "imagefolder": Extra("dataset_formats.label_folders:LABEL_FOLDERS"),
    "label-studio": Extra("label_studio.tasks:LABEL_STUDIO"),
}
"""Formats of datasets, by name, see `quadriga.store.exchange.tool_datasets.ToolFormat`."""


class MissingExtra(Exception):
    """An extra is not here, or a package that it needs."""


def settings_of(extra: str, user: str) -> type[msgspec.Struct]:
    """Return the struct that declares the settings of an extra; see `load`."""
    declaring: type[msgspec.Struct] = _load(SETTINGS[extra], user)
    return declaring


def load(name: str, user: str) -> Any:
    """Return the object of an extra.

    Args:
        name: Key of `EXTRAS`.
        user: Setting or command that needs it, for the message.

    Raises:
        MissingExtra: Its folder was deleted, or a package is not installed; the message says which.
        ImportError: Its code is at fault.
    """
    return _load(EXTRAS[name], user)


def dataset_formats() -> dict[str, Any]:
    """Return the formats of datasets whose folders are here, by name."""
    formats = {}
    for name, extra in DATASET_FORMATS.items():
        with suppress(MissingExtra):
            formats[name] = _load(extra, name)
    return formats


def _load(extra: Extra, user: str) -> Any:
    path = f"{ROOT}.{extra.path}"
    try:
        return resolve_name(path)
    except ImportError as error:
        if error.name and path.startswith(error.name):
            folder = f"{ROOT}.{extra.path.partition('.')[0]}"
            raise MissingExtra(f"{user} requires {folder}, which is not here") from error
        if not extra.packages:
            raise
        raise MissingExtra(
            f"{user} requires {extra.packages} ({error}): pip install 'quadriga[{extra.option}]'"
        ) from error
