"""The command `quadriga erase`: has a running server erase inferences, and prints the receipt."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from quadriga.engine.commands.options import connect, option, parse_filter, server_option
from quadriga.engine.commands.output import print_progress, print_text
from quadriga.quoting import one_line
from quadriga.store.blobs.interface import KEY_PATTERN, blob_key
from quadriga.store.records.errors import StoreError

_HASH = re.compile(KEY_PATTERN, re.ASCII)
_POLL_INTERVAL_S = 0.5
_MAX_TEXT = 400
_COUNTS = {
    "inferences": "inferences removed",
    "joins": "values that ground truth was joined by, removed with its statements",
    "images": "images removed",
    "images_of_others": "images that other inferences need, not removed",
    "jobs": "jobs removed with their results",
    "set_aside": "records and parts of the journal that were set aside, removed",
}


@click.command("erase")
@click.argument("filter_text", metavar="FILTER", default="")
@option(
    "--image",
    "File of an image, as it was sent, or its hash as blake3:<hex>, in place of FILTER; repeat for more.",
    multiple=True,
)
@option("--all is_all", "Erase all inferences, in place of FILTER.", is_flag=True)
@server_option
@option("--yes", "Erase without asking.", is_flag=True)
@option(
    "--wait",
    "Maximum seconds to wait for the end of an erasure, which goes on by itself. [default: until its end]",
    type=click.FloatRange(min=0),
)
@option("--json as_json", "Print each receipt as JSON on a line, and nothing else.", is_flag=True)
def erase_command(filter_text: str, **options: Any) -> None:
    """Erase the inferences that match FILTER, as of a query, and all bytes that a server has of them.

    It says how many there are, asks, and prints the receipt: what was removed, what remains, and what copies elsewhere
    may keep. Exits with 1 if something remains on the server, if an erasure has not ended, or if the answer is no.

    \b
    quadriga erase 'meta.person=p-4711'
    quadriga erase --image photo.jpg --yes
    """  # noqa: D301 - click leaves lines after a backspace as they are
    selection = _selection(filter_text, options["image"], is_all=options["is_all"])
    if not options["yes"] and not sys.stdin.isatty():
        raise click.UsageError(
            "--yes is required where nobody can be asked: the standard input is no terminal"
        )
    server = connect(options["server"])
    if not options["yes"]:
        _ask(server, selection)
    wait_s = options["wait"]
    is_done = True
    for receipt in _erase(server, selection, float("inf") if wait_s is None else wait_s):
        print_progress("")
        if options["as_json"]:
            click.echo(msgspec.json.encode(receipt))
        else:
            _print(receipt)
        is_done = is_done and receipt["state"] == "complete" and not receipt["remaining"]
    sys.exit(0 if is_done else 1)


def _selection(filter_text: str, images: tuple[str, ...], *, is_all: bool) -> dict[str, Any]:
    """Return the arguments of `Inferences.delete` that erase what is selected."""
    supplied = [bool(filter_text), bool(images), is_all]
    if sum(supplied) != 1:
        raise click.UsageError(
            f"expected one of FILTER, --image and --all, got {'several' if any(supplied) else 'none'}"
        )
    if is_all:
        return {"erase": True, "every": True}
    if filter_text:
        return {"erase": True, "where": parse_filter(filter_text)}
    hashes = sorted({_hash(image) for image in images})
    chosen = hashes[0] if len(hashes) == 1 else {"in": hashes}
    return {"erase": True, "where": {"input.hash": chosen}}


def _hash(image: str) -> str:
    if _HASH.fullmatch(image):
        return image
    path = Path(image)
    if not path.is_file():
        raise click.BadParameter(
            f"expected a file or blake3: and 64 hex digits, got {image}", param_hint="--image"
        )
    return blob_key(path.read_bytes())


def _ask(server: Any, selection: dict[str, Any]) -> None:
    """Say how many inferences would be erased, and return if the answer is yes; else the command ends with 1."""
    matches = server.inferences.delete(**selection, dry_run=True)
    more = " or more" if matches["more"] else ""
    click.echo(f"{matches['count']:,}{more} inferences match on {server.url}", err=True)
    if not matches["count"]:
        click.echo("what was deleted before, and is on the disk still, is erased", err=True)
    click.confirm("Erase for good?", abort=True, err=True)


def _erase(server: Any, selection: dict[str, Any], wait_s: float) -> Iterator[dict[str, Any]]:
    """Erase until nothing matches any more, and yield the receipt of each request.

    Raises:
        StoreError: The server searches in vain.
        quadriga.client.ClientError: It does not respond.
    """
    has_more = True
    while has_more:
        print_progress("searching")
        answer = server.inferences.delete(**selection)
        yield _wait(server, answer["erasure"], time.monotonic() + wait_s)
        has_more = answer["more"]
        if has_more and not answer["count"]:
            raise StoreError(
                "the search for inferences ended before it had read everything, and found none: narrow the filter, for "
                "example by a time"
            )


def _wait(server: Any, receipt: dict[str, Any], deadline_s: float) -> dict[str, Any]:
    """Wait for the end of an erasure; return its receipt."""
    path = f"/api/erasures/{receipt['id']}"
    try:
        while receipt["state"] == "running" and time.monotonic() < deadline_s:
            print_progress(f"erasing {', '.join(_lines(receipt['waiting']))}"[:_MAX_TEXT])
            time.sleep(_POLL_INTERVAL_S)
            receipt = server.server.erasure(receipt["id"])
    except KeyboardInterrupt:
        click.echo(f"the erasure goes on; GET {path} has its receipt", err=True)
        raise
    return receipt


def _print(receipt: dict[str, Any]) -> None:
    is_complete = receipt["state"] == "complete"
    state = "is complete" if is_complete else "goes on; its receipt comes at"
    where = "" if is_complete else f" GET /api/erasures/{receipt['id']}"
    print_text(f"erasure {receipt['id']} {state}{where}")
    for name, count in receipt["counts"].items():
        print_text(f"  {count:,} {_COUNTS.get(name, one_line(name))}")
    for title, key in (
        ("It waits for:", "waiting"),
        ("Remains on this server, for you to remove:", "remaining"),
        ("May be kept elsewhere, out of its reach:", "kept"),
    ):
        if receipt[key]:
            print_text(title)
        for line in _lines(receipt[key]):
            print_text(f"  - {line}")


def _lines(texts: list[str]) -> Iterator[str]:
    return (one_line(text, _MAX_TEXT) for text in texts)
