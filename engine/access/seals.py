"""Texts that only this server can have made: what cookies hold. They can be read by their owner, and not changed."""

import base64
import hashlib
import hmac
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

from quadriga.store.disk import create_once

KEY_FILE = "session.key"
MAX_TEXT = 4096
"""Maximum characters of a sealed text, as of a cookie."""

Content = TypeVar("Content", bound=msgspec.Struct)


class Seal:
    """Seals and opens texts of one purpose, and derives secrets for it.

    Args:
        key: Key of the server.
        purpose: Word that keeps the texts of one purpose from being taken for those of another.
    """

    def __init__(self, key: bytes, purpose: str) -> None:
        self._key = hmac.digest(key, f"quadriga {purpose}".encode(), hashlib.sha256)

    def close(self, content: msgspec.Struct) -> str:
        """Return a content as sealed text."""
        body = base64.urlsafe_b64encode(msgspec.json.encode(content)).rstrip(b"=")
        return f"{body.decode()}.{self.derive(body.decode())}"

    def open(self, text: str, form: type[Content]) -> Content | None:
        """Return the content of a sealed text; None if it was not sealed with this key, or for another purpose."""
        body, _, mark = text.partition(".")
        if len(text) > MAX_TEXT or not text.isascii():
            return None
        if not hmac.compare_digest(self.derive(body), mark):
            return None
        try:
            padded = body + "=" * (-len(body) % 4)
            return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=form)
        except (ValueError, msgspec.MsgspecError):  # sealed by another version
            return None

    def derive(self, text: str) -> str:
        """Return a secret that belongs to a text: 43 characters that a URL may have."""
        mark = hmac.digest(self._key, text.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(mark).rstrip(b"=").decode()


def server_key(setting: str, folder: Path) -> bytes:
    """Return the key of the server: that of the setting, or of a file of the data folder, which is made once."""
    if setting:
        return setting.encode()
    return create_once(folder / KEY_FILE, secrets.token_hex(32).encode(), 0o600)
