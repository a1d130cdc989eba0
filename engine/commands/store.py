"""The commands `quadriga migrate` and `quadriga store`: what is done to a whole database.

And what all commands share that open a store.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import rich_click as click

from engine import settings as settings_module
from engine.settings import Settings, SettingsError


def store_options(command: Any) -> Any:
    """Give a command the flags that `store_settings` reads."""
    for flag, text in (
        ("--database", "SQLAlchemy URL of the store."),
        ("--data", "Data folder of the server. [default: data]"),
    ):
        command = click.option(flag, default=None, help=text)(command)
    return command


def store_settings(flags: dict[str, Any]) -> Settings:
    """Return the settings of a server with these flags; those that are None are left to it."""
    given = {name: value for name, value in flags.items() if value is not None}
    return settings_module.load(given, os.environ)


def fail(error: Exception) -> NoReturn:
    """End the command with what went wrong."""
    click.echo(f"quadriga: {error}", err=True)
    sys.exit(2)


def shown_now_and_then() -> Callable[[str], None]:
    """Return what shows how far a command is, once a second at most."""
    shown_at = time.monotonic()

    def show(text: str) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= 1:
            shown_at = time.monotonic()
            click.echo(text, err=True)

    return show


@click.command()
@store_options
def migrate(**flags: Any) -> None:
    """Bring the tables of the store up to date, or make them. Exits with 2 where that fails.

    A server does so itself when it starts. Where several share a database, do it first, by hand.
    """
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 - other commands need no database

    from store.database import migrate as bring_up_to_date  # noqa: PLC0415 - as above
    from store.errors import StoreError  # noqa: PLC0415 - as above

    try:
        before, after = bring_up_to_date(store_settings(flags).database_url)
    except (SettingsError, StoreError, DBAPIError) as error:
        fail(error)
    if before == after:
        click.echo(f"at revision {after} already")
    else:
        click.echo(f"from {before or 'nothing'} to revision {after}")


@click.group()
def store() -> None:
    """Copy a store, compare two, derive again what one is found by."""


@store.command()
@store_options
def rebuild(**flags: Any) -> None:
    """Derive again what inferences are found by and counted in; a server may run meanwhile.

    For tables that were damaged, or that another version filled in another way. A rebuild that was
    stopped goes on when it is repeated: how far it is stands in the data folder.
    """
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 - other commands need no database

    from store.errors import StoreError  # noqa: PLC0415 - as above
    from store.upkeep.rebuild import rebuild as derive_again  # noqa: PLC0415 - as above

    show = shown_now_and_then()
    try:
        settings = store_settings(flags)
        derive_again(
            settings.database_url,
            settings.rebuild_file,
            lambda progress: show(f"{progress.table}: after {progress.after}"),
        )
    except (SettingsError, StoreError, DBAPIError, OSError) as error:
        fail(error)
    click.echo("rebuilt")


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--delete", is_flag=True, help="Remove from TO what FROM does not hold.")
def copy(source: str, target: str, delete: bool) -> None:  # noqa: FBT001 - a flag of the command line
    """Copy the database at the URL FROM to that at TO, such as SQLite's to PostgreSQL, or to ClickHouse.

    A copy that was stopped goes on when it is repeated. A server may write FROM meanwhile: repeat it
    until little is added, stop the server, and repeat it once more.
    """
    from store.errors import StoreError  # noqa: PLC0415 - as above
    from store.moving.copying import Progress  # noqa: PLC0415 - other commands need no database
    from store.moving.copying import copy as copy_store  # noqa: PLC0415 - as above

    show = shown_now_and_then()

    def report(progress: Progress) -> None:
        show(f"{progress.table} {progress.day}: {progress}")

    try:
        if target.startswith(("http://", "https://")):
            from store.moving.clickhouse_copying import copy as fill  # noqa: PLC0415 - an extra

            done = fill(source, target, report)
        else:
            done = copy_store(source, target, delete=delete, report=report)
    except ImportError as error:
        fail(
            StoreError(
                f"expected clickhouse-connect, got {error}: pip install quadriga[clickhouse]"
            )
        )
    except StoreError as error:
        fail(error)
    click.echo(str(done))


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
def verify(source: str, target: str) -> None:
    """Compare two databases day by day. Exits with 1 where they differ.

    Compared are ids, predictions, metadata and ground truth; days are those of UTC.
    """
    from store.errors import StoreError  # noqa: PLC0415 - as above
    from store.moving.comparison import Day  # noqa: PLC0415 - other commands need no database
    from store.moving.comparison import verify as verify_stores  # noqa: PLC0415 - as above

    compared = inferences = 0

    def show(day: Day) -> None:
        nonlocal compared, inferences
        compared += 1
        inferences += day.source.inferences
        if day.source != day.target:
            click.echo(
                f"{day.day} differs: {day.source.inferences:,} inferences, checksum "
                f"{day.source.checksum:016x}; {day.target.inferences:,}, {day.target.checksum:016x}"
            )

    try:
        different = verify_stores(source, target, show)
    except StoreError as error:
        fail(error)
    click.echo(f"{len(different)} of {compared} days differ; {inferences:,} inferences in FROM")
    sys.exit(1 if different else 0)
