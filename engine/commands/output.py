"""Output of commands: progress, errors, tables and JSON."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NoReturn

import msgspec
import rich_click as click

from quadriga.store.records.errors import full_text
from quadriga.store.records.redaction import redact

_PIPED_COLUMNS = 400

ReportAndPage = tuple[Any, Callable[[Any], str]]
"""A report, and the function that renders its page: of no type here, as a help text needs no reports."""


def print_progress(text: str) -> None:
    """Show progress on one line, if standard error is a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text}", err=True, nl=False)


def print_warnings(warnings: Iterable[str]) -> None:
    """Print warnings on standard error, a line each."""
    for warning in warnings:
        click.echo(f"quadriga: {warning}", err=True)


def progress_printer() -> Callable[[str], None]:
    """Return a function that prints progress on standard error, at most once a second."""
    shown_at = time.monotonic()

    def show(text: str) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= 1:
            shown_at = time.monotonic()
            click.echo(text, err=True)

    return show


def fail(error: Exception) -> NoReturn:
    """Print an error and end the command with status 2."""
    print_progress("")
    secrets = {word.rpartition("=")[2] for word in sys.argv if "://" in word}
    secrets |= {text for text in os.environ.values() if "://" in text}
    click.echo(f"quadriga: {redact(error_text(error), secrets)}", err=True)
    sys.exit(2)


def error_text(error: Exception) -> str:
    """Return what an error says; that of a server as its text and status, and where its key would come from."""
    from quadriga.client.errors import ServerRefused
    from quadriga.client.transport.configuration import KEY_FILE_VARIABLE, KEY_VARIABLE

    if not isinstance(error, ServerRefused):
        return full_text(error)
    has_key = any(map(os.environ.get, (KEY_VARIABLE, KEY_FILE_VARIABLE)))
    is_without_key = error.status == HTTPStatus.UNAUTHORIZED and not has_key
    hint = f": set {KEY_VARIABLE} or {KEY_FILE_VARIABLE}" if is_without_key else ""
    return f"{error.text} ({error.status}){hint}"


def echo_json(value: Any) -> None:
    """Print an object as JSON."""
    click.echo(to_json(value))


def to_json(value: Any) -> bytes:
    """Return an object as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value))


def make_console() -> Any:
    """Return a console for a table; where no terminal shows it, such as in a pipe, nothing is broken into lines."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_COLUMNS
    return console


def print_text(text: str) -> None:
    """Print a text whose lines are not broken, whatever is in it."""
    from rich.console import Console
    from rich.text import Text

    Console().print(Text(text), soft_wrap=True)


def make_table(
    columns: Sequence[str],
    rows: Iterable[Iterable[str]],
    numbers: Sequence[str] = (),
    *,
    unbroken: Sequence[str] = (),
    widths: Mapping[str, int] = {},
    **style: Any,
) -> Any:
    """Return a table of texts, in which nothing is markup.

    Args:
        columns: Names of the columns.
        rows: Texts of each row.
        numbers: Columns that stand on the right.
        unbroken: Columns whose texts are never broken into lines.
        widths: Least letters of columns; others shrink to one.
        style: Further arguments of `rich.table.Table`.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(**style)
    for column in columns:
        table.add_column(
            Text(column),
            overflow="fold",
            justify="right" if column in numbers else "left",
            no_wrap=column in unbroken,
            min_width=widths.get(column),
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()
) -> None:
    """Print a table of texts without frame; its first column is never broken into lines, and `numbers` stand on the right."""
    from rich import box

    style: dict[str, Any] = {"box": box.SIMPLE, "padding": (0, 1, 0, 0)}
    make_console().print(make_table(columns, rows, numbers, unbroken=columns[:1], **style))


def short_time(moment: str | None) -> str:
    """Return an RFC 3339 time in UTC to the second, such as `2027-01-31 09:30:00`; empty for None."""
    return (moment or "")[:19].replace("T", " ")
