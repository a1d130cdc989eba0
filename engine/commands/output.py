"""What commands say: how far they are, what went wrong, and a report as table, JSON or page."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import rich_click as click
from rich.console import Console

from engine.commands.report_tables import drift, evaluation
from monitor.report import Report
from store.blobs.interface import Blobs

Page = Callable[[Report], str]
"""Makes the page of a report."""


def tell(text: str) -> None:
    """Show how far it is, on one line, where somebody looks."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text}", err=True, nl=False)


def fail(error: Exception) -> NoReturn:
    """End the command with what went wrong."""
    tell("")
    click.echo(f"quadriga: {error}", err=True)
    sys.exit(2)


def echo_json(shown: Any) -> None:
    """Print an object as JSON."""
    click.echo(_json(shown))


def put_out(report: Report, page: Page, options: SimpleNamespace) -> None:
    """Show a report as its options say, and write it to a file if there is one.

    Raises:
        OSError: The file cannot be written.
    """
    tell("")
    output: Path | None = options.output
    if output is not None:
        is_page = output.suffix == ".html"
        output.write_bytes(page(report).encode() if is_page else _json(report) + b"\n")
    if options.as_json:
        echo_json(report)
        return
    console = Console()
    for part in drift(report) if report.kind == "drift" else evaluation(report):
        console.print(part)
    if output is not None:
        console.print(f"Report: {output}", soft_wrap=True)


def page_with(image_bytes: Callable[[str], bytes | None]) -> Page:
    """Return what makes a page with the images that this finds."""

    def make(report: Report) -> str:
        from monitor.page import page

        return page(report, image_bytes)

    return make


def in_store(blobs: Blobs) -> Callable[[str], bytes | None]:
    """Return what finds an image by its hash."""
    return lambda key: blobs.get(key) if key.startswith("blake3:") else None


def in_folder(folder: Path | None) -> Callable[[str], bytes | None]:
    """Return what finds the image of a name below a folder, with its ending or without."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()] if folder else []
    found = {path.stem: path for path in files} | {path.name: path for path in files}
    found |= {path.relative_to(folder or path).as_posix(): path for path in files}
    return lambda name: found[name].read_bytes() if name in found else None


def _json(shown: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(shown))
