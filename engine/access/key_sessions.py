"""Sessions of people who have shown a key to the console: a sealed cookie in place of the key.

The cookie names the key and does not hold it. What the key may do is looked up at each request, so that a key that is
revoked, expires or gets other roles counts as such at once.
"""

import logging
import secrets
import time
from functools import cached_property
from pathlib import Path

import msgspec

from quadriga.engine.access.key_ring import KeyRing
from quadriga.engine.config.settings import Settings
from quadriga.engine.access.seals import Seal, server_key
from quadriga.extras.sign_on.sessions import SESSION_COOKIE, cookie_value
from quadriga.proto.access import Caller

_log = logging.getLogger(__name__)


class KeySession(msgspec.Struct, frozen=True, kw_only=True, rename={"expires_s": "exp"}):
    """What the cookie of a session says; its owner can read it, and not change it."""

    id: str
    key_id: str
    mark: str
    """Tells the key from a later one of the same id."""
    expires_s: int
    """Time at which it ends, in seconds since 1970."""


class KeySessions:
    """Begins, recognises and ends sessions of keys.

    Args:
        settings: Settings of the server.
        keys: The keys.
    """

    def __init__(self, settings: Settings, keys: KeyRing) -> None:
        self._settings = settings
        self._keys = keys
        self.seconds = max(1, round(settings.session_hours * 3600))

    @property
    def is_open(self) -> bool:
        """Whether the server needs no key, so that there is nothing to log in with."""
        return self._keys.is_open

    @cached_property
    def _seal(self) -> Seal:
        key = server_key(self._settings.session_key, Path(self._settings.data))
        return Seal(key, "key session")

    def begin(self, text: str) -> tuple[Caller, str]:
        """Return the caller of a key, and the value of the cookie of a new session; the latter is empty if the key does not count.

        Raises:
            OSError: The file that seals sessions cannot be made.
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
        return caller, self._seal.close(session)

    def find(self, cookies: bytes | None) -> KeySession | None:
        """Return the session of a header `Cookie`; None if there is none, or it has ended."""
        text = cookie_value(cookies, SESSION_COOKIE)
        if not text:
            return None
        try:
            session = self._seal.open(text, KeySession)
        except OSError as error:
            _log.warning("sessions of the console cannot be read: %s", error)
            return None
        if session is None or time.time() >= session.expires_s or self._keys.is_ended(session.id):
            return None
        return session

    def caller_of_cookies(self, cookies: bytes | None) -> Caller | None:
        """Return the caller whose session a header `Cookie` has; None for none."""
        session = self.find(cookies)
        return None if session is None else self._keys.find_by_mark(session.key_id, session.mark)

    def end(self, session: KeySession, name: str) -> None:
        """Let a session count no more, here and in every server that shares the database."""
        self._keys.end_session(session.id, name, session.expires_s * 1000)
