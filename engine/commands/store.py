"""The commands that work on all that a server stores: `quadriga migrate`, `store`, `backup`, `restore` and `check`."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from quadriga.engine.commands.options import option
from quadriga.engine.commands.output import progress_printer
from quadriga.engine.commands.store_options import store_options, store_settings
from quadriga.engine.config import extras
from quadriga.engine.config.settings import Settings
from quadriga.store.records.disk import create_privately
from quadriga.store.records.ids import EPOCH_MS, LARGEST_ID, time_ms

_AS_JSON = option("--json as_json", "Print the result as JSON, and nothing else.", is_flag=True)


def _blobs(settings: Settings) -> Any:
    from quadriga.store.blobs.files import open_blobs

    return open_blobs(settings.blob_location)


@click.command("backup")
@click.argument("target")
@store_options
@option(
    "--no-images without_images",
    "Leave the images out, as where they have a backup of their own.",
    is_flag=True,
)
@option(
    "--no-database without_database",
    "Leave SQLite's file out, as where another tool copies it, afterwards.",
    is_flag=True,
)
@_AS_JSON
def backup_command(
    target: str, *, without_images: bool, without_database: bool, as_json: bool, **store: Any
) -> None:
    """Make a backup of all that a server stores in TARGET, a folder or s3://, gs:// or az://; the server may run.

    All that was acknowledged before the start is in it, but for what a PostgreSQL has: pg_dump backs that up, afterwards.
    Images that a backup in TARGET has already are not copied again. Exits with 1 if inferences have images that it did not find.
    """
    from quadriga.store.backup.making import make_backup
    from quadriga.store.backup.places import open_place

    settings = store_settings(**store, is_written=True)
    made = make_backup(
        Path(settings.data),
        settings.database_url,
        _blobs(settings),
        open_place(target),
        has_images=not without_images,
        has_database=not without_database,
        report=progress_printer(),
    )
    description = made.description
    place = f"{target.rstrip('/')}/{made.name}"
    if as_json:
        _print_backup(place, description, new_images=made.new_images)
    else:
        click.echo(f"{place}: {_counts(description)} ({made.new_images:,} new)")
        if description.missing_images:
            click.echo(
                f"{description.missing_images:,} images were removed meanwhile, or are damaged",
                err=True,
            )
    if not description.has_database:
        click.echo("the database is not in this backup: back it up now, as by pg_dump", err=True)
    if description.unfound_images:
        click.echo(
            f"{description.unfound_images:,} images of inferences were not found: "
            "set QUADRIGA_BLOBS as for the server, or repeat it if images were removed meanwhile",
            err=True,
        )
    sys.exit(1 if description.unfound_images else 0)


@click.command("restore")
@click.argument("backup")
@store_options
@option(
    "--no-database without_database",
    "Restore the data folder alone, beside a database that was copied after the backup.",
    is_flag=True,
)
@_AS_JSON
def restore_command(backup: str, *, without_database: bool, as_json: bool, **store: Any) -> None:
    """Restore BACKUP, or the newest one of a place, into an empty --data folder.

    Its files are compared with their hashes before anything is written. Exits with 1 if images of it are missing.
    """
    from quadriga.store.backup.places import find_backup
    from quadriga.store.backup.restoring import restore_backup

    settings = store_settings(**store, is_written=True)
    place, name = find_backup(backup)
    restored = restore_backup(
        place,
        name,
        Path(settings.data),
        settings.database_url,
        _blobs(settings),
        has_database=not without_database,
        report=progress_printer(),
    )
    description = restored.description
    if as_json:
        _print_backup(name, description, missing_images=restored.missing_images)
    else:
        server = f" of {description.host}, {description.folder}" if description.host else ""
        click.echo(
            f"{name}{server}: {_counts(description)}; "
            "start the server on it, or look at it with quadriga check"
        )
        if restored.missing_images:
            click.echo(f"{restored.missing_images:,} images are not in the backup", err=True)
    sys.exit(1 if restored.missing_images else 0)


def _print_backup(name: str, description: Any, **counts: int) -> None:
    """Print a backup as JSON, without its list of files."""
    shown = msgspec.to_builtins(msgspec.structs.replace(description, files={}))
    click.echo(json.dumps({"backup": name, **shown, **counts}))


def _counts(stored: Any) -> str:
    return f"{stored.inferences:,} inferences, {stored.journaled:,} in the journal, {stored.images:,} images"


@click.command("check")
@store_options
@option("--fast", "Look whether images are there, and do not read them.", is_flag=True)
@_AS_JSON
def check_command(fast: bool, as_json: bool, **store: Any) -> None:
    """Read all that a server stores: the database, each row, each image and the journal. Exits with 1 if anything is wrong.

    The server may run. What it removes meanwhile may be named as missing: repeat it then.
    """
    from quadriga.store.backup.checking import check_store

    settings = store_settings(**store, must_exist=True)
    checked = check_store(
        Path(settings.data),
        settings.database_url,
        _blobs(settings),
        reads_images=not fast,
        report=progress_printer(),
    )
    if as_json:
        click.echo(msgspec.json.encode(checked).decode())
    else:
        for problem in checked.problems:
            click.echo(f"{problem.what} {problem.where}: {problem.text}")
        if checked.problem_count > len(checked.problems):
            click.echo(f"and {checked.problem_count - len(checked.problems):,} more")
        click.echo(
            f"{checked.inferences:,} inferences, {checked.images:,} images, {checked.journaled:,} in the journal: "
            f"{checked.problem_count:,} problems"
        )
    sys.exit(1 if checked.problem_count else 0)


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
