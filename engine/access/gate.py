"""The gate in front of every protocol: reads the key, token or session of a request, and finds whose it is.

People who have shown a key to the console have a session: a sealed cookie in place of the key. The cookie names the key and does
not hold it. What the key may do is looked up at each request, so that a key that is revoked, expires or gets other
roles counts as such at once.
"""

import logging
from collections.abc import Callable
from urllib.parse import unquote

import msgspec

from quadriga.engine.access.key_ring import UNREAD, UNREAD_LOCAL, KeyRing
from quadriga.engine.access.sessions import BrowserSessions
from quadriga.proto.access import ANYBODY, STRANGER, TEAM_HEADER, Caller, presented_key

_log = logging.getLogger(__name__)


class KeyGate:
    """Gate of a server that accepts keys; open while it needs none.

    Args:
        keys: The keys.
        sessions: Sessions of browsers; None where they do not count.
        caller_of_token: Returns the caller who presents a token of the identity provider, without rights if it does not
            count; None without a provider.
    """

    def __init__(
        self,
        keys: KeyRing,
        sessions: BrowserSessions | None = None,
        caller_of_token: Callable[[str], Caller] | None = None,
    ) -> None:
        self._keys = keys
        self._sessions = sessions
        self._caller_of_token = caller_of_token

    def identify(self, read_header: Callable[[bytes], bytes | None]) -> Caller:
        """Return the caller of a request, as `quadriga.proto.access.Gate`: by its key, else its token, else its session."""
        if self._keys.is_open:
            return ANYBODY
        text = presented_key(read_header)
        # A token of a provider has three parts, where a key has two.
        if self._caller_of_token is not None and text is not None and text.count(".") == 2:
            return self._caller_of_token(text)
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
