"""The text of a key: `quadriga-<id>.<secret>`.

The secret has 256 random bits, so a plain SHA-256 of the key is enough to compare it by, and is all that is stored.
"""

import hashlib
import secrets

PREFIX = "quadriga-"


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
