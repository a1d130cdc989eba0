"""A key, whose text is `quadriga-<id>.<secret>`.

The secret has 256 random bits, so a plain SHA-256 of the key is enough to compare it by, and is all that is stored.
"""

import hashlib
import secrets
from datetime import UTC, datetime

import msgspec

PREFIX = "quadriga-"
SESSION = "session-"
"""Beginning of the id under which a session that was ended stands among the keys, without rights; no key has it."""


class AccessKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret; times are in milliseconds since 1970."""

    id: str
    hash: str
    """SHA-256 of the whole key, in hexadecimal digits."""
    name: str = ""
    roles: tuple[str, ...] = ()
    team: str = ""
    models: tuple[str, ...] = ()
    """Patterns of the models that the key is for; empty for all."""
    created_ms: int = 0
    expires_ms: int | None = None
    revoked_ms: int | None = None
    used_ms: int | None = None
    """Last use, to a minute."""
    limits: str = ""
    """Limits separated by commas, as `quadriga.store.keys.key_limits` parses them; empty for the server's default."""

    def is_valid(self, now_ms: float) -> bool:
        """Check whether the key was not revoked and has not expired."""
        return self.revoked_ms is None and (self.expires_ms is None or now_ms < self.expires_ms)


def rights_text(key: AccessKey) -> str:
    """Return what a key is for, until when: its id, roles, team, models and end, for the audit log."""
    parts = [f"roles {'+'.join(key.roles)}"]
    parts += [f"team {key.team}"] if key.team else []
    parts += [f"models {'+'.join(key.models)}"] if key.models else []
    if key.expires_ms is not None:
        parts.append(
            f"until {datetime.fromtimestamp(key.expires_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        )
    return f"{key.id}: {', '.join(parts)}"


def make_key(key_id: str | None = None) -> tuple[str, str]:
    """Return the id and the text of a new key."""
    key_id = key_id or secrets.token_hex(6)
    return key_id, f"{PREFIX}{key_id}.{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> str:
    """Return the hash by which a key is stored and compared."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def id_of_key(key: str) -> str:
    """Return the id that a key names; empty if the text is no key."""
    prefix, _, rest = key.partition("-")
    key_id, point, _ = rest.partition(".")
    return key_id if point and f"{prefix}-" == PREFIX else ""
