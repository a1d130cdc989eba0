"""The commands `quadriga migrate` and `quadriga store`: what is done to a whole database."""

import os
import time
from typing import Any, NoReturn

import rich_click as click

from engine import settings as settings_module
from engine.settings import Settings, SettingsError

_DATA = click.option("--data", default=None, help="Data folder of the server. [default: data]")
_DATABASE = click.option("--database", default=None, help="SQLAlchemy URL of the store.")


@click.command()
@_DATA
@_DATABASE
def migrate(**flags: Any) -> None:
    """Bring the tables of the store up to date, or make them. Exits with 2 where that fails.

    A server does so itself when it starts. Where several share a database, do it first, by hand.
    """
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 - other commands need no database

    from store.database import migrate as bring_up_to_date  # noqa: PLC0415 - as above
    from store.errors import StoreError  # noqa: PLC0415 - as above

    settings = _settings(flags)
    try:
        before, after = bring_up_to_date(settings.database_url)
    except (StoreError, DBAPIError) as error:
        _fail(error)
    if before == after:
        click.echo(f"at revision {after} already")
    else:
        click.echo(f"from {before or 'nothing'} to revision {after}")


@click.group()
def store() -> None:
    """Work on a whole store."""


@store.command()
@_DATA
@_DATABASE
def rebuild(**flags: Any) -> None:
    """Derive again what inferences are found by and counted in; a server may run meanwhile.

    For tables that were damaged, or that another version filled in another way. A rebuild that was
    stopped goes on when it is repeated: how far it is stands in the data folder.
    """
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 - other commands need no database

    from store.errors import StoreError  # noqa: PLC0415 - as above
    from store.rebuild import Progress  # noqa: PLC0415 - as above
    from store.rebuild import rebuild as derive_again  # noqa: PLC0415 - as above

    settings = _settings(flags)
    shown_at = 0.0

    def show(progress: Progress) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= 1:
            shown_at = time.monotonic()
            click.echo(f"{progress.table}: after {progress.after}", err=True)

    try:
        derive_again(settings.database_url, settings.rebuild_file, show)
    except (StoreError, DBAPIError, OSError) as error:
        _fail(error)
    click.echo("rebuilt")


def _settings(flags: dict[str, Any]) -> Settings:
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return settings_module.load(given, os.environ)
    except SettingsError as error:
        _fail(error)


def _fail(error: Exception) -> NoReturn:
    click.echo(f"quadriga: {error}", err=True)
    raise SystemExit(2)
