"""The commands `quadriga backup`, `restore` and `check`: a copy of all that a server stores, back again, and whether it is whole."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from quadriga.engine.commands.options import option
from quadriga.engine.commands.output import progress_printer
from quadriga.engine.commands.store_options import store_options, store_settings
from quadriga.engine.config.settings import Settings

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
        shown = msgspec.to_builtins(msgspec.structs.replace(description, files={}))
        click.echo(json.dumps({"backup": place, **shown, "new_images": made.new_images}))
    else:
        click.echo(
            f"{place}: {description.inferences:,} inferences, {description.journaled:,} in the journal, {description.images:,} images "
            f"({made.new_images:,} new)"
        )
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
        shown = msgspec.to_builtins(msgspec.structs.replace(description, files={}))
        shown["missing_images"] = restored.missing_images
        click.echo(json.dumps({"backup": name, **shown}))
    else:
        server = f" of {description.host}, {description.folder}" if description.host else ""
        click.echo(
            f"{name}{server}: {description.inferences:,} inferences, {description.journaled:,} in the journal, {description.images:,} images; "
            "start the server on it, or look at it with quadriga check"
        )
        if restored.missing_images:
            click.echo(f"{restored.missing_images:,} images are not in the backup", err=True)
    sys.exit(1 if restored.missing_images else 0)


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
