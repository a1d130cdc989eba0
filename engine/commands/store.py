"""The commands `quadriga migrate` and `quadriga store`: work on a whole database."""

import sys
from datetime import UTC, datetime
from typing import Any

import rich_click as click

from quadriga.engine.commands.options import option
from quadriga.engine.commands.output import progress_printer
from quadriga.engine.commands.store_options import store_options, store_settings
from quadriga.engine.config import extras
from quadriga.store.records.disk import create_privately
from quadriga.store.records.ids import EPOCH_MS, LARGEST_ID, time_ms


@click.command()
@store_options
@option(
    "--check is_check",
    "Only say whether there is anything to do; exits with 1 if so.",
    is_flag=True,
)
@option(
    "--months",
    "Make PostgreSQL's partitions of so many months, for servers whose user may make no tables.",
    type=click.IntRange(1, 120),
)
@option(
    "--since",
    "First of --months, such as before an import of older inferences. [default: this month]",
    "YYYY-MM",
    type=click.DateTime(["%Y-%m"]),
)
def migrate(is_check: bool, months: int | None, since: datetime | None, **store: Any) -> None:
    """Create the tables of the store, or bring them up to date. Exits with 2 if that fails.

    A server does so when it starts. If several servers share a database, run this before them. A database of a newer version
    is left as it is, and refused unless it says that this version may run on it.
    """
    from quadriga.store.database.compatibility import may_run_meanwhile
    from quadriga.store.database.database import compare_revision
    from quadriga.store.database.database import migrate as bring_up_to_date

    if months is None and since is not None:
        raise click.UsageError("--since can only be used with --months")
    if months is not None and since is not None:
        _check_years(months, since)
    if months is not None and is_check:
        raise click.UsageError("--months cannot be used with --check")
    settings = store_settings(**store, is_written=not is_check, reads_images=False)
    revisions = (compare_revision if is_check else bring_up_to_date)(settings.database_url)
    before, own = revisions.database, revisions.own
    if revisions.is_newer:
        click.echo(f"at revision {before} of a newer version: this one, of {own}, may run on it")
    elif before == own:
        click.echo(f"at revision {own} already")
    elif not is_check:
        click.echo(f"from {before or 'nothing'} to revision {own}")
    else:
        click.echo(f"to be brought from {before or 'nothing'} to revision {own}")
        if before is not None and may_run_meanwhile(before, own):
            click.echo(f"servers of revision {before} may run meanwhile and afterwards")
        elif before is not None:
            click.echo(f"stop the servers of revision {before} first: they cannot run on {own}")
        sys.exit(1)
    if months is not None:
        _make_months(settings.database_url, months, since)


def _check_years(count: int, since: datetime) -> None:
    """Refuse months in which no inference can be: ids begin and end with certain years."""
    begin, end = (
        datetime.fromtimestamp(ms / 1000, UTC).year for ms in (EPOCH_MS, time_ms(LARGEST_ID))
    )
    last_year = since.year + (since.month + count - 2) // 12
    if since.year < begin or last_year >= end:
        raise click.UsageError(
            f"expected the months to be of {begin} to {end - 1}, got {count} from {since:%Y-%m} on"
        )


def _make_months(url: str, count: int, since: datetime | None) -> None:
    """Make the partitions of months, and say which."""
    from quadriga.store.database.database import writer_engine
    from quadriga.store.database.partitions import make_months

    first = None if since is None else (since.year, since.month)
    with writer_engine(url) as engine, engine.connect() as connection:
        months = make_months(connection, count, first)
    click.echo(
        f"partitions from {months[0]} to {months[-1]}" if months else "SQLite has no partitions"
    )


@click.group()
def store() -> None:
    """Copy a store, write its file anew, or rebuild derived tables."""


@store.command()
@store_options
def rebuild(**store: Any) -> None:
    """Rebuild the tables derived from inferences, for search and counts; a server may run meanwhile.

    Use it for damaged tables, or tables that another version filled differently. An interrupted
    rebuild continues when it is repeated: its progress is saved in the data folder.
    """
    from quadriga.store.maintenance.rebuild import rebuild as derive_again

    show = progress_printer()
    settings = store_settings(**store, is_written=True, reads_images=False)
    derive_again(
        settings.database_url,
        settings.rebuild_file,
        lambda progress: show(f"{progress.table}: after {progress.after}"),
    )
    click.echo("rebuilt")


@store.command()
@store_options
def vacuum(**store: Any) -> None:
    """Write SQLite's file anew, without what its pages keep of deleted rows; PostgreSQL runs VACUUM.

    SQLite needs twice the size of its file on the disk, which is checked first. A server may run: what comes meanwhile waits
    in its journal.
    """
    from quadriga.store.maintenance.vacuum import vacuum as write_anew

    freed_bytes = write_anew(
        store_settings(**store, is_written=True, reads_images=False).database_url
    )
    click.echo(f"done; the file is {freed_bytes:,} bytes smaller")


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@option("--delete", "Delete from TO what FROM does not contain.", is_flag=True)
def copy(source: str, target: str, delete: bool) -> None:
    """Copy the database at the URL FROM to the one at TO, such as SQLite to PostgreSQL, or to ClickHouse.

    An interrupted copy continues when it is repeated. A server may write to FROM meanwhile: repeat
    the copy until little is added, stop the server, and repeat it once more: then both have as many inferences.
    """
    from quadriga.store.maintenance.copying import CopyProgress, copy_store, count_inferences

    create_privately()
    show = progress_printer()

    def report(progress: CopyProgress) -> None:
        show(f"{progress.table} {progress.day}: {progress}")

    if target.startswith(("http://", "https://")):
        backfill = extras.load("clickhouse_copy", "a copy to ClickHouse")
        copied = backfill(source, target, report)
    else:
        copied = copy_store(source, target, delete=delete, report=report)
        click.echo(
            f"inferences: {count_inferences(source):,} in FROM, {count_inferences(target):,} in TO"
        )
    click.echo(str(copied))
