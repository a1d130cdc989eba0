"""The quota of each key: decides, by the key's limits and what all workers have counted, whether a request may begin."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Container
from math import ceil, floor

import msgspec

from quadriga.engine.access.key_counts import KeyCounts, KeyRow, KeyTotals, Rate
from quadriga.proto.access import current_caller
from quadriga.proto.errors import LimitReached, ProtocolError, TooLarge
from quadriga.proto.quota import UNKNOWN_SIZE, RateHeaders
from quadriga.store.jobs import JobOwner
from quadriga.store.key_limits import (
    NO_LIMITS,
    KeyLimits,
    Limit,
    LimitName,
    amount_text,
    parse_limits,
    split_limits,
)
from quadriga.store.key_texts import AccessKey

LOG_INTERVAL_S = 1.0
"""Minimum seconds between two lines of the log about refused requests."""

JOBS_RETRY_S = 30
"""Seconds after which a client may try to submit a job again."""

_MARGIN_S = 0.001
"""Added to the time of a refusal, so that it is over then, however it is rounded."""

_NOUNS = {
    "bytes": " of request bodies", "export-bytes": " of exports",
    "stored-bytes": " of stored images and records",
}  # fmt: skip
_UNITS = {"concurrency": ';qu="concurrent-requests"', "jobs": ""}
_BYTES = ';qu="content-bytes"'
_log = logging.getLogger("quadriga.limits")


class RefusalLog:
    """Logs refused requests by key and limit, once a second at most."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._next_s = 0.0

    def note(self, name: str, limit: str) -> None:
        """Count a refused request, and write a line if there was none for a second."""
        with self._lock:
            self._counts[name, limit] += 1
        self.flush()

    def flush(self) -> None:
        """Write what was counted since the last line, unless that was a moment ago."""
        with self._lock:
            now_s = time.monotonic()
            if not self._counts or now_s < self._next_s:
                return
            counts, self._counts = self._counts, Counter()
            self._next_s = now_s + LOG_INTERVAL_S
        parts = (f"{n} of {name!r} ({limit})" for (name, limit), n in sorted(counts.items()))
        _log.warning("requests refused by the limits of their keys: %s", ", ".join(parts))


class KeyQuota:
    """Quota of one key, as `quadriga.proto.quota.Quota`.

    Args:
        counts: What all keys have used.
        refusals: Logs refused requests.
        key_id: Id of the key.
        name: Name of the key, for errors and the log.
        limits: Limits of the key; empty for none, then requests are counted only.
        clock: Seconds of a clock that all workers share and that never jumps.
    """

    def __init__(
        self,
        counts: KeyCounts,
        refusals: RefusalLog,
        *,
        key_id: str,
        name: str,
        limits: KeyLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._counts = counts
        self._refusals = refusals
        self.key_id = key_id
        self.name = name
        self.limits = limits
        self._row: KeyRow | None = None
        self._at_door: list[tuple[Rate, Limit]] = [
            (rate, limits[rate]) for rate in ("requests", "bytes") if rate in limits
        ]
        self._concurrency = limits.get("concurrency")
        policy = ", ".join(_policy_item(name, limit) for name, limit in limits.items())
        self._policy = (b"ratelimit-policy", policy.encode())

    @property
    def is_limited(self) -> bool:
        """Whether anything is limited; see `Quota`."""
        return bool(self.limits)

    def check(self) -> None:
        """Check whether a request may begin; see `Quota`."""
        row = self._numbers()
        if row is not None and self.limits:
            with row.lock:
                self._check_concurrency(row)
                for rate, limit in self._at_door:
                    self._room(row, rate, limit, 1)

    def begin(self, body_bytes: int = 0) -> RateHeaders:
        """Count a request; see `Quota`."""
        row = self._numbers()
        if row is None:
            return ()
        with row.lock:
            headers = self._admit(row, body_bytes, is_new=True) if self.limits else ()
            row.begin(max(body_bytes, 0))
        return headers

    def end(self) -> None:
        """Count the end of a request; see `Quota`."""
        row = self._row
        if row is not None:
            with row.lock:
                row.end()

    def resume(self) -> None:
        """Count a request in flight again; see `Quota`."""
        row = self._row
        if row is not None:
            with row.lock:
                row.resume()

    def add_message(self, body_bytes: int) -> None:
        """Count a further request of a stream; see `Quota`."""
        row = self._numbers()
        if row is None:
            return
        with row.lock:
            if self.limits:
                self._admit(row, body_bytes, is_new=False)
            row.add("requests", 1)
            row.add("bytes", body_bytes)

    def take_bytes(self, count: int) -> None:
        """Count the bytes of a message; see `Quota`."""
        self._add("bytes", count, needs_room=True)

    def add_bytes(self, count: int) -> None:
        """Count bytes of a body; see `Quota`."""
        self._add("bytes", count)

    def check_storing(self) -> None:
        """Check whether something may be stored; see `Quota`."""
        self._check_rate("stored-bytes")

    def add_stored(self, count: int) -> None:
        """Count stored bytes; see `Quota`."""
        self._add("stored-bytes", count)

    def check_export(self) -> None:
        """Check whether something may be exported; see `Quota`."""
        self._check_rate("export-bytes")

    def take_export(self, count: int) -> None:
        """Count the bytes of an export; see `Quota`."""
        self._add("export-bytes", count, needs_room=True)

    def check_jobs(self, unfinished: int) -> None:
        """Check whether a job may be submitted; see `Quota`."""
        limit, row = self.limits.get("jobs"), self._numbers()
        if limit is None or row is None or unfinished < limit.amount:
            return
        with row.lock:
            raise self._refusal(
                row,
                "jobs",
                f"{amount_text('jobs', limit.amount)} that wait or run",
                hint="wait until one has ended, or cancel one",
                retry_after_s=JOBS_RETRY_S,
            )

    def _numbers(self) -> KeyRow | None:
        """Return the numbers of the key, which get their place with its first request."""
        if self._row is None:
            self._row = self._counts.row(self.key_id)
        return self._row

    def _period(self, limit: Limit) -> int:
        return int(self._clock() // limit.period_s)

    def _add(self, rate: Rate, count: int, *, needs_room: bool = False) -> None:
        """Count an amount; with `needs_room` only if its limit has room for it."""
        row = self._numbers()
        if row is None:
            return
        with row.lock:
            limit = self.limits.get(rate)
            if limit is not None:
                if needs_room:
                    self._room(row, rate, limit, count)
                row.use(rate, self._period(limit), count)
            row.add(rate, count)

    def _check_rate(self, rate: Rate) -> None:
        limit, row = self.limits.get(rate), self._numbers()
        if limit is not None and row is not None:
            with row.lock:
                self._room(row, rate, limit, 1)

    def _admit(self, row: KeyRow, body_bytes: int, *, is_new: bool) -> RateHeaders:
        """Count a request in the periods of its limits; nothing is counted unless all of them have room for it."""
        if is_new:
            self._check_concurrency(row)
        now_s, items, counted = self._clock(), [], []
        for rate, limit in self._at_door:
            cost = 1 if rate == "requests" else body_bytes
            left = self._room(row, rate, limit, 1 if cost == UNKNOWN_SIZE else cost)
            counted.append((rate, int(now_s // limit.period_s), max(cost, 0)))
            wait_s = ceil(limit.period_s - now_s % limit.period_s)
            items.append(f'"{rate}";r={left};t={wait_s}')
        for rate, period, cost in counted:
            row.use(rate, period, cost)
        return (self._policy, (b"ratelimit", ", ".join(items).encode())) if items else ()

    def _check_concurrency(self, row: KeyRow) -> None:
        limit = self._concurrency
        if limit is not None and row.in_flight() >= limit.amount:
            what = f"{amount_text('concurrency', limit.amount)} at once"
            hint = "try again once one is answered"
            raise self._refusal(row, "concurrency", what, hint=hint, retry_after_s=1)

    def _room(self, row: KeyRow, rate: Rate, limit: Limit, cost: int) -> int:
        """Return what is left of a rate after a cost.

        Raises:
            TooLarge: The cost is larger than the whole limit.
            LimitReached: There is no room for it now.
        """
        period_s, now_s = limit.period_s, self._clock()
        period = int(now_s // period_s)
        elapsed = now_s / period_s - period
        before, used = row.used(rate, period)
        left = limit.amount - floor(before * (1 - elapsed)) - used - cost
        if left >= 0 or cost == 0:
            return max(0, left)
        what = f"{amount_text(rate, limit.amount)}{_NOUNS.get(rate, '')} {_each(limit.period)}"
        if cost > limit.amount:
            row.refuse(rate)
            self._refusals.note(self.name, rate)
            raise TooLarge(f"expected at most {what} of the key {self.name!r}, got {cost} at once")
        wait_s = period_s * _wait(before, used, limit.amount - cost, elapsed) + _MARGIN_S
        shown_s = f"{ceil(10 * wait_s) / 10:.1f}" if wait_s < 10 else f"{ceil(wait_s)}"
        hint = f"try again in {shown_s} s"
        raise self._refusal(row, rate, what, hint=hint, retry_after_s=max(1, ceil(wait_s)))

    def _refusal(
        self, row: KeyRow, name: LimitName, what: str, *, hint: str, retry_after_s: int
    ) -> ProtocolError:
        """Return the error of a request that a limit refuses, once it is counted."""
        row.refuse(name)
        self._refusals.note(self.name, name)
        text = f"expected at most {what} of the key {self.name!r}, got more: {hint}"
        state = f'"{name}";r=0;t={retry_after_s}'.encode()
        return LimitReached(text, retry_after_s, (self._policy, (b"ratelimit", state)))


class KeyUse(msgspec.Struct, kw_only=True):
    """What one key, or several keys together, have used since the start of the server."""

    key_id: str
    name: str
    totals: KeyTotals


class KeyQuotas:
    """The quotas of all keys, each of which goes on while its limits stay the same.

    Args:
        counts: What all keys have used.
        default: Limits of keys without their own, as a text that was checked.
    """

    def __init__(self, counts: KeyCounts, default: str) -> None:
        self._counts = counts
        self._default = default
        self._quotas: dict[str, tuple[tuple[str, str], KeyQuota]] = {}
        self._names: dict[str, str] = {}
        self._unreadable = ""
        self.refusals = RefusalLog()

    def quota(self, key: AccessKey, *, has_default: bool) -> KeyQuota:
        """Return the quota of a key; `has_default` says whether it has the default limits unless it has its own."""
        text = key.limits or (self._default if has_default else "")
        name = key.name or key.id
        form, quota = self._quotas.get(key.id, (None, None))
        if quota is None or form != (text, name):
            quota = KeyQuota(
                self._counts, self.refusals, key_id=key.id, name=name, limits=self._parse(key, text)
            )
            self._quotas[key.id] = (text, name), quota
        self._names[key.id] = name
        return quota

    def keep(self, key_ids: Container[str]) -> None:
        """Forget the quotas of all other keys, as they are valid no more; their names stay for metrics."""
        for key_id in [key_id for key_id in self._quotas if key_id not in key_ids]:
            del self._quotas[key_id]

    def uses(self) -> list[KeyUse]:
        """Return what each key has used, in the order of their first requests; keys without a name last, together."""
        uses = []
        for totals in self._counts.totals(list(self._names)):
            name = self._names.get(totals.key_id, "")
            uses.append(KeyUse(key_id=totals.key_id, name=name, totals=totals))
        return uses

    def _parse(self, key: AccessKey, text: str) -> KeyLimits:
        """Return the limits of a text; those of a newer version that are not known here do not count."""
        limits: dict[LimitName, Limit] = {}
        for part in [] if text == NO_LIMITS else split_limits(text):
            try:
                limits |= parse_limits([part])
            except ValueError as error:
                if part != self._unreadable:
                    _log.warning("a limit of the key %s does not count: %s", key.id, error)
                self._unreadable = part
        return limits


def job_owner() -> JobOwner | None:
    """Return the key that submits jobs from this thread or task, with what limits them; None without a key."""
    caller = current_caller()
    if caller.quota is None:
        return None
    return JobOwner(caller.key_id, caller.quota.check_jobs)


def _wait(before: int, used: int, room: int, elapsed: float) -> float:
    """Return the periods until no more than `room` counts, given the amounts of the period before and of this one."""
    if used <= room:  # of an amount between two whole numbers, the lower one counts
        return max(0.0, 1 - (room - used + 1) / before - elapsed) if before else 0.0
    return (1 - elapsed) + max(0.0, 1 - (room + 1) / used)


def _each(period: str) -> str:
    return f"an {period}" if period == "hour" else f"a {period}"


def _policy_item(name: str, limit: Limit) -> str:
    """Return a limit as an item of `RateLimit-Policy`."""
    period = f";w={limit.period_s}" if limit.period else ""
    unit = _BYTES if name.endswith("bytes") else _UNITS.get(name, "")
    return f'"{name}";q={limit.amount}{period}{unit}'
