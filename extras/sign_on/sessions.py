"""Sessions of people: a sealed cookie, so that every worker and every server with the same key knows it.

What cannot be in the cookie is that it has ended: the key ring holds that, from the database.

Source: RFC 6265bis, sections 4.1.2.7 (SameSite) and 4.1.3.2 (the prefix `__Host-`).
"""

import secrets
import time
from collections.abc import Callable

import msgspec

from quadriga.extras.sign_on.people import caller_with
from quadriga.engine.access.seals import Seal
from quadriga.proto.access import Caller

SESSION_COOKIE = "__Host-quadriga-session"
STATE_COOKIE = "__Host-quadriga-login"


class PersonSession(msgspec.Struct, frozen=True, kw_only=True, rename={"expires_s": "exp"}):
    """What the cookie of a session says; its owner can read it, and not change it."""

    id: str
    key_id: str
    """Id of the person."""
    name: str
    roles: tuple[str, ...]
    team: str = ""
    expires_s: int
    """Time at which it ends, in seconds since 1970."""

    @property
    def caller(self) -> Caller:
        """Caller of the requests of this session."""
        return caller_with(self.key_id, self.name, roles=self.roles, team=self.team)


class Sessions:
    """Begins and recognises sessions.

    Args:
        seal: Seals their cookies.
        hours: Hours until a session ends.
        is_ended: Returns whether a session was ended before its time, by its id.
    """

    def __init__(self, seal: Seal, hours: float, is_ended: Callable[[str], bool]) -> None:
        self._seal = seal
        self._seconds = max(1, round(hours * 3600))
        self._is_ended = is_ended

    def begin(self, caller: Caller, roles: tuple[str, ...]) -> tuple[PersonSession, str]:
        """Return a new session of a caller, and the value of its cookie."""
        session = PersonSession(
            id=secrets.token_hex(16),
            key_id=caller.key_id,
            name=caller.name,
            roles=roles,
            team=caller.team,
            expires_s=int(time.time()) + self._seconds,
        )
        return session, self._seal.close(session)

    def find(self, cookies: bytes | None) -> PersonSession | None:
        """Return the session of a header `Cookie`; None if there is none, or it has ended."""
        text = cookie_value(cookies, SESSION_COOKIE)
        session = self._seal.open(text, PersonSession) if text else None
        if session is None or time.time() >= session.expires_s or self._is_ended(session.id):
            return None
        return session


def cookie_value(cookies: bytes | None, name: str) -> str:
    """Return the value of a cookie in a header `Cookie`; empty without it."""
    for pair in (cookies or b"").split(b";"):
        key, _, value = pair.strip().partition(b"=")
        if key == name.encode():
            return value.decode("latin-1")
    return ""
