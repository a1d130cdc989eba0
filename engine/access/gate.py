"""The gate in front of every protocol: reads the key of a request, and finds whose it is."""

from collections.abc import Callable
from urllib.parse import unquote

import msgspec

from quadriga.engine.access.key_ring import JOBS_KEY, UNREAD, UNREAD_LOCAL, KeyRing
from quadriga.proto.access import ANYBODY, STRANGER, TEAM_HEADER, Caller, presented_key


class KeyGate:
    """Gate of a server that accepts keys; open while it needs none."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def identify(self, read_header: Callable[[bytes], bytes | None]) -> Caller:
        """Return the caller of a request, as `quadriga.proto.access.Gate`."""
        if self._keys.is_open:
            return ANYBODY
        if not self._keys.is_known:
            return UNREAD_LOCAL if self._keys.is_local else UNREAD
        text = presented_key(read_header)
        if text is None:
            return STRANGER
        caller = self._keys.find(text)
        if caller.key_id == JOBS_KEY and (team := read_header(TEAM_HEADER)):
            return msgspec.structs.replace(caller, team=unquote(team.decode("latin-1")))
        return caller
