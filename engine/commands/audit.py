"""The command `quadriga audit`: reads the audit log of a data folder. And how commands write into it."""

import os
import pwd
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import rich_click as click

from quadriga.engine.commands.options import option
from quadriga.engine.commands.output import make_console, make_table, short_time
from quadriga.engine.commands.store_options import config_option, load_settings
from quadriga.engine.config.settings import Settings
from quadriga.store.records.errors import StoreError

_PROCESS = "commands"


@click.command("audit")
@option("--since", "Earliest time: 24h, 7d, or a time such as 2027-03-01T12:00:00Z.")
@option("--key", "Id or name of a key.")
@option("--limit", "Maximum lines.", type=click.IntRange(1), default=100)
@option("--json as_json", "Print each line as JSON, and nothing else.", is_flag=True)
@option("--data", "Data folder of the server. [default: data]")
@config_option
def audit_command(data: str | None, **options: Any) -> None:
    """Print who changed, took away or was refused what, newest first; servers have a log each."""
    from quadriga.store.audit.entries import encode_entry
    from quadriga.store.audit.reading import MAX_LIMIT, parse_since, read_page

    settings = load_settings(data=data)
    if not Path(settings.data).is_dir():
        raise StoreError(f"data folder not found: {settings.data}; set --data or --config as for the server")  # fmt: skip
    folder, key = settings.audit_directory, options["key"] or ""
    since = parse_since(options["since"], time.time()) if options["since"] else ""
    left, cursor, damaged = options["limit"], "", 0
    entries: list[Any] = []
    while left > 0:
        limit = min(left, MAX_LIMIT)
        page = read_page(folder, since=since, key=key, limit=limit, cursor=cursor)
        left, damaged = left - len(page.entries), damaged + page.damaged
        for entry in page.entries:
            if options["as_json"]:
                click.echo(encode_entry(entry).decode(), nl=False)
            else:
                entries.append(entry)
        if page.cursor is None:
            break
        cursor = page.cursor
    if not options["as_json"]:
        make_console().print(_table(entries) if entries else "no lines")
    if damaged:
        click.echo(f"{damaged} damaged lines were skipped", err=True)


def _table(entries: list[Any]) -> Any:
    """Return the table of lines; it says who wrote each where several machines did, as after a move of the folder."""
    columns = ["time", "who", "from", "action", "status", "about"]
    if len({entry.host for entry in entries}) > 1:
        columns.append("written on")
    rows = (map(_printable, _cells(entry)[: len(columns)]) for entry in entries)
    return make_table(columns, rows, unbroken=["time"], widths={"time": 19})


def _cells(entry: Any) -> list[str]:
    about = [entry.target] if entry.target else []
    about += [f"{entry.number} changed"] if entry.number is not None else []
    about += [f"{entry.times} times since {entry.since}"] if entry.times > 1 else []
    who = f"{entry.name} {entry.key_id}".strip()
    return [
        short_time(entry.time), who, entry.address, entry.action, str(entry.status),
        ", ".join(about), entry.host,
    ]  # fmt: skip


def _printable(text: str) -> str:
    """Write what a terminal would obey instead of show as escapes."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


@contextmanager
def audited(settings: Settings, action: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes what a command has changed, by its id.

    Raises:
        OSError: The audit log cannot be opened, so nothing should be changed; or the line cannot be written.
    """
    from quadriga.store.audit.entries import AuditEntry, timestamp
    from quadriga.store.audit.log import AuditFile

    if not settings.audit_days:
        yield lambda _: None
        return
    with closing(AuditFile(settings.audit_directory, _PROCESS)) as file:
        file.open(timestamp(time.time())[:10])

        def note(target: str) -> None:
            entry = AuditEntry(
                time=timestamp(time.time()),
                action=action,
                status="done",
                name=_user(),
                target=target,
                host=socket.gethostname(),
            )
            file.append(entry)
            os.fsync(file.open(entry.time[:10]))

        yield note


def _user() -> str:
    """Return the name of the user of this process, or the number of one without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name  # variables such as USER say what somebody wants
    except KeyError:
        return f"uid {os.getuid()}"
