"""The quota of each key: decides, by the key's limits and what all workers have counted, whether a request may begin.

Counts are in memory that workers share. Each worker writes numbers of its own only, and reads those of all: nothing waits for
a lock of another process. Two workers may decide at the same moment, so a limit may be passed by one request for each
further worker.

A rate is counted in two periods, the present one and the one before, of which as much counts as the last period still
reaches into ("sliding window counter"): it takes the same memory whatever the limit, and no client gets more than the
limit on average, nor more than twice the limit in any one period. The clock is the monotonic one, which all processes
of a machine share.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from math import ceil, floor
from typing import get_args

from quadriga.engine.measures.shared_counts import CELLS, IN_FLIGHT, OTHER, CountRow, SharedCounts
from quadriga.proto.access import Quota, RateHeaders
from quadriga.proto.errors import LimitReached
from quadriga.proto.request import current_caller
from quadriga.store.jobs.jobs import JobOwner
from quadriga.store.keys.key_limits import (
    NO_LIMITS,
    KeyLimits,
    Limit,
    LimitName,
    amount_text,
    is_retired,
    parse_limits,
    split_limits,
)
from quadriga.store.keys.key_texts import AccessKey

LOG_INTERVAL_S = 1.0
"""Minimum seconds between two lines of the log about refused requests."""

JOBS_RETRY_S = 30
"""Seconds after which a client may try to submit a job again."""

KEY = "key"
"""Kind of the rows of keys, each named by the id of the key."""

REQUESTS = IN_FLIGHT + 1
"""Cell of the requests admitted with a key."""

REFUSED: dict[LimitName, int] = {
    name: REQUESTS + 1 + place for place, name in enumerate(get_args(LimitName))
}
"""Cells of the requests that each limit refused."""

_PERIODS = REQUESTS + 1 + len(REFUSED)  # of an even and of an odd period, its number and the amount

_MARGIN_S = 0.001
"""Added to the time of a refusal, so that it is over then, however it is rounded."""

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


class KeyQuota(Quota):
    """Quota of one key, as `quadriga.proto.access.Quota`.

    Args:
        counts: What all processes have counted.
        refusals: Logs refused requests.
        key_id: Id of the key.
        name: Name of the key, for errors and the log.
        limits: Limits of the key; empty for none, then requests are counted only.
        clock: Seconds of a clock that all workers share and that never jumps.
    """

    def __init__(
        self,
        counts: SharedCounts,
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
        self._rate = limits.get("requests")
        policy = ", ".join(_policy_item(name, limit) for name, limit in limits.items())
        self._policy = (b"ratelimit-policy", policy.encode())

    @property
    def is_limited(self) -> bool:
        """Whether anything is limited; see `Quota`."""
        return bool(self.limits)

    def check(self) -> None:
        """Check whether a request may begin; see `Quota`."""
        with self._row.lock:
            self._check_concurrency()
            if self._rate is not None:
                self._left(self._rate)

    def begin(self) -> RateHeaders:
        """Count a request; see `Quota`."""
        row = self._row
        with row.lock:
            self._check_concurrency()
            headers = self._take()
            row.cells[IN_FLIGHT] += 1
        return headers

    def end(self) -> None:
        """Count the end of a request; see `Quota`."""
        self._row.add(IN_FLIGHT, -1)

    def resume(self) -> None:
        """Count a request in flight again; see `Quota`."""
        self._row.add(IN_FLIGHT)

    def add_message(self) -> None:
        """Count a further request of a stream; see `Quota`."""
        with self._row.lock:
            self._take()

    def check_jobs(self, unfinished: int) -> None:
        """Check whether a job may be submitted; see `Quota`."""
        limit = self.limits.get("jobs")
        if limit is not None and unfinished >= limit.amount:
            what = f"{amount_text('jobs', limit.amount)} that wait or run"
            hint = "wait until one has ended, or cancel one"
            raise self._refusal("jobs", what, hint=hint, retry_after_s=JOBS_RETRY_S)

    @cached_property
    def _row(self) -> CountRow:
        """The numbers of the key, which get their row with its first request.

        Keys without a row of their own are counted together, and have no limits before the next start of the server.
        """
        return self._counts.row((KEY, self.key_id), (KEY, OTHER))

    def _take(self) -> RateHeaders:
        """Count a request in the period of its limit, if that has room for it; return headers for its answer."""
        headers: RateHeaders = ()
        cells, limit = self._row.cells, self._rate
        if limit is not None:
            left, now_s = self._left(limit), self._clock()
            period = int(now_s // limit.period_s)
            cell = _PERIODS + 2 * (period & 1)
            if cells[cell] != period:
                cells[cell + 1] = (
                    0  # first, so that nobody takes the old amount for the new period's
                )
                cells[cell] = period
            cells[cell + 1] += 1
            wait_s = ceil(limit.period_s - now_s % limit.period_s)
            headers = (self._policy, (b"ratelimit", f'"requests";r={left};t={wait_s}'.encode()))
        cells[REQUESTS] += 1
        return headers

    def _check_concurrency(self) -> None:
        limit, row = self.limits.get("concurrency"), self._row
        if limit is None or sum(row.all_cells[IN_FLIGHT::CELLS]) < limit.amount or row.is_other:
            return
        what = f"{amount_text('concurrency', limit.amount)} at once"
        hint = "try again once one is answered"
        raise self._refusal("concurrency", what, hint=hint, retry_after_s=1)

    def _left(self, limit: Limit) -> int:
        """Return what is left of a rate after a request.

        Raises:
            LimitReached: There is no room for it now.
        """
        now_s = self._clock()
        period = int(now_s // limit.period_s)
        elapsed = now_s / limit.period_s - period
        before, used = self._used(period - 1), self._used(period)
        left = limit.amount - floor(before * (1 - elapsed)) - used - 1
        if left >= 0 or self._row.is_other:
            return max(0, left)
        wait_s = limit.period_s * _wait(before, used, limit.amount - 1, elapsed) + _MARGIN_S
        shown_s = f"{ceil(10 * wait_s) / 10:.1f}" if wait_s < 10 else f"{ceil(wait_s)}"
        article = "an" if limit.period == "hour" else "a"
        what = f"{amount_text('requests', limit.amount)} {article} {limit.period}"
        hint = f"try again in {shown_s} s"
        raise self._refusal("requests", what, hint=hint, retry_after_s=max(1, ceil(wait_s)))

    def _used(self, period: int) -> int:
        """Return what all workers counted in a period, given by its number."""
        used, cells = 0, self._row.all_cells
        for cell in range(_PERIODS + 2 * (period & 1), len(cells), CELLS):
            if cells[cell] == period:
                used += cells[cell + 1]
        return used

    def _refusal(
        self, limit: LimitName, what: str, *, hint: str, retry_after_s: int
    ) -> LimitReached:
        """Return the error of a request that a limit refuses, once it is counted."""
        self._row.add(REFUSED[limit])
        self._refusals.note(self.name, limit)
        text = f"expected at most {what} of the key {self.name!r}, got more: {hint}"
        state = f'"{limit}";r=0;t={retry_after_s}'.encode()
        return LimitReached(text, retry_after_s, (self._policy, (b"ratelimit", state)))


class KeyQuotas:
    """Makes the quotas of keys; what they count is in memory that all processes share, and so outlasts them.

    Args:
        counts: What all processes have counted.
        default: Limits of keys without their own, as a text that was checked.
    """

    def __init__(self, counts: SharedCounts, default: str) -> None:
        self._counts = counts
        self._names: dict[str, str] = {}
        self._warned: set[tuple[str, str]] = set()
        self._default = default
        self._parse(default, "the setting key_limits")
        self.refusals = RefusalLog()

    def quota(self, key: AccessKey, *, has_default: bool) -> KeyQuota:
        """Return the quota of a key; `has_default` says whether it has the default limits unless it has its own."""
        text = key.limits or (self._default if has_default else "")
        name = self._names[key.id] = key.name or key.id
        limits = self._parse(text, f"the key {key.id}" if key.limits else "the setting key_limits")
        return KeyQuota(self._counts, self.refusals, key_id=key.id, name=name, limits=limits)

    def uses(self) -> list[tuple[str, str, list[int]]]:
        """Return id, name and numbers of each key, in the order of their first requests."""
        rows = self._counts.totals(KEY)
        return [(row.name[1], self._names.get(row.name[1], row.name[1]), row.cells) for row in rows]

    def _parse(self, text: str, owner: str) -> KeyLimits:
        """Return the limits of a text; those of another version that are not known here do not count."""
        limits: dict[LimitName, Limit] = {}
        for part in [] if text == NO_LIMITS else split_limits(text):
            try:
                limits |= parse_limits([part])
            except ValueError as error:
                reason = "this limit no longer exists" if is_retired(part) else error
                is_new = (owner, part) not in self._warned
                if is_new and self._counts.writer == 0:  # one worker warns
                    _log.warning("%s has a limit that does not count, %s: %s", owner, part, reason)
                self._warned.add((owner, part))
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


def _policy_item(name: str, limit: Limit) -> str:
    """Return a limit as an item of `RateLimit-Policy`."""
    if limit.period:
        return f'"{name}";q={limit.amount};w={limit.period_s}'
    unit = ';qu="concurrent-requests"' if name == "concurrency" else ""
    return f'"{name}";q={limit.amount}{unit}'
