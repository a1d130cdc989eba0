"""The keys that a worker accepts, and the gate in front of every protocol, which finds whose key, token or session a request has.

The keys are a copy of the database's, which a thread keeps up to date. A copy in the data folder lets the server start
while the database is away. Where keys are needed and there is none, the first key, of an administrator, is made as a file of the data
folder; to remove the file revokes it. `KeyMetrics` shows Prometheus what keys have used, by the id and the name of each, never its secret.
"""

import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path
from urllib.parse import unquote

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from quadriga.engine.access.quotas import REFUSED, REQUESTS, KeyQuotas
from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.metrics import counter, gauge
from quadriga.engine.measures.shared_counts import CELLS, IN_FLIGHT, OTHER, SharedCounts
from quadriga.proto.access import ANYBODY, ROLES, STRANGER, TEAM_HEADER, Caller, presented_key
from quadriga.store.database.database import ReaderPool, writer_engine
from quadriga.store.keys.access_keys import end_session, note_uses, read_ended_sessions, read_keys
from quadriga.store.keys.key_texts import SESSION, AccessKey, hash_key, id_of_key, make_key
from quadriga.store.records.disk import create_once, write_atomically
from quadriga.store.records.errors import StoreError, full_text

REFRESH_S = 2.0
"""Time until a change of the keys counts in every worker."""

FIRST_KEY_FILE = "admin.key"
COPY_FILE = "keys.json"

MAX_KEYS_SHOWN = 1000
"""Keys with metrics of their own, the first ones used; the numbers of all others are summed."""

ENDING_DAYS = 30
"""Days before the end of a key from which its end is shown."""

MAX_ENDING_KEYS = 100
"""Keys whose end is shown, the soonest first."""

_LABELS = ("key", "name")

_NOTE_USES_S = 60.0
_RETRY_S = 0.2
_WAIT_S = 1.0

KEYS_UNREAD = "expected the keys from the database, got no answer"
"""Why a worker is not ready."""

_log = logging.getLogger(__name__)


class KeyRing:
    """The keys of one server; `callers` is safe to use from several threads.

    Args:
        settings: Settings of the server.
        internal_key: Key of the server's own jobs, which send requests; empty for none.
        on_first_key: Called with the id of the first key when it was made.
        counts: What the keys have used is counted there, beside what other processes count.
    """

    def __init__(
        self,
        settings: Settings,
        internal_key: str = "",
        on_first_key: Callable[[str], None] = lambda _: None,
        *,
        counts: SharedCounts | None = None,
    ) -> None:
        self.quotas = KeyQuotas(counts or SharedCounts(), settings.key_limits)
        self._on_first_key = on_first_key
        self._settings = settings
        self._folder = Path(settings.data)
        behind_proxy = settings.public_url or settings.trusted_proxies
        self.is_local = is_loopback(settings.host) and not behind_proxy
        """Whether only programs of this machine reach the server, by its address or a proxy, as far as the settings say."""
        self._may_be_open = self.is_local and not settings.of_extra("sign_on", "issuer")
        self._jobs_key = _fixed_key("jobs", internal_key, "infer")
        self._admin_key = _fixed_key("admin_key", settings.admin_key, "admin")
        self._has_keys = False
        self._valid: dict[str, AccessKey] = {}
        self._revoked: dict[str, AccessKey] = {}
        self._callers: dict[str, Caller] = {}
        self._uses_ms: dict[str, int] = {}
        self._ended: frozenset[str] = frozenset()
        self._unwritten: dict[str, AccessKey] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._database = (
            ReaderPool(settings.database_url, connections=1) if settings.store else None
        )
        copy = self._read_copy()
        self._known = threading.Event()
        if copy is not None or not self._has_database():
            self._known.set()
        self._take(copy or [])

    @property
    def is_known(self) -> bool:
        """Whether the keys were read, in this run or by an earlier one that left a copy."""
        return self._known.is_set()

    @property
    def is_open(self) -> bool:
        """Whether requests need no key: nobody else reaches the address, and no key was ever made."""
        return self._may_be_open and not self._has_keys and self._known.is_set()

    def find(self, text: str) -> Caller:
        """Return the caller whose key a request presents; one without rights if the key is not valid."""
        if not self._known.is_set():
            return UNREAD
        key_id = id_of_key(text)
        key = self._valid.get(key_id) or self._revoked.get(key_id)
        if key is None or not compare_digest(hash_key(text), key.hash):
            return _UNKNOWN
        return self._caller_of(key)

    def mark_of(self, key_id: str) -> str:
        """Return a text that tells the key from a later one of the same id; empty for no key."""
        key = self._valid.get(key_id)
        return "" if key is None else hash_key(key.hash)[:16]

    def find_by_mark(self, key_id: str, mark: str) -> Caller:
        """Return the caller whose key has this id and mark, as `find`."""
        if not self._known.is_set():
            return UNREAD
        key = self._valid.get(key_id)
        if key is None or not compare_digest(self.mark_of(key_id), mark):
            return _UNKNOWN
        return self._caller_of(key)

    def _caller_of(self, key: AccessKey) -> Caller:
        now_ms = int(time.time() * 1000)
        if not key.is_valid(now_ms):
            refused = _ENDED if key.revoked_ms is None else _REVOKED
            return msgspec.structs.replace(refused, name=key.name or key.id, key_id=key.id)
        self._uses_ms[key.id] = now_ms
        return self._callers[key.id]

    def is_ended(self, session_id: str) -> bool:
        """Check whether a session was ended before its time."""
        key_id = SESSION + session_id
        return key_id in self._ended or key_id in self._unwritten

    def end_session(self, session_id: str, name: str, expires_ms: int) -> None:
        """Let a session count no more: at once here, within `REFRESH_S` elsewhere, once the database answers."""
        key_id, now_ms = SESSION + session_id, time.time() * 1000
        for over in [key.id for key in self._unwritten.values() if (key.expires_ms or 0) < now_ms]:
            self._unwritten.pop(over, None)
        self._unwritten[key_id] = AccessKey(id=key_id, hash="", name=name, expires_ms=expires_ms)
        try:
            self._write_ended()
        except Exception as error:  # noqa: BLE001 - the database may be away or full: the thread tries again
            _log.warning("other servers do not know yet that a session has ended: %s", error)

    def start(self) -> None:
        """Read the keys, and keep them up to date in a thread."""
        self._thread = threading.Thread(target=self._run, name="keys", daemon=True)
        self._thread.start()

    def wait_until_known(self, on_wait: Callable[[], object]) -> None:
        """Wait until the keys were read; call a function again and again meanwhile."""
        while not self._known.wait(_WAIT_S):
            on_wait()

    def close(self) -> None:
        """Stop the thread, and note the last uses of keys."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._note_uses()
        if self._database is not None:
            self._database.close()

    def refresh(self) -> None:
        """Read the keys of the database; make the first key if there is none and one is needed.

        Raises:
            StoreError: The database does not answer.
            OSError: A file of the data folder cannot be read or written.
        """
        stored: list[AccessKey] = []
        ended: list[AccessKey] = []
        if self._database is not None:
            self._write_ended()
            with self._database.snapshot() as connection:
                stored, ended = read_keys(connection), read_ended_sessions(connection)
            unused = [msgspec.structs.replace(key, used_ms=None) for key in (*stored, *ended)]
            if unused != self._read_copy():
                self._folder.mkdir(parents=True, exist_ok=True)
                write_atomically(self._folder / COPY_FILE, msgspec.json.encode(unused), 0o600)
        if not (stored or self.is_local or self._admin_key):
            self._make_first_key()
        self._take((*stored, *ended))
        self._known.set()

    def _has_database(self) -> bool:
        return self._database is not None and self._database.has_database()

    def _run(self) -> None:
        note_at_s, failing = time.monotonic() + _NOTE_USES_S, ""
        while not self._stop.is_set():
            try:
                self.refresh()
                failing = ""
            except Exception as error:  # noqa: BLE001 - whatever it is, later changes of keys must count
                if self._known.is_set() and str(error) != failing:
                    is_expected = isinstance(error, StoreError | OSError)
                    text = "the keys are those that were read last: %s"
                    _log.warning(text, full_text(error), exc_info=not is_expected)
                failing = str(error)
            self.quotas.refusals.flush()
            if time.monotonic() >= note_at_s:
                self._note_uses()
                note_at_s = time.monotonic() + _NOTE_USES_S
            self._stop.wait(REFRESH_S if self._known.is_set() else _RETRY_S)

    def _take(self, stored: Sequence[AccessKey]) -> None:
        # A name says nothing about a key: whoever creates one chooses it. Where a key comes from does.
        own_keys = self._keys_of_files()
        keys = [*(key for key in stored if not key.id.startswith(SESSION)), *own_keys]
        self._ended = frozenset(key.id for key in stored if key.id.startswith(SESSION))
        own_ids = {key.id for key in own_keys}
        for key_id in self._ended:
            self._unwritten.pop(key_id, None)
        valid = {key.id: key for key in keys if key.revoked_ms is None}
        self._callers = {
            key.id: Caller(
                name=key.name or key.id,
                key_id=key.id,
                rights=frozenset(right for role in key.roles for right in ROLES.get(role, ())),  # type: ignore[call-overload]  # a role of a newer version has no rights here
                models=key.models,
                team=key.team,
                is_of_jobs=key is self._jobs_key,
                quota=None
                if key is self._jobs_key
                else self.quotas.quota(key, has_default=key.id not in own_ids),
            )
            for key in valid.values()
        }
        self._revoked = {key.id: key for key in keys if key.revoked_ms is not None}
        self._valid = valid
        self._has_keys = any(key is not self._jobs_key for key in keys)

    def ending_keys(self, before_ms: float) -> list[AccessKey]:
        """Return the valid keys that end before a time, the soonest first, for metrics."""
        now_ms = time.time() * 1000
        ending = [
            (key.expires_ms, key.id, key)
            for key in self._valid.values()
            if key.expires_ms is not None and now_ms < key.expires_ms < before_ms
        ]
        return [key for *_, key in sorted(ending, key=lambda row: row[:2])]

    def _keys_of_files(self) -> list[AccessKey]:
        """Return the keys that are not in the database: the first one, and those of the settings and the jobs."""
        first = None
        with suppress(OSError):
            text = (self._folder / FIRST_KEY_FILE).read_text().strip()
            first = _fixed_key(FIRST_KEY_FILE, text, "admin") if id_of_key(text) else None
        return [key for key in (first, self._jobs_key, self._admin_key) if key is not None]

    def _make_first_key(self) -> None:
        path = self._folder / FIRST_KEY_FILE
        if path.exists():
            return
        key_id, key = make_key("first")
        text = key.encode() + b"\n"
        if create_once(path, text, 0o600) == text:  # otherwise another worker was faster
            self._on_first_key(key_id)
            _log.warning(
                "requests need a key, as others reach %s: `cat %s` shows the first one, of an administrator (in a "
                "container: `docker compose exec engine cat %s`). `quadriga keys create` makes more; --insecure needs none",
                self._settings.public_url or self._settings.host, path.absolute(), path.absolute(),
            )  # fmt: skip

    def _read_copy(self) -> list[AccessKey] | None:
        with suppress(OSError, msgspec.MsgspecError):
            data = (self._folder / COPY_FILE).read_bytes()
            return msgspec.json.decode(data, type=list[AccessKey])
        return None

    def _write_ended(self) -> None:
        """Write the sessions that were ended here into the database."""
        if self._database is None or not self._unwritten:
            return
        with writer_engine(self._settings.database_url) as engine:
            for key in list(self._unwritten.values()):
                session_id, expires_ms = key.id.removeprefix(SESSION), key.expires_ms or 0
                end_session(engine, session_id, name=key.name, expires_ms=expires_ms)

    def _note_uses(self) -> None:
        uses, self._uses_ms = self._uses_ms, {}
        fixed = {key.id for key in self._keys_of_files()}
        uses = {key_id: used_ms for key_id, used_ms in uses.items() if key_id not in fixed}
        if self._database is None or not uses:
            return
        try:
            with writer_engine(self._settings.database_url) as engine:
                note_uses(engine, uses)
        except Exception as error:  # noqa: BLE001 - the database may be away or full; uses are no more than a hint
            _log.info("cannot note when keys were used: %s", error)


class KeyGate:
    """Gate of a server that accepts keys; open while it needs none.

    Args:
        keys: The keys.
        caller_of_session: Returns the caller whose session a header `Cookie` has, or None.
        caller_of_token: Returns the caller who presents a token of the identity provider, without rights if it does not
            count; None without a provider.
    """

    def __init__(
        self,
        keys: KeyRing,
        caller_of_session: Callable[[bytes | None], Caller | None] = lambda _: None,
        caller_of_token: Callable[[str], Caller] | None = None,
    ) -> None:
        self._keys = keys
        self._caller_of_session = caller_of_session
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
            return self._caller_of_session(read_header(b"cookie")) or STRANGER
        caller = self._keys.find(text)
        if caller.is_of_jobs and (team := read_header(TEAM_HEADER)):
            return msgspec.structs.replace(caller, team=unquote(team.decode("latin-1")))
        return caller


class KeyMetrics(Collector):
    """What the keys have used since the start of the server, summed over its workers, and when keys end that end soon.

    Args:
        keys: The keys; None for a server that needs none.
    """

    def __init__(self, keys: KeyRing | None) -> None:
        self._keys = keys

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its current value."""
        requests = counter("quadriga_key_requests", *_LABELS)
        running = gauge("quadriga_key_requests_running", *_LABELS)
        refused = counter("quadriga_key_requests_refused", *_LABELS, "limit")
        uses = [] if self._keys is None else self._keys.quotas.uses()
        if further := [cells for *_, cells in uses[MAX_KEYS_SHOWN:]]:
            total = [sum(cells[cell] for cells in further) for cell in range(CELLS)]
            uses[MAX_KEYS_SHOWN:] = [(OTHER, OTHER, total)]
        for key_id, name, cells in uses:
            requests.add_metric([key_id, name], cells[REQUESTS])
            running.add_metric([key_id, name], cells[IN_FLIGHT])
            for limit, cell in REFUSED.items():
                if cells[cell]:
                    refused.add_metric([key_id, name, limit], cells[cell])
        yield from (requests, running, refused, self._ends())

    def _ends(self) -> Metric:
        ends = gauge("quadriga_key_end_timestamp_seconds", *_LABELS)
        before_ms = (time.time() + ENDING_DAYS * 86_400) * 1000
        keys = [] if self._keys is None else self._keys.ending_keys(before_ms)
        for key in keys[:MAX_ENDING_KEYS]:
            ends.add_metric([key.id, key.name or key.id], (key.expires_ms or 0) / 1000)
        return ends


def _fixed_key(name: str, text: str, role: str) -> AccessKey | None:
    """Return a key that is not of the database; None for an empty text."""
    if not text:
        return None
    return AccessKey(id=id_of_key(text) or name, hash=hash_key(text), name=name, roles=(role,))


_UNKNOWN = msgspec.structs.replace(STRANGER, refusal="expected a valid key, got an unknown one")
UNREAD = Caller(
    name="nobody",
    is_known=False,
    refusal="expected the database to answer, as the keys are there: try again",
)
UNREAD_LOCAL = msgspec.structs.replace(UNREAD, rights=frozenset({"key"}))
"""Caller on this machine before the keys were read: may see why the server is not ready, and nothing else."""
_ENDED = msgspec.structs.replace(STRANGER, refusal="expected a valid key, got one that has expired")
_REVOKED = msgspec.structs.replace(STRANGER, refusal="expected a valid key, got one that was revoked")  # fmt: skip


def is_loopback(host: str) -> bool:
    """Check whether only programs of this machine reach an address."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        # Before Python 3.13 an address of IPv4 in the form of IPv6 is none of loopback.
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    return host == "localhost"
