"""Options of the commands that open a store, the settings that they choose, and the store itself."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import rich_click as click
from click import get_current_context

from quadriga.engine.commands.options import PATH, combine, option
from quadriga.engine.config.settings import Settings, SettingsError, load

SEARCH_TIMEOUT_S = 5.0
"""Maximum time of a search that a person waits for, as of a search by HTTP."""

_CONFIG = "quadriga.config"
"""Key of the context under which the file of --config is."""


def _keep_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    context.meta[_CONFIG] = path


config_option = option(
    "--config",
    "Settings file of the server. [default: QUADRIGA_CONFIG, else quadriga.toml]",
    type=PATH,
    callback=_keep_config,
    expose_value=False,
)
store_options = combine(
    option("--data", "Data folder of the server. [default: data]"),
    option("--database", "SQLAlchemy URL of the store."),
    config_option,
)
"""Options of the commands that open a store; `store_settings` reads them."""


def store_settings(
    data: str | None,
    database: str | None,
    *,
    is_written: bool = False,
    reads_images: bool = True,
    must_exist: bool = False,
) -> Settings:
    """Return the settings of a store, as `load_settings` does.

    A command that writes the store makes its files for its user alone from then on, as the server does.

    Raises:
        SettingsError: The server of the data folder has another database or, where images are read, others; a database
            that is named without a folder is that of no folder. Or there is no store, where it must exist.
    """
    from quadriga.engine.config.store_places import check_places
    from quadriga.store.database.sqlite import database_path
    from quadriga.store.records.disk import create_privately

    if is_written:
        create_privately()
    settings = load_settings(data=data, database=database)
    if database is None or data is not None:
        check_places(settings, reads_images=reads_images)
    file = database_path(settings.database_url) if must_exist else None
    if file is not None and not file.exists() and not settings.journal_directory.is_dir():
        raise SettingsError(
            f"no store in {settings.data}: set --data, --database or --config as for the server"
        )
    return settings


def load_settings(**options: str | None) -> Settings:
    """Return the settings with these values; None leaves a value to the environment, the settings file or default."""
    flags = {name: value for name, value in options.items() if value is not None}
    context = get_current_context(silent=True)
    file = None if context is None else context.meta.get(_CONFIG)
    return load(flags, os.environ, file)


@contextmanager
def open_store(settings: Settings, timeout_s: float | None = None) -> Iterator[tuple[Any, Any]]:
    """Yield what reads the inferences of a store, and its images.

    Args:
        settings: Settings of the store.
        timeout_s: Maximum time of a search; None for that of a job.
    """
    from quadriga.engine.assembly.store_access import open_reader
    from quadriga.store.jobs.runner import QUERY_TIMEOUT_S

    inferences, blobs = open_reader(settings, timeout_s or QUERY_TIMEOUT_S, served=tuple)
    with closing(inferences):
        yield inferences, blobs
