"""The commands `quadriga migrate` and `quadriga store`: what is done to a whole database."""

import sys
import time
from collections.abc import Callable
from typing import Any

import rich_click as click

from quadriga.engine.commands.options import option, store_options, store_settings


def _progress_printer() -> Callable[[str], None]:
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
def migrate(**store: Any) -> None:
    """Bring the tables of the store up to date, or make them. Exits with 2 where that fails.

    A server does so itself when it starts. Where several share a database, do it first, by hand.
    """
    from quadriga.store.database import migrate as bring_up_to_date

    before, after = bring_up_to_date(store_settings(**store).database_url)
    if before == after:
        click.echo(f"at revision {after} already")
    else:
        click.echo(f"from {before or 'nothing'} to revision {after}")


@click.group()
def store() -> None:
    """Copy a store, compare two, derive again what one is found by."""


@store.command()
@store_options
def rebuild(**store: Any) -> None:
    """Derive again what inferences are found by and counted in; a server may run meanwhile.

    For tables that were damaged, or that another version filled in another way. A rebuild that was
    stopped goes on when it is repeated: how far it is stands in the data folder.
    """
    from quadriga.store.maintenance.rebuild import rebuild as derive_again

    show, settings = _progress_printer(), store_settings(**store)
    derive_again(
        settings.database_url,
        settings.rebuild_file,
        lambda progress: show(f"{progress.table}: after {progress.after}"),
    )
    click.echo("rebuilt")


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@option("--delete", "Remove from TO what FROM does not hold.", is_flag=True)
def copy(source: str, target: str, delete: bool) -> None:
    """Copy the database at the URL FROM to that at TO, such as SQLite's to PostgreSQL, or to ClickHouse.

    A copy that was stopped goes on when it is repeated. A server may write FROM meanwhile: repeat it
    until little is added, stop the server, and repeat it once more.
    """
    from quadriga.store.errors import StoreError
    from quadriga.store.replication.copying import CopyProgress, copy_store

    show = _progress_printer()

    def report(progress: CopyProgress) -> None:
        show(f"{progress.table} {progress.day}: {progress}")

    if target.startswith(("http://", "https://")):
        try:
            from quadriga.store.replication.clickhouse import backfill
        except ImportError as error:
            said = f"expected clickhouse-connect, got {error}: pip install quadriga[clickhouse]"
            raise StoreError(said) from error
        done = backfill(source, target, report)
    else:
        done = copy_store(source, target, delete=delete, report=report)
    click.echo(str(done))


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
def verify(source: str, target: str) -> None:
    """Compare two databases day by day. Exits with 1 where they differ.

    Compared are ids, predictions, metadata and ground truth; days are those of UTC.
    """
    from quadriga.store.replication.comparison import DayComparison
    from quadriga.store.replication.comparison import compare_stores as verify_stores

    compared = inferences = 0

    def show(day: DayComparison) -> None:
        nonlocal compared, inferences
        compared += 1
        inferences += day.source.inferences
        if day.source != day.target:
            click.echo(
                f"{day.day} differs: {day.source.inferences:,} inferences, checksum "
                f"{day.source.checksum:016x}; {day.target.inferences:,}, {day.target.checksum:016x}"
            )

    different = verify_stores(source, target, show)
    click.echo(f"{len(different)} of {compared} days differ; {inferences:,} inferences in FROM")
    sys.exit(1 if different else 0)
