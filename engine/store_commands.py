"""The commands `quadriga store`: what is done to a whole database."""

import sys
import time
from typing import NoReturn

import rich_click as click


@click.group()
def store() -> None:
    """Copy a store into another database, and compare two."""


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--delete", is_flag=True, help="Remove from TO what FROM does not hold.")
def copy(source: str, target: str, delete: bool) -> None:  # noqa: FBT001 - a flag of the command line
    """Copy the database at the URL FROM to that at TO, such as SQLite's to PostgreSQL, or to ClickHouse.

    A copy that was stopped goes on when it is repeated. A server may write FROM meanwhile: repeat it
    until little is added, stop the server, and repeat it once more.
    """
    from store.copying import Progress  # noqa: PLC0415 - other commands need no database
    from store.copying import copy as copy_store  # noqa: PLC0415 - as above
    from store.errors import StoreError  # noqa: PLC0415 - as above

    shown_at = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= 1:
            shown_at = time.monotonic()
            click.echo(f"{progress.table} {progress.day}: {progress}", err=True)

    try:
        if target.startswith(("http://", "https://")):
            from store.clickhouse_copying import copy as fill  # noqa: PLC0415 - an extra

            done = fill(source, target, show)
        else:
            done = copy_store(source, target, delete=delete, report=show)
    except ImportError as error:
        _fail(
            StoreError(
                f"expected clickhouse-connect, got {error}: pip install quadriga[clickhouse]"
            )
        )
    except StoreError as error:
        _fail(error)
    click.echo(str(done))


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
def verify(source: str, target: str) -> None:
    """Compare two databases day by day. Exits with 1 where they differ.

    Compared are ids, predictions, metadata and ground truth; days are those of UTC.
    """
    from store.comparison import Day  # noqa: PLC0415 - other commands need no database
    from store.comparison import verify as verify_stores  # noqa: PLC0415 - as above
    from store.errors import StoreError  # noqa: PLC0415 - as above

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
        _fail(error)
    click.echo(f"{len(different)} of {compared} days differ; {inferences:,} inferences in FROM")
    sys.exit(1 if different else 0)


def _fail(error: Exception) -> NoReturn:
    click.echo(f"quadriga: {error}", err=True)
    sys.exit(2)
