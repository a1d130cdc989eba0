"""Keys of people and programs, in the database, so that all servers on it share them.

Only a hash of a key is stored. A key that was revoked or has expired stays in the list.
"""

from collections.abc import Mapping, Sequence

import msgspec
import sqlalchemy as sa

from quadriga.quoting import quoted
from quadriga.store.database.database import clock_ms, execute, fetch_all, insert, writing
from quadriga.store.database.schema import COLUMNS
from quadriga.store.keys.key_texts import SESSION, AccessKey, hash_key, make_key
from quadriga.store.records.errors import NotFoundError, StoreError
from quadriga.store.records.scope import check_team

_MAX_NAME = 200
_SELECT = f"SELECT {', '.join(COLUMNS['access_key'])} FROM access_key"
_IS_SESSION = f"substr(id, 1, {len(SESSION)}) = '{SESSION}'"


def read_keys(connection: sa.Connection) -> list[AccessKey]:
    """Return all keys, the oldest first."""
    statement = f"{_SELECT} WHERE NOT {_IS_SESSION} ORDER BY created_ms, id"
    return [_from_row(row) for row in fetch_all(connection, statement)]


def read_ended_sessions(connection: sa.Connection) -> list[AccessKey]:
    """Return the sessions that were ended before their time, as keys that are revoked."""
    statement = f"{_SELECT} WHERE {_IS_SESSION} ORDER BY created_ms, id"
    return [_from_row(row) for row in fetch_all(connection, statement)]


def end_session(engine: sa.Engine, session_id: str, *, name: str, expires_ms: int) -> None:
    """Note that a session counts no more; those whose time is over are removed.

    Args:
        engine: The database, open for writing.
        session_id: Its id.
        name: Name of the person.
        expires_ms: Time at which it would have ended.
    """
    key_id = SESSION + session_id
    with writing(engine) as connection:
        now_ms = clock_ms(connection)
        # A day longer than needed, for servers with other clocks.
        over = (now_ms - 86_400_000,)
        execute(
            connection,
            f"DELETE FROM access_key WHERE {_IS_SESSION} AND expires_ms < ?",
            over,
        )
        if execute(connection, "SELECT 1 FROM access_key WHERE id = ?", (key_id,)).fetchall():
            return
        session = AccessKey(
            id=key_id,
            hash="",
            name=name,
            created_ms=now_ms,
            revoked_ms=now_ms,
            expires_ms=expires_ms,
        )
        _insert(connection, session)


def create_key(
    engine: sa.Engine,
    *,
    name: str,
    roles: Sequence[str],
    models: Sequence[str] = (),
    team: str = "",
    expires_in_ms: int | None = None,
    limits: str = "",
) -> tuple[AccessKey, str]:
    """Store a new key; return it, and its text, which is nowhere else.

    Args:
        engine: The database, open for writing.
        name: What people call it.
        roles: Its roles, at least one.
        models: Patterns of the models that it is for; empty for all.
        team: Team that it belongs to; empty for none.
        expires_in_ms: Milliseconds until it expires; None for never.
        limits: Its limits as a text; empty for the default of each server.

    Raises:
        StoreError: A text cannot be stored, or the team is no name of one.
    """
    if len(name) > _MAX_NAME or not name.isprintable():
        raise StoreError(f"expected a name of at most {_MAX_NAME} printable characters")
    check_team(team)
    key_id, text = make_key()
    with writing(engine) as connection:
        created_ms = clock_ms(connection)
        key = AccessKey(
            id=key_id,
            hash=hash_key(text),
            name=name,
            roles=tuple(roles),
            team=team,
            models=tuple(models),
            created_ms=created_ms,
            expires_ms=None if expires_in_ms is None else created_ms + expires_in_ms,
            limits=limits,
        )
        _insert(connection, key)
    return key, text


def revoke_key(engine: sa.Engine, key_id: str) -> AccessKey:
    """Revoke a key now; one that is revoked stays so since then. Raises NotFoundError for an unknown id."""
    with writing(engine) as connection:
        key = _find(connection, key_id)
        if key.revoked_ms is None:
            key = msgspec.structs.replace(key, revoked_ms=clock_ms(connection))
            _update(connection, key)
        return key


def limit_key(engine: sa.Engine, key_id: str, limits: str) -> AccessKey:
    """Replace the limits of a key by a text; empty for the default. Raises NotFoundError for an unknown id."""
    with writing(engine) as connection:
        key = msgspec.structs.replace(_find(connection, key_id), limits=limits)
        _update(connection, key)
        return key


def rotate_key(engine: sa.Engine, key_id: str, overlap_ms: int) -> tuple[AccessKey, str]:
    """Store a new key with the rights, the limits and the end of another, which goes on for a while.

    Args:
        engine: The database, open for writing.
        key_id: Id of the present key.
        overlap_ms: Milliseconds after which the present key expires.

    Raises:
        NotFoundError: There is no such key.
        StoreError: It was revoked or has expired.
    """
    new_id, text = make_key()
    with writing(engine) as connection:
        present, now_ms = _find(connection, key_id), clock_ms(connection)
        if not present.is_valid(now_ms):
            raise StoreError(
                f"expected a valid key, got {key_id}, which was revoked or has expired"
            )
        new_key = msgspec.structs.replace(
            present, id=new_id, hash=hash_key(text), created_ms=now_ms, used_ms=None
        )
        _insert(connection, new_key)
        end_ms = min(now_ms + overlap_ms, present.expires_ms or now_ms + overlap_ms)
        _update(connection, msgspec.structs.replace(present, expires_ms=end_ms))
    return new_key, text


def note_uses(engine: sa.Engine, uses_ms: Mapping[str, int]) -> None:
    """Note the last use of keys by id; an earlier one than is known changes nothing."""
    statement = "UPDATE access_key SET used_ms = ? WHERE id = ? AND coalesce(used_ms, 0) < ?"
    with writing(engine) as connection:
        for key_id, used_ms in sorted(uses_ms.items()):
            execute(connection, statement, (used_ms, key_id, used_ms))


def _find(connection: sa.Connection, key_id: str) -> AccessKey:
    rows = execute(connection, f"{_SELECT} WHERE id = ?", (key_id,)).fetchall()
    if not rows:
        raise NotFoundError(f"key not found: {quoted(key_id, 100)} (quadriga keys list)")
    return _from_row(tuple(rows[0]))


def _from_row(row: tuple[object, ...]) -> AccessKey:
    values = dict(zip(COLUMNS["access_key"], row, strict=True))
    for column in ("roles", "models"):
        values[column] = tuple(part for part in str(values[column]).split(",") if part)
    return msgspec.convert(values, AccessKey)


def _to_row(key: AccessKey) -> tuple[object, ...]:
    values = msgspec.structs.asdict(key)
    values |= {"roles": ",".join(key.roles), "models": ",".join(key.models)}
    return tuple(values[column] for column in COLUMNS["access_key"])


def _insert(connection: sa.Connection, key: AccessKey) -> None:
    insert(connection, "access_key", [_to_row(key)])


def _update(connection: sa.Connection, key: AccessKey) -> None:
    statement = "UPDATE access_key SET expires_ms = ?, revoked_ms = ?, limits = ? WHERE id = ?"
    execute(connection, statement, (key.expires_ms, key.revoked_ms, key.limits, key.id))
