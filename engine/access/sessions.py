"""Sessions of browsers: signed cookies, which their owner can read and not change, and where a log-in may lead.

The cookie of a session of a key names the key and does not hold it. What the key may do is looked up at each request, so
that a key that is revoked, expires or gets other roles counts as such at once.

Source: RFC 6265bis, sections 4.1.2.7 (SameSite) and 4.1.3.2 (the prefix `__Host-`).
"""

import base64
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from quadriga.engine.access.key_ring import KeyRing
from quadriga.engine.config.settings import SESSION_HOURS, Settings
from quadriga.proto.access import Caller
from quadriga.store.records.disk import create_once

SESSION_COOKIE = "__Host-quadriga-session"
KEY_FILE = "session.key"
MAX_TEXT = 4096
"""Maximum characters of a signed text, as of a cookie."""

FIRST_PATH = "/console/"
_OWN_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]{0,500}")
"""A path of this server with its query: one slash first, and no backslash, which browsers take for a slash."""

_log = logging.getLogger(__name__)


def own_path(text: str) -> str:
    """Return a path of this server, where a browser goes after the log-in; that of the console for anything else."""
    return text if _OWN_PATH.fullmatch(text) else FIRST_PATH


def cookie_value(cookies: bytes | None, name: str) -> str:
    """Return the value of a cookie in a header `Cookie`; empty without it."""
    for pair in (cookies or b"").split(b";"):
        key, _, value = pair.strip().partition(b"=")
        if key == name.encode():
            return value.decode("latin-1")
    return ""


class BrowserSession(msgspec.Struct, frozen=True, kw_only=True, rename={"expires_s": "exp"}):
    """The content of the cookie of a session."""

    id: str
    key_id: str
    """Id of the key, or of the person."""
    expires_s: int
    """Time at which it ends, in seconds since 1970."""


class KeySession(BrowserSession, frozen=True, kw_only=True):
    """The content of the cookie of a session of a key."""

    mark: str
    """Tells the key from a later one of the same id."""


Content = TypeVar("Content", bound=msgspec.Struct)
Session = TypeVar("Session", bound=BrowserSession)


class CookieSigner:
    """Signs and reads texts of one purpose, and derives secrets for it.

    Args:
        key: Key of the server.
        purpose: Word that keeps the texts of one purpose from being taken for those of another.
    """

    def __init__(self, key: bytes, purpose: str) -> None:
        self._key = hmac.digest(key, f"quadriga {purpose}".encode(), hashlib.sha256)

    def sign(self, content: msgspec.Struct) -> str:
        """Return a content as signed text."""
        body = base64.urlsafe_b64encode(msgspec.json.encode(content)).rstrip(b"=")
        return f"{body.decode()}.{self.derive(body.decode())}"

    def read(self, text: str, form: type[Content]) -> Content | None:
        """Return the content of a signed text; None if it was not signed with this key, or for another purpose."""
        body, _, mark = text.partition(".")
        if len(text) > MAX_TEXT or not text.isascii():
            return None
        if not hmac.compare_digest(self.derive(body), mark):
            return None
        try:
            padded = body + "=" * (-len(body) % 4)
            return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=form)
        except (ValueError, msgspec.MsgspecError):  # signed by another version
            return None

    def read_session(
        self, text: str, form: type[Session], is_ended: Callable[[str], bool]
    ) -> Session | None:
        """Return the session of a cookie; None if the text is not signed, or the session is over by its time or by `is_ended`."""
        session = self.read(text, form)
        if session is None or time.time() >= session.expires_s or is_ended(session.id):
            return None
        return session

    def derive(self, text: str) -> str:
        """Return a secret that belongs to a text: 43 characters that a URL may have."""
        mark = hmac.digest(self._key, text.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(mark).rstrip(b"=").decode()


def server_key(settings: Settings) -> bytes:
    """Return the key of the server: that of the setting, or of a file of the data folder, which is made once."""
    if settings.session_key:
        return settings.session_key.encode()
    file = Path(settings.data) / KEY_FILE
    return create_once(file, secrets.token_hex(32).encode(), 0o600)


class BrowserSessions(Protocol):
    """Sessions of one kind: those of keys, or of people whom an identity provider has sent."""

    def find(self, cookies: bytes | None) -> BrowserSession | None:
        """Return the session of a header `Cookie`; None if there is none, or it has ended."""

    def caller_of_cookies(self, cookies: bytes | None) -> Caller | None:
        """Return the caller whose session a header `Cookie` has; None for none."""

    def end(self, session: BrowserSession, name: str) -> None:
        """Let a session of a name count no more, here and in every server that shares the database."""


class KeySessions:
    """Begins, recognises and ends sessions of keys.

    Args:
        settings: Settings of the server.
        keys: The keys.
    """

    def __init__(self, settings: Settings, keys: KeyRing) -> None:
        self._settings = settings
        self._keys = keys
        self.seconds = round(SESSION_HOURS * 3600)

    @cached_property
    def _signer(self) -> CookieSigner:
        return CookieSigner(server_key(self._settings), "key session")

    def begin(self, text: str) -> tuple[Caller, str]:
        """Return the caller of a key, and the value of the cookie of a new session; the latter is empty if the key does not count.

        Raises:
            OSError: The file with the key of the server cannot be made.
        """
        caller = self._keys.find(text)
        if not caller.rights:
            return caller, ""
        session = KeySession(
            id=secrets.token_hex(16),
            key_id=caller.key_id,
            mark=self._keys.mark_of(caller.key_id),
            expires_s=int(time.time()) + self.seconds,
        )
        return caller, self._signer.sign(session)

    def find(self, cookies: bytes | None) -> KeySession | None:
        """Return the session of a header `Cookie`; None if there is none, or it has ended."""
        text = cookie_value(cookies, SESSION_COOKIE)
        if not text:
            return None
        try:
            return self._signer.read_session(text, KeySession, self._keys.is_ended)
        except OSError as error:
            _log.warning("sessions of the console cannot be read: %s", error)
            return None

    def caller_of_cookies(self, cookies: bytes | None) -> Caller | None:
        """Return the caller whose session a header `Cookie` has; None for none."""
        session = self.find(cookies)
        return None if session is None else self._keys.find_by_mark(session.key_id, session.mark)

    def end(self, session: BrowserSession, name: str) -> None:
        """Let a session count no more, here and in every server that shares the database."""
        self._keys.end_session(session.id, name, session.expires_s * 1000)
