"""The gate in front of every protocol: reads the key, token or session of a request, and finds whose it is.

People who have shown a key to the console have a session: a sealed cookie in place of the key. The cookie names the key and does
not hold it. What the key may do is looked up at each request, so that a key that is revoked, expires or gets other
roles counts as such at once.
"""

import logging
import secrets
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import msgspec

from quadriga.engine.access.key_ring import UNREAD, UNREAD_LOCAL, KeyRing
from quadriga.engine.config.settings import SESSION_HOURS, Settings
from quadriga.engine.sign_on.seals import Seal, server_key
from quadriga.engine.sign_on.sessions import SESSION_COOKIE, cookie_value
from quadriga.proto.access import ANYBODY, STRANGER, TEAM_HEADER, Caller, presented_key

_log = logging.getLogger(__name__)


class People(Protocol):
    """Who an identity provider vouches for."""

    def caller_of_token(self, token: str) -> Caller:
        """Return the caller who presents a token; one without rights if the token does not count."""

    def caller_of_cookies(self, cookies: bytes | None) -> Caller | None:
        """Return the caller whose session a header `Cookie` has; None for none."""


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
        self.seconds = round(SESSION_HOURS * 3600)

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


class KeyGate:
    """Gate of a server that accepts keys; open while it needs none.

    Args:
        keys: The keys.
        people: Who has logged in, or presents a token; None without an identity provider.
        key_sessions: Who has shown a key to the console; counts without an identity provider alone.
    """

    def __init__(
        self,
        keys: KeyRing,
        people: People | None = None,
        key_sessions: KeySessions | None = None,
    ) -> None:
        self._keys = keys
        self._people = people
        self._sessions: People | KeySessions | None = key_sessions if people is None else people

    def identify(self, read_header: Callable[[bytes], bytes | None]) -> Caller:
        """Return the caller of a request, as `quadriga.proto.access.Gate`: by its key, else its token, else its session."""
        if self._keys.is_open:
            return ANYBODY
        text = presented_key(read_header)
        if self._people is not None and text is not None and is_token(text):
            return self._people.caller_of_token(text)
        if not self._keys.is_known:
            return UNREAD_LOCAL if self._keys.is_local else UNREAD
        if text is None:
            return self._caller_of_session(read_header(b"cookie"))
        caller = self._keys.find(text)
        if caller.is_of_jobs and (team := read_header(TEAM_HEADER)):
            return msgspec.structs.replace(caller, team=unquote(team.decode("latin-1")))
        return caller

    def _caller_of_session(self, cookies: bytes | None) -> Caller:
        if self._sessions is None or not cookies:
            return STRANGER
        return self._sessions.caller_of_cookies(cookies) or STRANGER


def is_token(text: str) -> bool:
    """Check whether what a request presents is a token of a provider: three parts, where a key has two."""
    return text.count(".") == 2
