"""The commands `quadriga keys` and `audit`: who may use a server, and who did what; commands write into its audit log."""

import json
import os
import pwd
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import rich_click as click

from quadriga.engine.commands.options import json_option, option
from quadriga.engine.commands.output import make_console, make_table, short_time
from quadriga.engine.commands.store_options import (
    config_option,
    load_settings,
    store_options,
    store_settings,
)
from quadriga.engine.config.settings import Settings
from quadriga.proto.access import Role
from quadriga.store.keys.key_limits import NO_LIMITS, limits_text, parse_limits
from quadriga.store.keys.key_texts import AccessKey, rights_text
from quadriga.store.records.errors import StoreError
from quadriga.store.records.redaction import without_secrets

_UNITS_S = {"m": 60, "h": 3600, "d": 86400}
_MAX_DAYS = 36500
_PROCESS = "commands"


def _limits(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> str:
    """Return the limits of a key as they are stored.

    Raises:
        click.UsageError: One cannot be understood.
    """
    if NO_LIMITS in texts:
        if len(texts) > 1:
            raise click.UsageError("expected --limit none alone, got further limits")
        return NO_LIMITS
    try:
        return limits_text(parse_limits(texts))
    except ValueError as error:
        raise click.UsageError(f"--limit: {error}") from error


def _patterns(_: click.Context, __: click.Parameter, models: tuple[str, ...]) -> tuple[str, ...]:
    """Check the patterns of --models, which are stored with commas between them."""
    for pattern in models:
        if not pattern or "," in pattern:
            raise click.UsageError(f"expected --models to be a pattern, got {pattern!r}")
    return models


_limit_option = option(
    "--limit limits",
    "What the key may use, such as requests=100/second, concurrency=8 or jobs=4; none for no limits, also where the server"
    " has a default; may be repeated.",
    multiple=True,
    callback=_limits,
)  # fmt: skip


class _Duration(click.ParamType[int]):
    """A time such as 90d, 12h or 30m, in milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        number, unit = str(value)[:-1], str(value)[-1:]
        if not number.isdecimal() or unit not in _UNITS_S:
            self.fail(f"expected a number with m, h or d, such as 90d, got {value}", param, ctx)
        if not 0 <= int(number) * _UNITS_S[unit] <= _MAX_DAYS * _UNITS_S["d"]:
            self.fail(f"expected at most {_MAX_DAYS}d, got {value}", param, ctx)
        return int(number) * _UNITS_S[unit] * 1000


@click.group("keys")
def keys_command() -> None:
    """Make, list, replace and revoke the keys of a server.

    They are in its database, and servers that share it share them. A change counts within a few seconds.
    """


@keys_command.command()
@option("--role roles", "What the key is for; may be repeated.", multiple=True, required=True,
        type=click.Choice(get_args(Role)))  # fmt: skip
@option("--name", "What people call it.", default="")
@option("--team", "Team that it belongs to: it sees the team's records alone, and makes records of the team.",
        default="")  # fmt: skip
@option("--models", "Pattern of the models that it is for, such as 'shapes-*'; may be repeated.",
        multiple=True, callback=_patterns)  # fmt: skip
@option(
    "--expires expires_in_ms",
    "When it ends, such as 90d or 12h from now. [default: never]",
    type=_Duration(),
)
@_limit_option
@json_option
@store_options
def create(data: str | None, database: str | None, *, as_json: bool, **rights: Any) -> None:
    """Make a key and print it. It is shown this once: the database has only a hash of it."""
    from quadriga.store.keys.access_keys import create_key

    with _changing("keys create", data, database, is_first=True) as (engine, note):
        key, text = create_key(engine, **rights)
        note(rights_text(key))
    _print_new(key, text, as_json=as_json)


@keys_command.command("list")
@json_option
@store_options
def list_keys(*, as_json: bool, **store: Any) -> None:
    """List all keys with their roles, end and last use; never their secrets."""
    from quadriga.store.database.database import ReaderPool
    from quadriga.store.keys.access_keys import read_keys

    url = store_settings(**store, reads_images=False, must_exist=True).database_url
    _check_tables(url)
    with closing(ReaderPool(url, connections=1)) as pool:  # noqa: SIM117 - it may not answer
        with pool.snapshot() as connection:
            keys = read_keys(connection)
    if as_json:
        click.echo(json.dumps([_public(key) for key in keys], indent=1))
        return
    columns = ("id", "name", "roles", "for", "limits", "state", "last use")
    widths = {"id": 12, "name": 8}
    # Without padding it fits a terminal of 80 columns.
    table = make_table(columns, map(_cells, keys), widths=widths, padding=0)
    make_console().print(table if keys else "no keys")


@keys_command.command()
@click.argument("key_id", metavar="ID")
@store_options
def revoke(key_id: str, **store: Any) -> None:
    """Revoke the key ID: requests with it are refused within a few seconds."""
    from quadriga.store.keys.access_keys import revoke_key

    with _changing("keys revoke", **store) as (engine, note):
        revoke_key(engine, key_id)
        note(key_id)
    click.echo(f"revoked {key_id}")


@keys_command.command("limit")
@click.argument("key_id", metavar="ID")
@_limit_option
@store_options
def limit_command(key_id: str, limits: str, **store: Any) -> None:
    """Replace the limits of the key ID by those of --limit; without --limit the server's default counts again.

    A change counts within a few seconds.
    """
    from quadriga.store.keys.access_keys import limit_key

    with _changing("keys limit", **store) as (engine, note):
        limit_key(engine, key_id, limits)
        note(key_id)
    click.echo(f"limits of {key_id}: {limits.replace(',', ', ') or 'default'}")


@keys_command.command()
@click.argument("key_id", metavar="ID")
@option(
    "--overlap", "How long the present key goes on, such as 24h.", type=_Duration(), default="0m"
)
@json_option
@store_options
def rotate(key_id: str, overlap: int, *, as_json: bool, **store: Any) -> None:
    """Make a key with the rights, limits and end of the key ID, and print it; the present one ends after --overlap."""
    from quadriga.store.keys.access_keys import rotate_key

    with _changing("keys rotate", **store) as (engine, note):
        key, text = rotate_key(engine, key_id, overlap)
        note(f"{key_id} to {rights_text(key)}")
    _print_new(key, text, as_json=as_json)


@contextmanager
def _changing(
    action: str, data: str | None, database: str | None, *, is_first: bool = False
) -> Iterator[tuple[Any, Callable[[str], None]]]:
    """Open the database for writing, and the audit log of the data folder; yield the engine, and what notes the change.

    Args:
        action: Action of the line of the audit log.
        data: The option --data.
        database: The option --database.
        is_first: Whether to make the store if there is none.
    """
    from quadriga.store.database.database import make_tables, writer_engine

    settings = store_settings(
        data, database, is_written=True, reads_images=False, must_exist=not is_first
    )
    url = settings.database_url
    if is_first:
        make_tables(url)
    else:
        _check_tables(url)
    with writer_engine(url) as engine, audited(settings, action) as note:
        yield engine, note


def _check_tables(url: str) -> None:
    """Check that a database has the tables of a store; a command that makes no key makes none.

    Raises:
        StoreError: It has none, or those of another version.
    """
    from quadriga.store.database.database import compare_revision, make_tables

    if compare_revision(url).database is None:
        raise StoreError(
            f"no store in {without_secrets(url)}: set --data, --database or --config as for the server, "
            "or make its tables by quadriga migrate"
        )
    make_tables(url)  # checks their revision, as they are there


def _print_new(key: AccessKey, text: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"key": text, **_public(key)}))
        return
    click.echo(text)
    roles = ", ".join(key.roles)
    click.echo(f"key {key.id} ({roles}), {_state(key)}: it is not shown again", err=True)


def _public(key: AccessKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "roles": key.roles,
        "team": key.team,
        "models": key.models,
        "limits": [part for part in key.limits.split(",") if part],
        "state": _state(key).partition(" ")[0],
        "created_at": _time(key.created_ms),
        "expires_at": _time(key.expires_ms),
        "revoked_at": _time(key.revoked_ms),
        "used_at": _time(key.used_ms),
    }


def _cells(key: AccessKey) -> tuple[str, ...]:
    models = ", ".join(key.models) or "all"
    subject = f"{key.team}: {models}" if key.team else models
    limits = key.limits.replace(",", ", ") or "default"
    return (
        key.id, key.name, ", ".join(key.roles), subject, limits, _state(key), _day(key.used_ms),
    )  # fmt: skip


def _state(key: AccessKey) -> str:
    if key.revoked_ms is not None:
        return f"revoked {_day(key.revoked_ms)}"
    if not key.is_valid(time.time() * 1000):
        return f"expired {_day(key.expires_ms)}"
    return "valid" if key.expires_ms is None else f"valid until {_day(key.expires_ms)}"


def _time(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def _day(ms: int | None) -> str:
    return "" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M}"


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
        make_console().print(_entry_table(entries) if entries else "no lines")
    if damaged:
        click.echo(f"{damaged} damaged lines were skipped", err=True)


def _entry_table(entries: list[Any]) -> Any:
    """Return the table of lines; it says who wrote each where several machines did, as after a move of the folder."""
    columns = ["time", "who", "from", "action", "status", "about"]
    if len({entry.host for entry in entries}) > 1:
        columns.append("written on")
    rows = (map(_printable, _entry_cells(entry)[: len(columns)]) for entry in entries)
    return make_table(columns, rows, unbroken=["time"], widths={"time": 19})


def _entry_cells(entry: Any) -> list[str]:
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
